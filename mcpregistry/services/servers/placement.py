"""Which process has a session's connection. Rows with leases, so that all processes of the site agree.

A process renews all its leases together. Once it has not for ``LEASE``, or is known to be dead, another process takes the session: the
server then starts without what it kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError, transaction

from mcpregistry.db import database_now
from mcpregistry.models import SessionOwner

LEASE = timedelta(seconds=30)
KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, and where it takes calls of the others. ``is_lost``: it replaces another one, whose state is lost."""

    process: str
    address: str
    is_lost: bool = False


def claim(*, server_id: int, session: str, process: str, address: str) -> Owner:
    """Return the owner of a session. It is ``process`` if no living process is."""
    try:
        return _claim(server_id, session, Owner(process, address))
    except IntegrityError:  # another process was faster
        return _claim(server_id, session, Owner(process, address))


@transaction.atomic
def _claim(server_id: int, session: str, us: Owner) -> Owner:
    now = database_now()
    rows = SessionOwner.objects.filter(server=server_id, session=session)
    row = rows.select_for_update().first()
    ours = {"process": us.process, "address": us.address, "lease_until": now + LEASE}
    if row is None:
        SessionOwner.objects.create(server_id=server_id, session=session, since=now, **ours)
        return us
    if row.process != us.process and row.lease_until > now:
        return Owner(row.process, row.address)
    is_lost = row.process != us.process
    rows.update(**ours, **({"since": now} if is_lost else {}))
    return Owner(us.process, us.address, is_lost)


def take_over(*, server_id: int, session: str, dead: str, process: str, address: str) -> Owner:
    """The same, when the process ``dead`` is known to have ended."""
    SessionOwner.objects.filter(server=server_id, session=session, process=dead).update(lease_until=database_now())
    return claim(server_id=server_id, session=session, process=process, address=address)


def renew(process: str) -> None:
    """Renew the leases of a process."""
    SessionOwner.objects.filter(process=process).update(lease_until=database_now() + LEASE)


def release(*, server_id: int, session: str, process: str) -> None:
    """The process has closed the session's connection."""
    SessionOwner.objects.filter(server=server_id, session=session, process=process).delete()


def release_process(process: str) -> int:
    """The process has ended. Whoever takes its sessions is told that their state is lost. Returns how many it had."""
    now = database_now()
    return SessionOwner.objects.filter(process=process, lease_until__gt=now).update(lease_until=now)


def forget_old() -> int:
    """Delete what nobody has taken for a day. Returns how many."""
    return SessionOwner.objects.filter(lease_until__lt=database_now() - KEPT).delete()[0]
