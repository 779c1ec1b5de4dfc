"""What the clock does for installations: what was lost is sent again or given up, and what nobody
needs is taken away."""

from __future__ import annotations

import os
import uuid
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db.models import QuerySet

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.installs.reasons import INTERRUPTED
from mcpregistry.domain.installs.states import WORKED, InstallState
from mcpregistry.downstream.installers import package_tree
from mcpregistry.models import Install, Server
from mcpregistry.models.install import FOLDER
from mcpregistry.models.server import Transport
from mcpregistry.services.installs.requests import (
    find_previous_install,
    remove_install,
    wake_worker_for,
)

log = structlog.get_logger(__name__)

RESEND_AFTER = timedelta(seconds=30)
MOST_ATTEMPTS = 3
KEPT = timedelta(days=7)  # of what no server starts
_AT_WORK = (InstallState.RESOLVING, InstallState.INSTALLING)


def sweep_installs(now: datetime) -> dict[str, int]:
    """Every half minute. Returns how much of each there was."""
    return {
        "taken_back": take_back_lost(now),
        "sent_again": resend_waiting(now),
        "unused": remove_unused(now),
        "cleared": clear_leftovers(),
    }


def take_back_lost(now: datetime) -> int:
    """What a worker began that has died waits again for any worker; its installer died with it.
    Returns how many."""
    return _take_back(Install.objects.filter(lease_until__lt=now), now)


def take_back_of(worker: str, now: datetime) -> int:
    """The same for a worker that is known to have died, without waiting for its leases to end."""
    return _take_back(Install.objects.filter(worker=worker), now)


def _take_back(installs: QuerySet[Install], now: datetime) -> int:
    """What was begun ``MOST_ATTEMPTS`` times has failed: it may be what its workers died of."""
    lost = list(installs.filter(state__in=_AT_WORK).values_list("pk", "state", "attempts"))
    return sum(_return_to_queue(*one, now) for one in lost)


def _return_to_queue(install_id: int, doing: str, attempts: int, now: datetime) -> bool:
    before = {done.value: waiting for waiting, done in WORKED.items()}[doing]
    ended = {"state_at": now, "lease_until": None, "worker": ""}
    values = (
        {"state": before}
        if attempts < MOST_ATTEMPTS
        else {"state": InstallState.FAILED, "reason": str(INTERRUPTED)}
    )
    rows = Install.objects.filter(pk=install_id, state=doing, attempts=attempts)
    taken = bool(rows.update(**ended, **values))
    if taken and attempts < MOST_ATTEMPTS:
        wake_worker_for(Install.objects.get(pk=install_id))
    return taken


def resend_waiting(now: datetime) -> int:
    """Send again what nobody has taken: its message was lost, or could not be sent."""
    waiting = Install.objects.filter(
        state__in=[InstallState.REQUESTED, InstallState.APPROVED], state_at__lt=now - RESEND_AFTER
    )
    return sum(wake_worker_for(install) for install in waiting.order_by("state_at")[:20])


def remove_unused(now: datetime) -> int:
    """Give up what no server starts, some days later; not that to which a server could be rolled
    back."""
    servers = list(
        Server.objects.filter(transport=Transport.STDIO, installs__isnull=False).distinct()
    )
    kept = {before.pk for server in servers if (before := find_previous_install(server))}
    old = Install.objects.filter(state=InstallState.INSTALLED, state_at__lt=now - KEPT).exclude(
        used_at__gt=now - KEPT
    )
    commands = (
        [*Server.objects.filter(transport=Transport.STDIO).values_list("command", flat=True)]
        if old
        else []
    )
    unused = [
        each for each in old if each.pk not in kept and not any(map(each.is_started_by, commands))
    ]
    return sum(_remove_if_unused(install) for install in unused)


def _remove_if_unused(install: Install) -> bool:
    try:
        remove_install(install=install, actor="clock")
    except Conflict:  # somebody has set a server to it meanwhile
        return False
    return True


def clear_leftovers() -> int:
    """Take away every folder that is neither installed nor being worked on."""
    root = f"{settings.VAR_DIR}/{FOLDER}"
    names = os.listdir(root) if os.path.isdir(root) else []
    rows = {
        str(install.uid): install
        for install in Install.objects.filter(uid__in=filter(_is_uid, names))
    }
    return sum(_clear_folder(f"{root}/{name}", rows.get(name)) for name in names)


def _clear_folder(place: str, install: Install | None) -> bool:
    try:
        if install is None or install.state in (InstallState.FAILED, InstallState.REMOVED):
            package_tree.remove(place)
            return True
        if install.state == InstallState.INSTALLED and os.listdir(place) != [install.lock_sha256]:
            _keep_only(install)
            return True
    except OSError as error:  # told each time, and tried again
        log.warning(
            "install_not_cleared", place=os.path.basename(place), error=type(error).__name__
        )
    return False


def _keep_only(install: Install) -> None:
    """Remove the folders of attempts whose workers died, and keep what is installed."""
    for name in os.listdir(install.place):
        if name != install.lock_sha256:
            package_tree.remove(os.path.join(install.place, name))


def _is_uid(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False
