"""Whether servers work: tests that people ask for, checks by the clock, and what both lead to.

Invariants:
* A request is a row before it is a message: with the broker down nothing is lost, only later.
* A test or check is claimed by compare-and-set, so however often it is delivered, it runs once.
* Testing a server is running it, so a draft cannot be tested.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from django.contrib.auth.models import User
from django.db import Error, transaction
from django.db.models import F, Q
from django.utils import timezone

from mcpregistry.database_errors import fault_facts
from mcpregistry.domain.errors import ArgumentsInvalid, Conflict
from mcpregistry.domain.host_definitions import WITH_CHANGES
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.servers.health import (
    UNAVAILABLE_AFTER,
    compute_check_delay,
    compute_test_timeout,
)
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.models import Server, ServerTest
from mcpregistry.models.server import ConnectMode, Transport
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.configuration.dispatch import NO_BROKER, wake_worker
from mcpregistry.services.definitions import observe
from mcpregistry.services.definitions.scanning import Pause
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit
from mcpregistry.services.servers.notes import note_server_event, warn_once
from mcpregistry.services.servers.server_test_calls import refuse_call
from mcpregistry.services.servers.targets import refuse_unless_runnable

if TYPE_CHECKING:
    from mcpregistry.downstream.pool.discovery import Discovery

log = structlog.get_logger(__name__)

QUEUED = ServerTest.Verdict.QUEUED
RUNNING = ServerTest.Verdict.RUNNING
# for the end of a server's processes, and for writing what was seen
_MARGIN = timedelta(seconds=30)
_TOLD_LEFT_OUT = 50


@transaction.atomic
def request_test(
    *,
    server: Server,
    actor: str,
    user: User | None = None,
    call_tool: str = "",
    call_arguments: dict[str, Any] | None = None,
    in_sandbox: bool = False,
) -> ServerTest:
    """A queued test, with one call of a read-only tool if named. A worker starts it within seconds.

    ``in_sandbox``: as the server would run with its sandbox on; its health does not follow from
    that.

    When the broker is away, ``error`` of the returned test says so and the test starts later. One
    that is queued already is returned as it is. Raises Conflict or ConfigInvalid (the server may
    not run), Denied (the tool is not read-only, or the rules do not let it run unasked) and
    ArgumentsInvalid.
    """
    arguments = call_arguments or {}
    if call_tool:
        refuse_call(server, call_tool, arguments)
    same = ServerTest.objects.filter(
        server=server,
        verdict=QUEUED,
        call_tool=call_tool,
        call_arguments=arguments,
        in_sandbox=in_sandbox,
    )
    if (waiting := same.first()) is not None:
        return waiting
    test = queue_test(
        server=server,
        actor=actor,
        user=user,
        call_tool=call_tool,
        call_arguments=arguments,
        in_sandbox=in_sandbox,
    )
    transaction.on_commit(lambda: send_test(test))
    return test


@transaction.atomic
def queue_test(
    *,
    server: Server,
    actor: str,
    user: User | None = None,
    call_tool: str,
    call_arguments: dict[str, Any],
    in_sandbox: bool = False,
) -> ServerTest:
    """Store the test without waking a worker, for whoever runs it himself; whoever names a tool
    vouches for the call.

    Raises Conflict or ConfigInvalid (the server may not run) and ArgumentsInvalid.
    """
    refuse_unless_runnable(server)
    _check_storable(call_arguments)
    _forget_handshake(server)
    called = (
        {"arguments": compute_keyed_digest("test", encode_canonical_json(call_arguments))}
        if call_tool
        else {}
    )
    audit.record_entry(
        kind="server.test_requested",
        actor=actor,
        subject=f"server:{server.slug}",
        call=call_tool,
        **called,
    )
    return ServerTest.objects.create(
        server=server,
        requested_by=user,
        requested_at=timezone.now(),
        call_tool=call_tool,
        call_arguments=call_arguments,
        server_revision=server.revision,
        in_sandbox=in_sandbox,
    )


def send_test(test: ServerTest) -> bool:
    """Wake a worker for a queued test; if that fails, its row says why it waits."""
    sent = wake_worker("test_server", test.pk)
    if not sent:
        test.error = NO_BROKER
        ServerTest.objects.filter(pk=test.pk, verdict=QUEUED).update(error=NO_BROKER)
    return sent


def request_refresh(*, server: Server, actor: str) -> bool:
    """Ask a worker to read the server's tools soon. False: the broker is away, so it happens later.

    Raises Conflict or ConfigInvalid when the server may not run.
    """
    return _request_check(server, "server.refresh_requested", actor)


def request_connect(*, server: Server, actor: str) -> bool:
    """Ask a worker to connect to the server soon, and to read what it offers. As
    ``request_refresh`` else."""
    return _request_check(server, "server.connect_requested", actor)


def _request_check(server: Server, kind: str, actor: str) -> bool:
    refuse_unless_runnable(server)
    with transaction.atomic():
        Server.objects.filter(pk=server.pk).update(next_check_at=timezone.now())
        _forget_handshake(server)
        audit.record_entry(kind=kind, actor=actor, subject=f"server:{server.slug}")
    return wake_worker("refresh_server", server.pk)


@transaction.atomic
def request_reconnect(*, server: Server, actor: str) -> Server:
    """Make every process drop its connection to the server; the check that is due then opens a new
    one."""
    return _drop_connections(server, "server.reconnect_requested", actor, timezone.now())


@transaction.atomic
def request_disconnect(*, server: Server, actor: str) -> Server:
    """Make every process drop its connection to the server until the next call, check or
    ``request_connect``.

    Raises Conflict of a server to which processes connect by themselves.
    """
    if server.connect_mode == ConnectMode.EAGER:
        raise Conflict(
            f"Cannot disconnect the server '{server.slug}': processes would connect to it again immediately.",
            remedy="First set the connect mode of the server to lazy or manual, or disable the server.",
        )
    return _drop_connections(
        server,
        "server.disconnect_requested",
        actor,
        _schedule_next_check(server, 0, timezone.now()),
    )


def _drop_connections(server: Server, kind: str, actor: str, next_check: datetime | None) -> Server:
    refuse_unless_runnable(server)
    Server.objects.filter(pk=server.pk).update(revision=F("revision") + 1, next_check_at=next_check)
    _forget_handshake(server)
    server.refresh_from_db()
    audit.record_entry(
        kind=kind, actor=actor, subject=f"server:{server.slug}", revision=server.revision
    )
    return server


def _forget_handshake(server: Server) -> None:
    """Let the next connection find out what the server speaks: it may have been upgraded since it
    was last asked."""
    Server.objects.filter(pk=server.pk, transport=Transport.STDIO).update(protocol_era="")


def claim_due(limit: int, *, answering: bool, worker: str = "") -> list[int]:
    """Claim servers whose check is due: of many callers, each server goes to exactly one, and to
    nobody while it is checked.

    ``answering``: those that answered the last time; else those that did not, or were never asked.
    The one to whom they go calls ``trials.record_check``; if it dies, they are due again when that
    is known (``free_checks``), at the latest once the longest test is over.
    """
    now = timezone.now()
    due = Server.objects.due_for_check(now)
    works = Q(consecutive_failures=0, last_ok_at__isnull=False)
    chosen = due.filter(works if answering else ~works).order_by("next_check_at", "pk")
    found = chosen.values_list("pk", "connect_timeout", "request_timeout")[:limit]
    until = {pk: _compute_test_deadline(now, connect, request) for pk, connect, request in found}
    return claim_each(
        until, lambda pk: due.filter(pk=pk).update(check_until=until[pk], check_by=worker)
    )


def claim_each(keys: Iterable[int], claim: Callable[[int], object]) -> list[int]:
    """Claim one after the other. Returns those whose ``claim`` returned something true.

    If the database fails in the middle, the caller gets what was claimed before, because no other
    worker would take it. Raises the error if nothing was claimed.
    """
    claimed: list[int] = []
    for key in keys:
        try:
            if claim(key):
                claimed.append(key)
        except Error as error:
            if not claimed:
                raise
            log.warning("not_all_claimed", claimed=len(claimed), **fault_facts(error))
            break
    return claimed


def free_checks(worker: str) -> int:
    """Servers that a worker checked when it died are due again now; the caller must know that it is
    dead. Returns how many."""
    return Server.objects.filter(check_by=worker, check_until__isnull=False).update(
        check_until=None
    )


def _compute_test_deadline(
    now: datetime, connect_timeout: float, request_timeout: float | None
) -> datetime:
    return now + timedelta(seconds=compute_test_timeout(connect_timeout, request_timeout)) + _MARGIN


def record_discovery(*, server: Server, discovery: Discovery, process: str = "") -> None:
    """Take in what a server told of what it offers: compare it with what is approved, and note that
    it works."""
    compare_definitions(server=server, discovery=discovery, process=process)
    note_answer(server=server, discovery=discovery)


def compare_definitions(
    *, server: Server, discovery: Discovery, process: str = "", pause: Pause = time.sleep
) -> None:
    """Compare what a server lists with what is approved. This takes as long as the scan of what is
    new; see ``observe``."""
    observe.observe(
        server=server,
        listed=discovery.tools,
        others=discovery.others,
        instructions=discovery.instructions,
        process=process,
        read_at=datetime.fromtimestamp(discovery.read_at, UTC),
        pause=pause,
    )


def note_answer(*, server: Server, discovery: Discovery) -> None:
    """Note that the server works, and what of its offers is left out."""
    told = describe_left_out(discovery)
    if told:
        warn_once(
            server_id=server.pk,
            kind="tools_left_out",
            message=f"Definitions were left out or changed: {told.replace(chr(10), ' ')}",
        )
    mark_ok(server_id=server.pk, discovery=discovery)


@transaction.atomic
def mark_ok(*, server_id: int, discovery: Discovery) -> None:
    """Note that the server answered: earlier failures no longer count, and it is shown again if it
    was hidden."""
    server = _lock_server(server_id)
    now = timezone.now()
    if server is None:
        return
    Server.objects.filter(pk=server_id).update(
        last_ok_at=now,
        consecutive_failures=0,
        unavailable_since=None,
        next_check_at=_schedule_next_check(server, 0, now),
        protocol_era="" if _is_upgraded(server, discovery) else discovery.era,
        server_info={
            name: clean_text(text, 500)
            for name, text in discovery.server_info.items()
            if isinstance(text, str)
        },
        server_instructions=clean_text(discovery.instructions),
        features=list(discovery.features),
        left_out=describe_left_out(discovery),
    )
    if server.unavailable_since is not None:
        note_server_event(
            server_id=server_id, kind="available", message="The server answers again."
        )
        outbox.enqueue_server(NotificationEvent.AVAILABLE, server=server, now=now)


def _is_upgraded(server: Server, discovery: Discovery) -> bool:
    """Whether a local server that was opened with the remembered older handshake reports another
    version of itself.

    It may speak the newer protocol, so the next connection finds out.
    """
    before = server.server_info.get("version")
    now = discovery.server_info.get("version")
    remembered = (
        server.transport == Transport.STDIO and server.protocol_era == discovery.era == "legacy"
    )
    return remembered and before is not None and before != now


def describe_left_out(discovery: Discovery) -> str:
    """Why definitions were left out, or what of them hosts get changed: a line for each, and not
    thousands of them."""
    lines = [*discovery.changes, *discovery.problems]
    more = len(lines) - _TOLD_LEFT_OUT
    verb = "is" if more == 1 else "are"
    only_changes = f" {verb} {WITH_CHANGES}" if more <= len(discovery.changes) else ""
    return clean_text(
        "\n".join(
            [*lines[-_TOLD_LEFT_OUT:], *([f"{more:,} more{only_changes}"] if more > 0 else [])]
        )
    )


@transaction.atomic
def mark_failed(*, server_id: int, code: str, message: str, times: int = 1) -> None:
    """Note that a test or check failed; after three in a row the server counts as unavailable."""
    server = _lock_server(server_id)
    now = timezone.now()
    if server is None:
        return
    failures = server.consecutive_failures + times
    falls = failures >= UNAVAILABLE_AFTER and server.unavailable_since is None
    Server.objects.filter(pk=server_id).update(
        last_error=clean_text(message),
        last_error_code=code,
        last_error_at=now,
        consecutive_failures=failures,
        unavailable_since=now if falls else server.unavailable_since,
        next_check_at=_schedule_next_check(server, failures, now),
    )
    if falls:
        told = f"The server failed {failures} times in a row: {message}"
        note_server_event(server_id=server_id, kind="unavailable", message=told)
        outbox.enqueue_server(NotificationEvent.UNAVAILABLE, server=server, reason=told, now=now)


def _lock_server(server_id: int) -> Server | None:
    return Server.objects.select_for_update(no_key=True).filter(pk=server_id).first()


def _schedule_next_check(server: Server, failures: int, now: datetime) -> datetime | None:
    """None for a server that is connected only when told to, unless it failed."""
    if server.connect_mode == ConnectMode.MANUAL and not failures:
        return None
    chance = random.random()  # noqa: S311 -- it spreads the checks over time
    return now + timedelta(
        seconds=compute_check_delay(server.check_interval, failures, chance=chance)
    )


def _check_storable(arguments: dict[str, Any]) -> None:
    """PostgreSQL's JSON takes neither NUL nor lone surrogates, JSON itself no NaN."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:
        raise ArgumentsInvalid(
            "The arguments contain invalid numbers or characters.",
            remedy="Remove or replace these values.",
        ) from error
    if "\\u0000" in text:
        raise ArgumentsInvalid(
            "The arguments contain a NUL character.", remedy="Remove the NUL character."
        )
