"""The work on installations, as a worker does it: resolve what was asked for, install what was
approved.

Invariants:
* One worker works on a row, by a lease. A row whose worker died is worked on again, by any worker,
  a few times.
* The folder with the lock's hash as its name appears whole, by one rename, or not at all.
* Each attempt works in a folder of its own. So a worker that was only paused, and counted as dead,
  changes nothing of the next one's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.installs import mcpb
from mcpregistry.domain.installs.lock import PackageLock, hash_lock
from mcpregistry.domain.installs.names import Ecosystem
from mcpregistry.domain.installs.reasons import INTERRUPTED, InstallFailed, explain_failure
from mcpregistry.domain.installs.states import WORKED, InstallState
from mcpregistry.domain.registry.bundles import build_bundle_option
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.installers import bundles, npm, package_tree, programs, pypi
from mcpregistry.downstream.installers.installer_process import InstallerBounds, InstallerPlace
from mcpregistry.models import Install
from mcpregistry.services.installs import offers, requests
from mcpregistry.services.records import audit

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=60)
_MOST_DIGITS = 5  # of the number of an attempt


@dataclass
class Job:
    """One row at work. ``renew_lease`` renews its lease, and ends the installer where the row is no
    longer ours."""

    install: Install
    doing: InstallState
    bounds: InstallerBounds
    _renewed: float = field(default=0.0)

    def renew_lease(self, *, now: bool = False) -> None:
        """Renew the lease once in a while, or ``now``. Raises InstallFailed when the row was taken
        from us."""
        at = read_database_now()
        if not now and at.timestamp() - self._renewed < LEASE.total_seconds() / 4:
            return
        if not self.select_own_row().update(lease_until=at + LEASE):
            raise INTERRUPTED
        self._renewed = at.timestamp()

    def select_own_row(self) -> QuerySet[Install]:
        """The row, as long as it is ours."""
        return Install.objects.filter(
            pk=self.install.pk, state=self.doing, attempts=self.install.attempts
        )

    @property
    def folder(self) -> str:
        """The folder of this attempt."""
        return os.path.join(self.install.place, f"{self.doing}-{self.install.attempts}")

    @property
    def home(self) -> str:
        """The folder that the installer, or the server that it tries, has for itself."""
        return os.path.join(self.folder, "home")

    def place(self) -> InstallerPlace:
        """Make the folders of this attempt."""
        package_tree.remove(self.folder)
        build = os.path.join(self.folder, "build")
        for folder in (self.home, build):
            os.makedirs(folder, mode=0o700)
        return InstallerPlace(
            home=self.home, build=build, beat=self.renew_lease, bounds=self.bounds
        )

    def keep(self, build: str) -> None:
        """Make ``build`` the folder of the installation. Raises InstallFailed if the row was taken
        from us.

        The row stays locked until then. Otherwise, another worker could take it over and put its
        own build there.
        """
        with transaction.atomic():
            self.renew_lease(now=True)
            package_tree.remove(self.install.folder)
            os.rename(build, self.install.folder)

    def clear(self) -> None:
        """Remove the folders of this attempt and of earlier ones. Never raises OSError.

        What cannot be removed does not change the result: the clock removes it later.
        """
        try:
            for name in os.listdir(self.install.place) if os.path.isdir(self.install.place) else []:
                if self._is_own_or_earlier(name):
                    package_tree.remove(os.path.join(self.install.place, name))
        except OSError as error:
            log.warning(
                "install_not_cleared", place=str(self.install.uid), error=type(error).__name__
            )
        with suppress(OSError):  # something else is in it, or it is gone
            os.rmdir(self.install.place)

    def _is_own_or_earlier(self, name: str) -> bool:
        """Whether a folder of this name is that of this attempt or of an earlier one of the same
        step."""
        step, _, attempt = name.partition("-")
        is_number = attempt.isascii() and attempt.isdigit() and len(attempt) <= _MOST_DIGITS
        return step == self.doing and is_number and int(attempt) <= self.install.attempts


def list_waiting(limit: int) -> list[int]:
    """Ids of what waits for a worker, the oldest first."""
    rows = Install.objects.filter(state__in=[*WORKED]).order_by("state_at", "pk")
    return list(rows.values_list("pk", flat=True)[:limit])


def work_on_install(
    *, install_id: int, bounds: InstallerBounds | None = None, worker: str = ""
) -> Install | None:
    """Take the row and do what it waits for. None: somebody else has it, or it waits for
    nothing."""
    job = _claim(install_id, bounds or InstallerBounds(), worker)
    if job is None:
        return None
    steps: dict[InstallState, Callable[[Job], dict[str, object]]] = {
        InstallState.RESOLVING: _resolve,
        InstallState.INSTALLING: _install,
    }
    try:
        values = steps[job.doing](job)
    except SlipsnisseError as error:
        return _end_job(job, InstallState.FAILED, {"reason": clean_text(str(error))})
    except OSError as error:  # ours: a full disk, a folder of another user
        log.warning(
            "install_failed",
            install=str(job.install.uid),
            error=type(error).__name__,
            errno=error.errno,
        )
        return _end_job(
            job, InstallState.FAILED, {"reason": str(explain_failure(error.strerror or ""))}
        )
    finally:
        job.clear()
    after = InstallState.WAITING if job.doing == InstallState.RESOLVING else InstallState.INSTALLED
    return _end_job(job, after, values)


def _claim(install_id: int, bounds: InstallerBounds, worker: str) -> Job | None:
    now = read_database_now()
    for waiting, doing in WORKED.items():
        rows = Install.objects.filter(pk=install_id, state=waiting)
        if rows.update(
            state=doing,
            state_at=now,
            lease_until=now + LEASE,
            reason="",
            worker=worker,
            attempts=F("attempts") + 1,
        ):
            return Job(Install.objects.select_related("server").get(pk=install_id), doing, bounds)
    return None


def _resolve(job: Job) -> dict[str, object]:
    install = job.install
    place = job.place()
    if install.ecosystem == Ecosystem.MCPB:
        return _resolve_bundle(install, place)
    if install.ecosystem == Ecosystem.NPM:
        text = npm.resolve(
            package=install.package,
            version=install.wanted,
            registry=settings.NPM_REGISTRY,
            place=place,
        )
    else:
        text = pypi.resolve(
            package=install.package, version=install.wanted, index=settings.PYPI_INDEX, place=place
        )
    install.lock = text
    lock = _read_lock(install)
    if install.ecosystem == Ecosystem.NPM:
        _choose_program(install, npm.list_programs(lock, install.folder))
    licences = {each.name: each.licence for each in lock.packages if each.licence}
    return {
        "lock": text,
        "lock_sha256": hash_lock(text),
        "version": lock.package.version,
        "licences": licences,
    }


def _resolve_bundle(install: Install, place: InstallerPlace) -> dict[str, object]:
    """What the file is, and how its manifest says that it is started; a form asks for what that
    wants to be given."""
    file, size = _fetch_bundle(install, place)
    install.lock = mcpb.write_lock(
        install.package, install.wanted, size, bundles.read_bundle_manifest(file)
    )
    told = mcpb.read_locked_manifest(install.lock)
    bundles.build_bundle_command(told, place.build)
    build_bundle_option(told, place.build)  # whether people could be asked
    licences = {told.name: told.licence} if told.licence else {}
    return {
        "lock": install.lock,
        "lock_sha256": hash_lock(install.lock),
        "version": told.version,
        "licences": licences,
    }


def _fetch_bundle(install: Install, place: InstallerPlace) -> tuple[str, int]:
    networks = tuple(install.networks)
    return bundles.fetch_bundle(
        address=install.package, sha256=install.wanted, networks=networks, place=place
    )


def _read_command_and_licences(
    install: Install, lock: PackageLock, build: str
) -> tuple[list[str], dict[str, str]]:
    """How it is started, with its files below ``build``, and the licences of its packages."""
    if install.ecosystem == Ecosystem.MCPB:
        command = bundles.build_bundle_command(mcpb.read_locked_manifest(install.lock), build)
        bundles.make_runnable(command, build)
        return command, install.licences
    if install.ecosystem == Ecosystem.NPM:
        return _choose_program(install, npm.list_programs(lock, build)), install.licences
    return _choose_program(install, pypi.list_programs(lock, build)), pypi.read_licences(build)


def _install(job: Job) -> dict[str, object]:
    install = job.install
    lock = _read_lock(install)
    if hash_lock(install.lock) != install.lock_sha256:
        raise InstallFailed(
            "The lock was changed after it was approved.", remedy="Request the package again."
        )
    place = job.place()
    build = place.build
    if install.ecosystem == Ecosystem.MCPB:
        bundles.unpack(_fetch_bundle(install, place)[0], build)
    elif install.ecosystem == Ecosystem.NPM:
        npm.install(lock=lock, text=install.lock, registry=settings.NPM_REGISTRY, place=place)
    else:
        pypi.install(text=install.lock, index=settings.PYPI_INDEX, place=place)
    # Before anything of it is read, so that no link leads to another file.
    size, files = package_tree.verify(build, may_lead_to=frozenset({programs.find_python()}))
    command, licences = _read_command_and_licences(install, lock, build)
    _check_program(command, build)
    package_tree.make_read_only(build)
    job.keep(build)
    moved = [word.replace(f"{build}/", f"{install.folder}/", 1) for word in command]
    return {"command": moved, "size": size, "files": files, "licences": licences} | _read_offers(
        job, moved
    )


def _read_offers(job: Job, command: list[str]) -> dict[str, object]:
    """What its server would offer with it. Whatever goes wrong there, it is installed."""
    install = job.install
    if install.server is None:
        return {}
    job.renew_lease(now=True)
    argv = [*command, *requests.list_command_arguments(install, install.server)]
    return offers.read_package_offers(install, argv, job.home)


def _read_lock(install: Install) -> PackageLock:
    lock = requests.read_lock(install)
    if lock is None:
        raise ConfigInvalid(
            f"The package {install} has no lock.", remedy="Request the package again."
        )
    return lock


def _choose_program(install: Install, found: dict[str, list[str]]) -> list[str]:
    """The command of the program that is the server. Raises InstallFailed where that is not
    plain."""
    name = install.program or (
        next(iter(found)) if len(found) == 1 else install.package.rpartition("/")[2]
    )
    if name in found:
        return found[name]
    if not found:
        raise InstallFailed(
            f"The package {install} contains no program to start.", remedy="Choose another package."
        )
    names = ", ".join(sorted(found)[:20])
    raise InstallFailed(
        f"The package {install} contains several programs: {names}.",
        remedy="Request the package again. In the field “Program”, enter the program that is the server.",
    )


def _check_program(command: list[str], build: str) -> None:
    """Every word that names its folder stays in it, also behind links, and the last of them is a
    file of the package."""
    named = [word for word in command if word.startswith(f"{build}/")]
    folder = os.path.realpath(build)
    for word in named:
        place = os.path.realpath(word)
        plain_word = os.path.normpath(word)
        leads_out = not PurePath(place).is_relative_to(folder) and place != os.path.realpath(
            programs.find_python()
        )
        if leads_out or not PurePath(plain_word).is_relative_to(build):
            raise InstallFailed(
                "The package cannot be used: its start command refers to a file outside of the folder of the package.",
                remedy="Do not use this package. Report the problem to the developers of the package.",
            )
    if not named or not os.path.isfile(os.path.realpath(named[-1])):
        raise InstallFailed(
            "The package cannot be used: it does not contain the program that its start command names.",
            remedy="Request another version of the package.",
        )


def _end_job(job: Job, state: InstallState, values: dict[str, object]) -> Install | None:
    """Compare-and-set: the clock may have given it up meanwhile, and then what was done counts for
    nothing."""
    ended = job.select_own_row().update(
        state=state, state_at=read_database_now(), lease_until=None, attempts=0, **values
    )
    install = Install.objects.select_related("server").get(pk=job.install.pk)
    if not ended:
        if install.state in (InstallState.FAILED, InstallState.REMOVED):
            with suppress(OSError):  # the clock removes it later
                package_tree.remove(install.place)
        return None
    kind = {
        "waiting": "install.resolved",
        "installed": "install.installed",
        "failed": "install.failed",
    }[state.value]
    audit.record_entry(
        kind=kind,
        actor="worker",
        subject=f"install:{install.uid}",
        package=install.package,
        version=install.version,
        lock=install.lock_sha256,
        reason=install.reason,
    )
    return install
