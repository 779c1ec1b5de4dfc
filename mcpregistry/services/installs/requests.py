"""What people and programs ask of installations. The work itself is a worker's
(``install_work.py``); every verb is audited.

Invariants:
* Nothing is installed but from a lock that a person has approved as it was shown, by its hash.
* What is installed does not run: a server is set to it by a verb of its own, and is then a draft
  that a person confirms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import transaction
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied
from mcpregistry.domain.installs import mcpb, npm, pypi
from mcpregistry.domain.installs.lock import PackageChange, PackageLock, compare_locks
from mcpregistry.domain.installs.names import (
    Ecosystem,
    check_ecosystem,
    check_name,
    check_program,
    check_version,
    list_runner_arguments,
)
from mcpregistry.domain.installs.states import InstallState, list_source_states
from mcpregistry.domain.registry.bundles import build_bundle_option
from mcpregistry.domain.registry.fill_options import Launch, fill_install_option
from mcpregistry.domain.servers.launch import check_env, check_networks
from mcpregistry.models import Configuration, Install, Server
from mcpregistry.models.confinement import SandboxMode
from mcpregistry.models.server import Transport
from mcpregistry.services.configuration.dispatch import wake_worker
from mcpregistry.services.configuration.saving import check_fields
from mcpregistry.services.installs.listed_versions import is_listed_version
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

_LOCKS_READ = 50  # the newest, when packages are compared with those of this site


class NotListed(Denied):
    """What is asked for stands in no registry, on a site that wants that."""

    code = "NOT_LISTED"


MOST_OPEN = 20  # asked for and not yet looked at


@transaction.atomic
def request_install(
    *,
    ecosystem: str,
    package: str,
    version: str = "",
    program: str = "",
    server: Server | None = None,
    slug: str = "",
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    networks: Sequence[str] = (),
    actor: str,
) -> Install:
    """Ask which packages this one consists of; a worker makes the lock, which then waits for a
    person.

    ``arguments`` and ``env`` are those of the server that is made of it; ``networks``: private ones
    in which a bundle may lie. Raises ConfigInvalid for what is no plain name and version, before
    any program sees it; Conflict where too many wait.
    """
    kind = check_ecosystem(ecosystem)
    install = Install(
        ecosystem=kind.value,
        package=check_name(kind, package),
        wanted=check_version(kind, version),
        program=check_program(program),
        server=server,
        slug=slug,
        requested_by=actor,
        state_at=read_database_now(),
        arguments=list(arguments),
        networks=check_networks(list(networks)),
    )
    install.env = check_env(dict(env or {}))
    if server is not None and server.transport != Transport.STDIO:
        raise ConfigInvalid(
            f"The server '{server.slug}' cannot use a package, because it is a remote server.",
            remedy="Choose a local server (stdio), or do not choose a server.",
        )
    check_fields(install)
    if Configuration.load().only_listed and not is_listed_version(kind, package, version):
        raise NotListed(
            f"This site only installs packages that a registry lists, and no registry lists '{install}'.",
            remedy="Choose a package and an exact version from a registry. Or ask an administrator to disable “Only listed packages” on the page Configuration.",
        )
    if (
        Install.objects.filter(state__in=[InstallState.REQUESTED, InstallState.RESOLVING]).count()
        >= MOST_OPEN
    ):
        raise Conflict(
            f"{MOST_OPEN} requested packages already wait for a worker.",
            remedy="Try again in a few minutes.",
        )
    install.save()
    _tell("install.requested", install, actor)
    transaction.on_commit(lambda: wake_worker_for(install))
    return install


@transaction.atomic
def approve_lock(*, install: Install, lock_sha256: str, actor: str, user: object = None) -> Install:
    """Let exactly the lock that was shown be installed. Raises Conflict where it is another, or
    does not wait."""
    install = Install.objects.select_for_update().get(pk=install.pk)
    if not lock_sha256 or install.lock_sha256 != lock_sha256:
        raise Conflict(
            "The lock was changed after you opened it.",
            remedy="Review the lock again, then approve it.",
        )
    _move(install, InstallState.APPROVED)
    install.approved_by = user  # type: ignore[assignment]
    install.approved_at = timezone.now()
    install.save(update_fields=["approved_by", "approved_at"])
    _tell("install.approved", install, actor)
    transaction.on_commit(lambda: wake_worker_for(install))
    return install


@transaction.atomic
def use_install(
    *,
    install: Install,
    actor: str,
    server: Server | None = None,
    kind: str = "install.used",
    launch: Launch | None = None,
) -> Server:
    """Set the server's command to it, or make a server of it. A person confirms the launch before
    anything runs.

    Arguments behind the package's own command stay, and its environment; ``launch`` replaces both,
    with what a person entered. Raises Conflict where it is not installed, ConfigInvalid where a new
    server needs to be given something.
    """
    install = Install.objects.select_for_update().get(pk=install.pk)
    if install.state != InstallState.INSTALLED:
        raise Conflict(
            f"The package {install} is not installed.",
            remedy="Approve the lock of the package, and wait until the package is installed.",
        )
    server = server or install.server or _make_server(install)
    if launch is None and server._state.adding:
        launch = _fill_requested_launch(install)
    behind = list_command_arguments(install, server) if launch is None else launch.arguments
    server.env = (
        build_env_for(install, server)
        if launch is None
        else {**build_env_for(install, server), **launch.env}
    )
    server.command = [*install.command, *behind]
    server = lifecycle.save_server(server=server, actor=actor)
    install.server = server
    install.used_at = timezone.now()
    install.save(update_fields=["server", "used_at"])
    _tell(kind, install, actor)
    return server


def roll_back(*, server: Server, actor: str) -> Server:
    """Set the server to the package that it was set to before. Raises Conflict where none is there
    any more."""
    before = find_previous_install(server)
    if before is None:
        raise Conflict(
            f"No earlier package of '{server.slug}' is installed.",
            remedy="Request a package with the version that you want.",
        )
    return use_install(install=before, server=server, actor=actor, kind="install.rolled_back")


def find_previous_install(server: Server) -> Install | None:
    """What ``roll_back`` would set the server to."""
    used = server.installs.filter(state=InstallState.INSTALLED, used_at__isnull=False).order_by(
        "-used_at"
    )
    return next((each for each in used if not each.is_started_by(server.command)), None)


@transaction.atomic
def remove_install(*, install: Install, actor: str) -> Install:
    """Give it up; the clock takes its folder away. Raises Conflict where a server starts it, or a
    worker is at it."""
    install = Install.objects.select_for_update().get(pk=install.pk)
    if used := list_using_servers(install):
        raise Conflict(
            f"The server '{used[0]}' uses this package.",
            remedy="First set this server to another package.",
        )
    _move(install, InstallState.REMOVED)
    _tell("install.removed", install, actor)
    return install


def has_running_install(install: Install) -> bool:
    """Whether its server starts a package of this site already, whose settings can stay."""
    return install.server is not None and _find_current_install(install.server) is not None


def list_using_servers(install: Install) -> list[str]:
    """Short names of the servers whose command starts something of its folder."""
    if not install.lock_sha256:
        return []
    rows = Server.objects.filter(transport=Transport.STDIO)
    return [
        server.slug
        for server in rows.only("slug", "command")
        if install.is_started_by(server.command)
    ]


def read_lock(install: Install) -> PackageLock | None:
    """Its lock, read; None while there is none."""
    if not install.lock:
        return None
    readers = {Ecosystem.NPM: npm.read, Ecosystem.PYPI: pypi.read, Ecosystem.MCPB: mcpb.read}
    return readers[Ecosystem(install.ecosystem)](install.lock, install.package)


def build_command(install: Install) -> list[str]:
    """How it is started: of a bundle that is not installed yet, as its manifest says; of such a
    package, not known yet."""
    if install.command or not install.lock or install.ecosystem != Ecosystem.MCPB:
        return [*install.command]
    start = mcpb.read_locked_manifest(install.lock)
    return [start.program, *start.words] if start.program else [*start.words]


def list_known_packages(install: Install) -> set[str]:
    """Names of the packages of the same ecosystem that this site has installed already, besides
    this one."""
    others = Install.objects.filter(
        ecosystem=install.ecosystem, state=InstallState.INSTALLED
    ).exclude(pk=install.pk)
    locks = (read_lock(each) for each in others.order_by("-id")[:_LOCKS_READ])
    return {package.name for lock in filter(None, locks) for package in lock.packages}


def list_lock_changes(install: Install) -> list[PackageChange]:
    """How its lock differs from what its server starts now, or from the last installed one of the
    same package."""
    lock = read_lock(install)
    before = find_compared_install(install)
    if not lock:
        return []
    return compare_locks(read_lock(before) if before else None, lock)


def find_compared_install(install: Install) -> Install | None:
    """The installation with which it is compared; None where it is the first."""
    same = Install.objects.filter(ecosystem=install.ecosystem, state=InstallState.INSTALLED)
    # each version of a bundle has its own address
    if install.ecosystem != Ecosystem.MCPB or install.server is None:
        same = same.filter(package=install.package)
    rows = (
        same.filter(server=install.server).exclude(pk=install.pk).order_by("-used_at", "-state_at")
    )
    command = install.server.command if install.server else []
    return min(rows, key=lambda each: not each.is_started_by(command), default=None)


def wake_worker_for(install: Install) -> bool:
    """Wake a worker for it; the clock does it again where the message is lost."""
    return wake_worker("work_install", install.pk)


def _fill_requested_launch(install: Install) -> Launch:
    """With what was entered when it was asked for; of a bundle with the defaults of what its
    manifest asks for."""
    given = Launch(list(install.arguments), install.env, {}, "")
    if install.ecosystem != Ecosystem.MCPB:
        return given
    told = fill_install_option(
        build_bundle_option(mcpb.read_locked_manifest(install.lock), install.folder), {}
    )
    return Launch([*told.arguments, *given.arguments], {**told.env, **given.env}, {}, "")


def build_env_for(install: Install, server: Server) -> dict[str, str]:
    """The server's environment as it is; what names the folder of the package that it starts now
    names the new one."""
    old = _find_current_install(server)
    return {name: _move_folder(value, old, install) for name, value in server.env.items()}


def _move_folder(text: str, old: Install | None, new: Install) -> str:
    return text.replace(f"{old.folder}/", f"{new.folder}/") if old is not None else text


def _find_current_install(server: Server) -> Install | None:
    rows = server.installs.filter(state=InstallState.INSTALLED) if server.pk else ()
    return next((each for each in rows if each.is_started_by(server.command)), None)


def find_new_slug(install: Install) -> str:
    """The short name of the server that is made of it."""
    return (install.slug or install.package.rpartition("/")[2].removesuffix(".mcpb"))[:63]


def _make_server(install: Install) -> Server:
    return Server(
        slug=find_new_slug(install),
        command=[],
        sandbox=SandboxMode.ENFORCE,
        source=f"install:{install.ecosystem}",
    )


def list_command_arguments(install: Install, server: Server) -> list[str]:
    """What stands behind the command of a server that starts the package already, itself or by npx
    or uvx."""
    for each in server.installs.filter(state=InstallState.INSTALLED):
        own = len(each.command)
        if own and server.command[:own] == each.command:
            return [_move_folder(word, each, install) for word in server.command[own:]]
    return list_runner_arguments(Ecosystem(install.ecosystem), install.package, server.command)


def _move(install: Install, state: InstallState) -> None:
    """Compare-and-set. Raises Conflict where it is in no state from which this one follows."""
    moved = Install.objects.filter(pk=install.pk, state__in=list_source_states(state)).update(
        state=state, state_at=read_database_now(), lease_until=None
    )
    if not moved:
        raise Conflict(
            f"Cannot change the package {install}: its state is {install.state}.",
            remedy="Open the page of the package again. It shows the actions that are possible now.",
        )
    install.refresh_from_db()


def _tell(kind: str, install: Install, actor: str) -> None:
    audit.record_entry(
        kind=kind,
        actor=actor,
        subject=f"install:{install.uid}",
        ecosystem=install.ecosystem,
        package=install.package,
        version=install.version or install.wanted,
        lock=install.lock_sha256,
        server=install.server.slug if install.server else "",
    )
