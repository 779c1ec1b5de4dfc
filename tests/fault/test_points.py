"""No place at which the database can fail, or a process die, is forgotten: each has a cell, or a
reason to have none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcpregistry import failpoints
from tests.externals import ROOT
from tests.fault import test_database_errors as calls
from tests.fault import test_database_errors_maintenance as maintenance
from tests.fault import test_database_errors_rest as rest
from tests.fault import test_database_errors_runs as runs
from tests.fault import test_database_errors_tasks as tasks
from tests.subagents.headends import test_faults

pytestmark = pytest.mark.fault

TABLES = (calls.POINTS, maintenance.POINTS, rest.POINTS, runs.POINTS, tasks.POINTS)
CELLS = {point.partition("@")[0] for point in test_faults.POINTS}
for table in TABLES:
    CELLS |= {point.partition("@")[0] for points in table.values() for point in points}
# What is read or written beside calls and runs: a fault there changes nothing that a caller is
# told.
BESIDE = {
    "delivery.list_channels_with_due": "notifications: the outbox is emptied at the next tick (tests/services)",
    "delivery.claim": "as above",
    "delivery.settle": "as above: at worst a receiver is told twice",
    "delivery.postpone": "as above",
    "providers.note_test": "an operator's test of a model",
    "audit.record_entry": "a rule's condition that gave no answer is noted; the log has it",
    "runs.wake_decided_runs": "a hint: the clock wakes the run as well",
    "host_tasks.note_task_polls": "a hint",
    "approvals._own": "REST looks who may withdraw: it is told 503, and nothing was done",
    "runs._may_still_watch": "REST checks whether a stream may continue: the stream ends, and the reader opens it again",
    "runs._own": "REST looks whose run it is; the reader asks again",
    "slack.get_signing_secret": "Slack is told 500 and the person presses again; the vote is one transaction (tests/web)",
    "slack.take_once": "as above",
    "slack.find_channel": "as above",
    "slack.find_pressed_tool": "as above",
    "slack.decide": "as above",
    "configuration.LiveConfiguration.refresh": "part of a run's step, which is begun again as for run_views.view",
    "waiters.renew": "tried again at the next renewal, well before the lease is over",
    "queue_places.renew": "as above",
    "placement.renew": "as above; without a lease the process makes no call",
    "placement.claim_connection": "the call is not sent (tests/calls/test_placing.py)",
    "placement.take_over_connection": "as above",
    "host_sessions.delete_messages": "the clock deletes the rows; a host whose cancellation follows is told 503, and sends it again",
    "tokens.note_uses": "written half a minute later (tests/calls/test_token_uses.py)",
    "placement.is_owner": "the call goes on; its owner is asked about again in ten seconds",
    "placement.list_session_addresses": "the servers of other processes do not hear that the folders of a host have changed",
    "processes.list_process_addresses": "the processes that were known are asked (tests/calls/test_resource_watches.py)",
    "process_lease.ProcessLease.announce": "the next renewal of the lease writes the address",
    "placement.release": "the session stays with its process until its next call",
    "placement.release_process": "the leases run out by themselves",
    "tracing.store": "the run continues without this part of its trace (tests/subagents/runs/test_tracing.py)",
    "queue_places.abandon": "the clock cancels the run of a client that has left, once its lease is over",
    "queue_places.check_place": "asked only after the end of a place: the client gets an error, and nothing was started",
    "queued_request._find_run": "the client is told an error, and joins the run when it asks again",
    "queued_request._has_no_run_yet": "as above",
    "queued_request._describe_approvals": "as above",
    "recorded_outcomes.load_outcome": "a call that was ended by hand while it was out (tests/fault/test_late_ends.py)",
    "tool_source._find_begun_run": "asked only where a run's beginning was not heard of (tests/fault/test_unheard_runs.py)",
    "records.is_written": "asked only where a turn's commit was not heard of (tests/subagents/runs)",
    "permit_uses._return_use": "tried until it is taken (tests/calls/test_own_faults.py)",
    "tools._ask": "an agent is told that nobody knows, or an error (tests/subagents/maintenance/test_tools.py)",
    "tools._status": "as above",
    "tools._cancel": "as above",
    "request_waiting._read_progress": "whoever waits for a request goes on waiting: it is read again in a second",
    "request_waiting._read_updates": "the agent is told an error; it has only read",
    "driver._find_disabled": "asked again at the next renewal",
    "reservations.run_in_one_transaction": "only of agents with an energy pool (tests/calls/test_energy.py)",
    "tool_calls._find_known_end": "part of a run's step, which is begun again as for run_views.view",
    "records.reserve_energy": "part of a run's step, which is begun again as for run_views.view",
    "estimates.estimate_specs": "the list is told without estimates (tests/subagents/maintenance/test_tools.py)",
    "spending.reserve": "only of agents with a budget (tests/calls/test_budgets.py)",
    "spending.settle": "as above",
    "spending.list_remarks": "the next call tells it (tests/calls/test_budgets.py)",
    "spending.restore_remarks": "at worst the mark is not told in this period (calls/budgets.py)",
    "spending.release": "at worst it is released by the clock (tests/services/test_budgets.py)",
    "rates.lease_calls": "only of agents with a limit (tests/calls/test_rates.py)",
    "rates.give_back": "at worst the bucket refills by itself",
    "cycle.take": "a cycle of a hosted agent: the clock drives it again",
    "cycle.renew": "as any lease: tried until it would be over",
    "cycle.turn": "each of its two transactions, begun again (subagents/leased/database_retry.py)",
    "leases.Leases.release": "at worst the lease runs out by itself",
    "tools._run_tool": "the model is told that it failed (calls/pipeline.py)",
    "model_operations._claim_step": "as above; the fixed plan does what was not done (tests/subagents/maintenance/test_by_model.py)",
    "model_operations._about_to_call": "as above",
    "model_operations._record_call": "as above",
    "model_operations._keep_outcome": "as above",
    "model_operations._apply_note": "as above",
    "long_calls.renew_call_lease": "as above",
    "host_sessions.find_running_session": "a host of the older era is told 503, and nothing was done (tests/gateway/test_older.py)",
    "host_sessions.begin_session": "its handshake is refused, and it shakes hands again",
    "host_sessions.record_client_name": "people see a host without its name",
    "host_sessions.note_seen": "noted again with the next ones, well before a session idles",
    "host_sessions.end_session": "the host is told 503, and ends it again or lets it idle",
    "host_sessions.send_host_message": "the host is told 503, and sends it again",
    "sampling._agent": "the server is told that there is no answer, and nothing was begun (subagents/runs/sampling.py)",
    "sampling._begin": "as above; the clock cancels a run whose call has ended",
    "sampling._answer": "as above, and the run is cancelled if it has not ended",
    "host_sessions.note_connections": "said again half a minute later, for pages only",
    "host_sessions.set_log_level": "the host is told, and sets it again",
    "host_sessions.get_log_level": "read again in a second",
    "host_sessions.subscribe": "the host is told, and subscribes again",
    "host_sessions.unsubscribe": "as above",
    "host_sessions.list_subscriptions": "read again in a second (gateway/http/session_stream.py)",
    "host_sessions.read_news": "asked again in a second",
    "host_streams.begin_stream": "the answer comes all the same, and cannot be read again",
    "host_streams.store_answer": "as above; the record of a call has it",
    "host_streams.find_stream_by_event": "a host that reads on is told 503, and asks again",
    "answer_resumption.load_answer": "as above",
    "model_stage.compute_time_left": "read again (subagents/leased/database_retry.py)",
    "manager._run_ends": "read again in a second",
    "prober._is_active": "read again in a second",
    "server_test_calls.prepare_call": "nothing was sent: the test says so, and the trial's step is begun again (tests/subagents/maintenance/test_trials.py)",
    "trials._is_new_and_shared": "the same (tests/subagents/maintenance/test_trials.py)",
    "plan_steps.find_requester": "as above",
    "trials.record_progress": "how far a test is: told in a second",
    "trials.claim_tests": "the clock looks for waiting tests again",
    "checks.claim_due": "the clock looks for due servers again",
    "install_work.list_waiting": "the clock looks for waiting packages again",
    "sources.list_due_sources": "the clock looks for due registries again",
    "worker_shares._load_test": "the clock gives the test up and says so (tests/services/test_server_tests.py)",
    "links.expose_links": "the result has come; its links are not found, and the log says why (calls/linked_resources.py)",
    "links.find_linking_tools": "asked only of what no list has: the host is told an error, and nothing was read",
    "ticket_lookup.find_caller_ticket": "asked only after another fault (tests/calls/test_unheard.py)",
    "unproven_approvals.refuse": "nothing was sent, and whoever looks next finds the same (tests/calls/test_unproven_approvals.py)",
}
# Where a process can die, but the database is not asked.
DEATHS = {
    "after_claim": "between the claim and the sending stands nothing that could fail",
    "before_end": "nor between the answer and its commit (committing)",
    "archive_written": "one transaction follows, of which each part fails the whole (tests/services/test_archive_faults.py)",
    "archive_recorded": "in the middle of it",
    "run_leased": "nor between the lease and the first step (engine._identity)",
    "run_turn_begun": "between a commit and the model",
    "run_turn_ended": "after a commit",
    "run_call_started": "after a commit",
    "run_call_answered": "before a commit (records.end_call)",
    "run_call_ended": "after a commit",
    "maintenance_leased": "nor between the lease and the first step (manager._begin)",
    "migration_noted": "`migrate` ends with the error and is run again (tests/management/test_interrupted_migrate.py)",
    "migration_applied": "as above",
    "triggers_made": "as above",
    "roles_made": "as above",
    "maintenance_acted": "nor between what a step found and its commit (manager._record_step)",
}
# Functions that are handed in, so that reading the source does not name them: what stands behind
# these words.
HANDED_IN = {
    "tell": ("trials.record_progress",),
    "self._renew_all": ("waiters.renew", "queue_places.renew"),
    "self._read": (
        "held_calls.load_call_states",
        "remote_tasks.load_host_wishes",
        "engine._read_cancel_requests",
        "run_answers.read_progress",
        "queue_places.read_queues",
        "task_streams._load_versions",
        "manager._read_control_requests",
        "manager._run_ends",
        "request_waiting._read_progress",
        "driver._find_disabled",
    ),
    "write": (
        "host_sessions.set_log_level",
        "host_sessions.subscribe",
        "host_sessions.unsubscribe",
    ),
    "self._claim": (
        "trials.claim_tests",
        "checks.claim_due",
        "install_work.list_waiting",
        "sources.list_due_sources",
    ),
    "self._engine.live.refresh": ("configuration.LiveConfiguration.refresh",),
}


def asked(path: Path) -> Iterator[str]:
    """The points of one module: what it hands to ``db_call``, itself or by way of ``partial``."""
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    tree = ast.parse(path.read_text())
    for outer in ast.walk(tree):
        for node in ast.iter_child_nodes(outer) if isinstance(outer, ast.ClassDef) else []:
            for each in ast.walk(node):
                each.owner = outer.name  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (function := _handed(node)) is not None:
            yield from _points(name, function)


def _handed(node: ast.Call) -> ast.expr | None:
    called = ast.unparse(node.func)
    if called == "db_call" and node.args:
        return node.args[0]
    if called == "partial" and len(node.args) > 1 and ast.unparse(node.args[0]) == "db_call":
        return node.args[1]
    return None


def _points(module: str, function: ast.expr) -> Iterator[str]:
    known = vars(import_module(module))
    own = known.get(getattr(function, "owner", ""), SimpleNamespace())
    text = ast.unparse(function)
    if text in HANDED_IN:
        yield from HANDED_IN[text]
    elif not isinstance(function, ast.Lambda) and text != "function":
        yield failpoints.point_of(eval(text, {**known, "self": own}))


def sources() -> list[Path]:
    return [*(ROOT / "mcpregistry").rglob("*.py"), *(ROOT / "subagents").rglob("*.py")]


def test_every_place_that_asks_the_database_has_a_cell():
    asking = [path for path in sources() if "db_call(" in path.read_text()]
    found = {point for path in asking for point in asked(path)}
    assert found - CELLS - BESIDE.keys() == set(), "new: give it a cell, or say why it needs none"
    assert BESIDE.keys() - found == set(), "gone"


def test_every_named_place_has_a_cell():
    used = {
        name for path in sources() for name in re.findall(r'failpoint\("(\w+)"\)', path.read_text())
    }
    assert used == set(failpoints.NAMES)
    assert used - CELLS == DEATHS.keys()
