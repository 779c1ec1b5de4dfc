"""Which process has a session's connection. Rows with leases, so that all processes of a machine
agree.

A process renews all its leases together. Once it has not for ``LEASE``, or is known to be dead,
another process takes the session: the server then starts without what it kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction

from mcpregistry.db import read_database_now
from mcpregistry.models import SessionOwner

LEASE = timedelta(seconds=30)
KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ConnectionPlace:
    """A session's connection to one server, on the machine with this name."""

    server_id: int
    machine: str
    session: str


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, and where it takes calls of the others. ``is_lost``: it replaces another one,
    whose state is lost."""

    process: str
    address: str
    is_lost: bool = False


def claim_connection(place: ConnectionPlace, us: Owner) -> Owner:
    """Return the owner of a connection. It is ``us`` if no living process is."""
    try:
        return _claim(place, us)
    except IntegrityError:  # another process was faster
        return _claim(place, us)


@transaction.atomic
def _claim(place: ConnectionPlace, us: Owner) -> Owner:
    now = read_database_now()
    row = _select_rows(place).select_for_update().first()
    ours = {"process": us.process, "address": us.address, "lease_until": now + LEASE}
    if row is None:
        named = {"server_id": place.server_id, "machine": place.machine, "session": place.session}
        SessionOwner.objects.create(**named, since=now, **ours)
        return us
    if row.process != us.process and row.lease_until > now:
        return Owner(row.process, row.address)
    is_lost = row.process != us.process
    _select_rows(place).update(**ours, **({"since": now} if is_lost else {}))
    return Owner(us.process, us.address, is_lost)


def take_over_connection(place: ConnectionPlace, us: Owner, dead: str) -> Owner:
    """The same, when the process ``dead`` is known to have ended."""
    _select_rows(place).filter(process=dead).update(lease_until=read_database_now())
    return claim_connection(place, us)


def is_owner(place: ConnectionPlace, process: str) -> bool:
    """Whether this process has the connection, and has renewed its lease."""
    return _select_rows(place).filter(process=process, lease_until__gt=read_database_now()).exists()


def renew(process: str) -> None:
    """Renew the leases of a process."""
    SessionOwner.objects.filter(process=process).update(lease_until=read_database_now() + LEASE)


def release(place: ConnectionPlace, process: str, *, is_lost: bool = False) -> None:
    """The process has closed the connection. ``is_lost``: the session has not been told yet that an
    earlier one was lost."""
    rows = _select_rows(place).filter(process=process)
    if is_lost:
        rows.update(process="", address="", lease_until=read_database_now())
    else:
        rows.delete()


def release_process(process: str) -> int:
    """The process has ended. Whoever takes its sessions is told that their state is lost. Returns
    how many it had."""
    now = read_database_now()
    return SessionOwner.objects.filter(process=process, lease_until__gt=now).update(lease_until=now)


def list_machines() -> list[str]:
    """Return the machines that have connections of their own, or those that share theirs under one
    name."""
    return [
        *_select_living_processes().order_by("machine").values_list("machine", flat=True).distinct()
    ]


def list_addresses() -> list[str]:
    """Return where processes take calls of other machines."""
    shared = _select_living_processes().exclude(address__startswith="/").exclude(address="")
    return [*shared.order_by("address").values_list("address", flat=True).distinct()]


def list_session_addresses(machine: str, session: str) -> set[str]:
    """Return where the processes with connections of this session take calls."""
    return {
        *_select_living_processes()
        .filter(machine=machine, session=session)
        .values_list("address", flat=True)
    }


def forget_old() -> int:
    """Delete what nobody has taken for a day. Returns how many."""
    return SessionOwner.objects.filter(lease_until__lt=read_database_now() - KEPT).delete()[0]


def _select_living_processes() -> Any:
    return SessionOwner.objects.filter(lease_until__gt=read_database_now())


def _select_rows(place: ConnectionPlace) -> Any:
    return SessionOwner.objects.filter(
        server=place.server_id, machine=place.machine, session=place.session
    )
