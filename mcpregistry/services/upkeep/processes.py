"""Which processes of the site are alive: one row for each, with a lease that the process renews
(``process_lease.py``).

A process that was only paused (SIGSTOP, a suspended machine, no network) creates its row again when
it continues. Its calls may have been ended as unknown in the meantime. It then replaces that end by
the real one (``services.records.ending``).
"""

from __future__ import annotations

import os
import secrets
import socket
from datetime import datetime, timedelta
from functools import cache

from mcpregistry.db import read_database_now
from mcpregistry.models import SiteProcess

LEASE = timedelta(seconds=10)
# for so long the row of a dead process stays, so that every living process can act on it
KEPT = timedelta(minutes=1)


def make_writer_base(kind: str) -> str:
    """Return what the names of all writers of this process begin with, followed by a dot: its key
    in the table.

    It is different for each start, because containers often have the same host name and process id.
    """
    return f"{make_host_prefix(kind, os.getpid())}{_make_instance_id(os.getpid())}"


def make_host_prefix(kind: str, pid: int) -> str:
    """Return what the writers of a process of this host begin with, whenever it was started."""
    return f"{kind}:{socket.gethostname()[:24]}:{pid}:"


def extract_writer_base(writer: str) -> str:
    """Return the key of the process that has this writer."""
    return writer.rpartition(".")[0]


@cache
def _make_instance_id(pid: int) -> str:
    return secrets.token_hex(4)


def renew_process_lease(key: str, name: str, address: str = "") -> datetime:
    """Renew the lease of a process, or create its row. Returns the time of the database."""
    now = read_database_now()
    if not SiteProcess.objects.filter(pk=key).update(lease_until=now + LEASE, address=address):
        SiteProcess.objects.create(pk=key, name=name, address=address, lease_until=now + LEASE)
    return now


def delete_own_process(key: str) -> None:
    """Delete the row of a process that stops in order: it has ended its calls itself."""
    SiteProcess.objects.filter(pk=key).delete()


def list_other_processes(key: str) -> list[SiteProcess]:
    """Return the other processes, including those whose lease has expired."""
    return list(SiteProcess.objects.exclude(pk=key).order_by("lease_until"))


def list_process_addresses() -> list[str]:
    """Return where processes on other machines reach the living processes that can be reached."""
    alive = SiteProcess.objects.filter(lease_until__gte=read_database_now()).exclude(address="")
    return list(alive.order_by("pk").values_list("address", flat=True))


def find_processes_by_name(name: str) -> list[SiteProcess]:
    """Return the processes with this name; there may be several, on hosts with the same name."""
    return list(SiteProcess.objects.filter(name=name))


def is_process_alive(name: str, now: datetime) -> bool:
    """Whether a living process has this name."""
    return SiteProcess.objects.filter(name=name, lease_until__gte=now).exists()


def has_process_returned(process: SiteProcess) -> bool:
    """Whether a process has renewed its lease, or stopped in order, since its row was read."""
    return not SiteProcess.objects.filter(pk=process.pk, lease_until=process.lease_until).exists()


def delete_dead_process(process: SiteProcess) -> None:
    """Delete the row of a dead process, unless it has come back."""
    SiteProcess.objects.filter(pk=process.pk, lease_until=process.lease_until).delete()


def find_last_sign(writer: str, now: datetime, *, is_dead: bool) -> datetime | None:
    """Return when the dead process that ``writer`` belongs to was last known to be alive; None if
    that is not known.

    ``is_dead``: the caller knows that it is dead, or lost its work. Otherwise its lease must have
    expired.
    """
    process = SiteProcess.objects.filter(pk=extract_writer_base(writer)).first()
    if process is None or not (is_dead or process.lease_until < now):
        return None
    return process.lease_until - LEASE
