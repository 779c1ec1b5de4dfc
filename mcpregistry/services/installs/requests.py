"""What people and programs ask of installations. The work itself is a worker's (``work.py``); every verb is audited.

Invariants:
* Nothing is installed but from a lock that a person has approved as it was shown, by its hash.
* What is installed does not run: a server is set to it by a verb of its own, and is then a draft that a person confirms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import transaction
from django.utils import timezone

from mcpregistry.db import database_now
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.installs import npm, pypi
from mcpregistry.domain.installs.lock import Change, Lock, differences
from mcpregistry.domain.installs.names import (
    Ecosystem,
    behind_runner,
    check_ecosystem,
    check_name,
    check_program,
    check_version,
)
from mcpregistry.domain.installs.states import InstallState, sources
from mcpregistry.domain.servers.launch import check_env
from mcpregistry.models import Install, Server
from mcpregistry.models.confinement import SandboxMode
from mcpregistry.models.server import Transport
from mcpregistry.services.configuration.dispatch import wake
from mcpregistry.services.configuration.saving import check_fields
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

MOST_OPEN = 20  # asked for and not yet looked at


@transaction.atomic
def resolve(
    *, ecosystem: str, package: str, version: str = "", program: str = "", server: Server | None = None, slug: str = "",
    arguments: Sequence[str] = (), env: Mapping[str, str] | None = None, actor: str,
) -> Install:  # fmt: skip
    """Ask which packages this one consists of; a worker makes the lock, which then waits for a person.

    ``arguments`` and ``env`` are those of the server that is made of it. Raises ConfigInvalid for what is no plain name
    and version, before any program sees it; Conflict where too many wait.
    """
    kind = check_ecosystem(ecosystem)
    install = Install(
        ecosystem=kind.value, package=check_name(kind, package), wanted=check_version(kind, version),
        program=check_program(program), server=server, slug=slug, requested_by=actor, state_at=database_now(),
        arguments=list(arguments),
    )  # fmt: skip
    install.env = check_env(dict(env or {}))
    if server is not None and server.transport != Transport.STDIO:
        raise ConfigInvalid("Only local servers (stdio) start a package.", remedy="Choose a local server, or none.")
    check_fields(install)
    if Install.objects.filter(state__in=[InstallState.REQUESTED, InstallState.RESOLVING]).count() >= MOST_OPEN:
        raise Conflict(f"{MOST_OPEN} packages are being resolved already.", remedy="Wait until some are done.")
    install.save()
    _tell("install.requested", install, actor)
    transaction.on_commit(lambda: send(install))
    return install


@transaction.atomic
def approve(*, install: Install, lock_sha256: str, actor: str, user: object = None) -> Install:
    """Let exactly the lock that was shown be installed. Raises Conflict where it is another, or does not wait."""
    install = Install.objects.select_for_update().get(pk=install.pk)
    if not lock_sha256 or install.lock_sha256 != lock_sha256:
        raise Conflict("The lock is not the one that was shown.", remedy="Look at it again, then approve.")
    _move(install, InstallState.APPROVED)
    install.approved_by, install.approved_at = user, timezone.now()  # type: ignore[assignment]
    install.save(update_fields=["approved_by", "approved_at"])
    _tell("install.approved", install, actor)
    transaction.on_commit(lambda: send(install))
    return install


@transaction.atomic
def use(*, install: Install, actor: str, server: Server | None = None, kind: str = "install.used") -> Server:
    """Set the server's command to it, or make a server of it. A person confirms the launch before anything runs.

    Arguments behind the package's own command stay. Raises Conflict where it is not installed.
    """
    install = Install.objects.select_for_update().get(pk=install.pk)
    if install.state != InstallState.INSTALLED:
        raise Conflict(f"{install} is not installed.", remedy="Approve it and wait until it is.")
    server = server or install.server or _new_server(install)
    server.command = [*install.command, *_arguments(install, server)]
    server = lifecycle.save_server(server=server, actor=actor)
    install.server, install.used_at = server, timezone.now()
    install.save(update_fields=["server", "used_at"])
    _tell(kind, install, actor)
    return server


def roll_back(*, server: Server, actor: str) -> Server:
    """Set the server to the package that it was set to before. Raises Conflict where none is there any more."""
    before = previous(server)
    if before is None:
        raise Conflict(
            f"No earlier package of '{server.slug}' is installed.", remedy="Ask for the version that you want."
        )
    return use(install=before, server=server, actor=actor, kind="install.rolled_back")


def previous(server: Server) -> Install | None:
    """What ``roll_back`` would set the server to."""
    used = server.installs.filter(state=InstallState.INSTALLED, used_at__isnull=False).order_by("-used_at")
    return next((each for each in used if not each.started_by(server.command)), None)


@transaction.atomic
def remove(*, install: Install, actor: str) -> Install:
    """Give it up; the clock takes its folder away. Raises Conflict where a server starts it, or a worker is at it."""
    install = Install.objects.select_for_update().get(pk=install.pk)
    if used := users_of(install):
        raise Conflict(f"The server '{used[0]}' starts it.", remedy="Set that server to another package first.")
    _move(install, InstallState.REMOVED)
    _tell("install.removed", install, actor)
    return install


def users_of(install: Install) -> list[str]:
    """Short names of the servers whose command starts something of its folder."""
    if not install.lock_sha256:
        return []
    rows = Server.objects.filter(transport=Transport.STDIO)
    return [server.slug for server in rows.only("slug", "command") if install.started_by(server.command)]


def lock_of(install: Install) -> Lock | None:
    """Its lock, read; None while there is none."""
    if not install.lock:
        return None
    reader = npm if install.ecosystem == Ecosystem.NPM else pypi
    return reader.read(install.lock, install.package)


def changes_of(install: Install) -> list[Change]:
    """How its lock differs from what its server starts now, or from the last installed one of the same package."""
    lock, before = lock_of(install), before_it(install)
    return differences(lock_of(before) if before else None, lock) if lock else []


def before_it(install: Install) -> Install | None:
    """The installation with which it is compared; None where it is the first."""
    same = Install.objects.filter(ecosystem=install.ecosystem, package=install.package, state=InstallState.INSTALLED)
    rows = same.filter(server=install.server).exclude(pk=install.pk).order_by("-used_at", "-state_at")
    command = install.server.command if install.server else []
    return min(rows, key=lambda each: not each.started_by(command), default=None)


def send(install: Install) -> bool:
    """Wake a worker for it; the clock does it again where the message is lost."""
    return wake("work_install", install.pk)


def _new_server(install: Install) -> Server:
    name = install.slug or install.package.rpartition("/")[2]
    server = Server(slug=name[:63], command=[], sandbox=SandboxMode.ENFORCE, source=f"install:{install.ecosystem}")
    server.env = install.env
    return server


def _arguments(install: Install, server: Server) -> list[str]:
    """Of a new server what was entered for it; of one that starts the package already what stands behind it."""
    if server._state.adding:
        return list(install.arguments)
    for each in server.installs.filter(state=InstallState.INSTALLED):
        own = len(each.command)
        if own and server.command[:own] == each.command:
            return list(server.command[own:])
    return behind_runner(Ecosystem(install.ecosystem), install.package, server.command)


def _move(install: Install, state: InstallState) -> None:
    """Compare-and-set. Raises Conflict where it is in no state from which this one follows."""
    moved = Install.objects.filter(pk=install.pk, state__in=sources(state)).update(
        state=state, state_at=database_now(), lease_until=None
    )
    if not moved:
        raise Conflict(f"{install} is {install.state}.", remedy="Look at it again.")
    install.refresh_from_db()


def _tell(kind: str, install: Install, actor: str) -> None:
    audit.record(
        kind=kind, actor=actor, subject=f"install:{install.uid}", ecosystem=install.ecosystem, package=install.package,
        version=install.version or install.wanted, lock=install.lock_sha256, server=install.server.slug if install.server else "",
    )  # fmt: skip
