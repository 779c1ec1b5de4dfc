"""Handles and the following of servers' tasks, at the level of rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import AuditEntry, Configuration, HostTask, Invocation
from mcpregistry.services.tasks import host_tasks, long_calls, remote_tasks
from mcpregistry.services.tasks.remote_tasks import FollowedTask, HostRequest, Lost
from mcpregistry.services.upkeep import reaping, retention
from mcpregistry.services.upkeep.invariants import calls
from tests.services.rows import confirmed, dispatched, ended

pytestmark = pytest.mark.django_db
NOW = timezone.now()


def adopted(call_id: str = "c1", transport: str = "http", **facts) -> FollowedTask:
    fields = (
        {"transport": "http", "url": "https://example.org/mcp", "command": []}
        if transport == "http"
        else {}
    )
    server = confirmed(slug=f"s-{call_id}", **fields)
    dispatched(call_id)
    return remote_tasks.adopt_task(
        **{
            "call_id": call_id,
            "fence": 0,
            "agent": "local",
            "endpoint": "default",
            "server_id": server.pk,
            "downstream_id": "theirs",
            "ttl_ms": 60_000,
            "poll_ms": 500,
            "now": NOW,
        }
        | facts
    )


def held(call_id: str) -> Invocation:
    return Invocation.objects.get(pk=call_id)


def test_an_id_is_ours_and_hard_to_guess():
    followed = adopted()
    assert len(followed.task_id) >= 43
    assert "theirs" not in str(host_tasks.build_task_view(HostTask.objects.get()))


def test_the_poll_interval_is_kept_within_reason():
    assert [adopted(f"c{poll}", poll_ms=poll).poll_ms for poll in (1, 2_000, 10**7)] == [
        100,
        2_000,
        60_000,
    ]


def test_a_call_that_is_ours_no_more_is_not_adopted():
    adopted()
    with pytest.raises(Lost):
        remote_tasks.adopt_task(
            call_id="c1",
            fence=7,
            agent="local",
            endpoint="default",
            server_id=1,
            downstream_id="x",
            ttl_ms=None,
            poll_ms=1,
        )


def test_one_agent_cannot_open_tasks_without_end(monkeypatch):
    monkeypatch.setattr(host_tasks, "MAX_OPEN", 2)
    adopted("c1")
    adopted("c2")
    with pytest.raises(QueueFullError):
        adopted("c3")
    assert held("c3").state == InvocationState.DISPATCHED
    assert HostTask.objects.count() == 2


def test_the_end_is_written_once_under_the_fence_and_told_in_the_audit_log():
    followed = adopted()
    result = {"content": [{"type": "text", "text": "x" * 100_000}]}
    assert remote_tasks.finish_task(
        followed=followed, state=InvocationState.SUCCEEDED, outcome={"result": result}
    )
    assert not remote_tasks.finish_task(
        followed=followed, state=InvocationState.UNKNOWN, code="LATE"
    )
    call = held("c1")
    assert (call.state, call.lease_until, call.error_code) == (InvocationState.SUCCEEDED, None, "")
    assert len(call.result) < 70_000 < call.result_bytes
    assert host_tasks.build_task_view(HostTask.objects.get())["result"] == result, (
        "the host gets the whole of it"
    )
    assert AuditEntry.objects.filter(subject="call:c1", kind="call.succeeded").count() == 1


def test_a_result_beyond_all_bounds_is_no_other_end_and_its_task_says_so(monkeypatch):
    """As of a plain call: it was made, and the record keeps a part."""
    monkeypatch.setattr(long_calls, "MAX_KEPT", 1_000)
    result = {"content": ["x" * 100_000]}
    remote_tasks.finish_task(
        followed=adopted(), state=InvocationState.SUCCEEDED, outcome={"result": result}
    )
    call = held("c1")
    assert (call.state, call.error_code) == (InvocationState.SUCCEEDED, "")
    assert len(call.result) < 70_000 < call.result_bytes
    view = host_tasks.build_task_view(HostTask.objects.get())
    assert view["result"]["isError"] is True
    assert "too large" in view["result"]["content"][0]["text"]


def test_of_two_that_take_over_one_wins_and_the_former_writes_nothing_more():
    before = adopted()
    later = NOW + remote_tasks.LEASE * 2
    assert remote_tasks.list_orphaned_tasks(NOW) == []
    assert remote_tasks.list_orphaned_tasks(later) == [before.task_id]
    after = remote_tasks.take_over_task(task_id=before.task_id, now=later)
    assert after is not None
    assert after.fence == before.fence + 1
    assert remote_tasks.take_over_task(task_id=before.task_id, now=later) is None
    assert remote_tasks.renew_task_leases([before], later) == {before.task_id}
    assert remote_tasks.renew_task_leases([after], later) == set()
    with pytest.raises(Lost):
        remote_tasks.record_task_status(followed=before, message="", requests={}, poll_ms=100)
    assert not remote_tasks.finish_task(followed=before, state=InvocationState.UNKNOWN)
    assert remote_tasks.finish_task(
        followed=after, state=InvocationState.SUCCEEDED, outcome={"result": {"content": []}}
    )


def test_the_reaper_leaves_remote_tasks_to_followers_for_a_while():
    adopted()
    assert reaping.reap_calls(NOW + remote_tasks.LEASE * 2) == 0
    assert reaping.reap_calls(NOW + remote_tasks.PATIENCE + remote_tasks.LEASE * 2) == 1
    assert held("c1").state == InvocationState.UNKNOWN


def test_a_task_on_stdio_dies_with_its_process():
    adopted(transport="stdio")
    assert remote_tasks.list_orphaned_tasks(NOW + remote_tasks.LEASE * 2) == []
    assert reaping.reap_calls(NOW + remote_tasks.LEASE * 2) == 1


def test_whoever_follows_a_task_that_only_the_clock_has_ended_follows_it_to_its_end():
    followed = adopted()
    late = NOW + remote_tasks.PATIENCE + remote_tasks.LEASE * 2
    assert reaping.reap_calls(late) == 1
    assert remote_tasks.renew_task_leases([followed], late) == set()
    remote_tasks.record_task_status(
        followed=followed, message="Half of it is done.", requests={}, poll_ms=500
    )
    assert remote_tasks.take_over_task(task_id=followed.task_id, now=late) is None, (
        "it has an end for everybody else"
    )
    assert remote_tasks.finish_task(
        followed=followed, state=InvocationState.SUCCEEDED, outcome={"result": {"content": []}}
    )
    assert (held("c1").state, remote_tasks.renew_task_leases([followed], late)) == (
        InvocationState.SUCCEEDED,
        {followed.task_id},
    )


ENDS = {
    "succeeded": (
        InvocationState.SUCCEEDED,
        "",
        {"result": {"content": [{"type": "text", "text": "42"}], "_meta": {"a": 1}}},
        "42",
    ),
    "the server's error": (
        InvocationState.TOOL_ERROR,
        "TOOL_CALL_FAILED",
        {"error": {"code": -1, "message": "no"}},
        "TOOL_CALL_FAILED",
    ),
    "not sent": (InvocationState.NOT_SENT, "CANCELLED", None, "NOT SENT (CANCELLED)"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_task_that_was_told_as_unknown_names_the_correction_and_keeps_its_final_status(case):
    state, code, outcome, words = ENDS[case]
    followed = adopted()
    late = NOW + remote_tasks.PATIENCE + remote_tasks.LEASE * 2
    host_tasks.withdraw_task(task_id=followed.task_id)
    assert reaping.reap_calls(late) == 1
    first = host_tasks.build_task_view(HostTask.objects.get())
    assert (first["status"], first["result"]["structuredContent"]["state"]) == (
        "completed",
        "unknown",
    )
    assert "OUTCOME UNKNOWN" in first["result"]["content"][0]["text"]
    assert remote_tasks.finish_task(
        followed=followed, state=state, code=code, reason="so it was", outcome=outcome
    )
    second = host_tasks.build_task_view(HostTask.objects.get())
    assert (second["status"], "error" in second) == ("completed", False)
    told, *rest = [item["text"] for item in second["result"]["content"]]
    assert "first reported as OUTCOME UNKNOWN" in told
    assert words in rest[0]
    assert second["result"]["_meta"]["slipsnisse/corrected"] == {"was": "unknown"}
    assert "result" not in host_tasks.build_task_handle(HostTask.objects.get())


def test_an_unknown_that_stays_unknown_corrects_nothing_that_was_told():
    followed = adopted()
    late = NOW + remote_tasks.PATIENCE + remote_tasks.LEASE * 2
    host_tasks.withdraw_task(task_id=followed.task_id)
    assert reaping.reap_calls(late) == 1
    assert remote_tasks.finish_task(
        followed=followed,
        state=InvocationState.UNKNOWN,
        code="CANCELLED",
        reason="It was withdrawn.",
    )
    view = host_tasks.build_task_view(HostTask.objects.get())
    assert (view["status"], view["result"]["structuredContent"]["state"]) == (
        "completed",
        "unknown",
    )
    assert "first reported as" not in str(view["result"])


def test_a_released_task_is_an_orphan_at_once():
    followed = adopted()
    remote_tasks.release_task(followed=followed, now=NOW)
    assert remote_tasks.list_orphaned_tasks(NOW) == [followed.task_id]


def test_answers_wait_for_the_server_and_their_questions_are_hidden():
    followed = adopted()
    remote_tasks.record_task_status(
        followed=followed,
        message="asks",
        requests={"a": {"method": "m"}, "b": {"method": "m"}},
        poll_ms=100,
    )
    assert host_tasks.build_task_view(HostTask.objects.get())["inputRequests"].keys() == {"a", "b"}
    assert not host_tasks.store_answers(task_id=followed.task_id, responses={"c": {}})
    assert host_tasks.store_answers(
        task_id=followed.task_id, responses={"a": {"action": "accept"}, "c": {}}
    )
    assert not host_tasks.store_answers(
        task_id=followed.task_id, responses={"a": {"action": "decline"}}
    )
    assert host_tasks.build_task_view(HostTask.objects.get())["inputRequests"].keys() == {"b"}
    assert remote_tasks.load_host_wishes([followed.task_id])[followed.task_id].responses == {
        "a": {"action": "accept"}
    }
    remote_tasks.record_passed_answers(task_id=followed.task_id, keys=["a"])
    assert remote_tasks.load_host_wishes([followed.task_id]) == {
        followed.task_id: HostRequest({}, cancel=False)
    }
    assert host_tasks.build_task_view(HostTask.objects.get())["inputRequests"].keys() == {"b"}


def test_a_change_that_hosts_can_see_raises_the_version_and_no_other_does():
    followed = adopted()

    def noted(message: str, **requests: dict) -> tuple:
        remote_tasks.record_task_status(
            followed=followed, message=message, requests=requests, poll_ms=500
        )
        return host_tasks.load_task_versions([followed.task_id])[followed.task_id]

    first = noted("at work")
    assert noted("at work") == first
    assert noted("nearly done") != first


def test_withdrawing_is_noted_once_and_not_after_the_end():
    followed = adopted()
    assert host_tasks.withdraw_task(task_id=followed.task_id)
    assert not host_tasks.withdraw_task(task_id=followed.task_id)
    assert remote_tasks.load_host_wishes([followed.task_id])[followed.task_id].cancel
    remote_tasks.finish_task(
        followed=followed,
        state=InvocationState.UNKNOWN,
        code="CANCELLED",
        reason="The caller cancelled it.",
    )
    assert host_tasks.build_task_view(HostTask.objects.get())["status"] == "cancelled"


def test_withdrawn_too_late_is_completed():
    followed = adopted()
    host_tasks.withdraw_task(task_id=followed.task_id)
    remote_tasks.finish_task(
        followed=followed, state=InvocationState.SUCCEEDED, outcome={"result": {"content": []}}
    )
    assert host_tasks.build_task_view(HostTask.objects.get())["status"] == "completed"


def test_a_host_is_noted_as_seen_at_most_once_a_second_and_only_while_its_call_is_held():
    for call_id, state in (("held", InvocationState.PENDING), ("out", InvocationState.DISPATCHED)):
        dispatched(call_id, state=state)
        host_tasks.create_task(
            call_id=call_id, agent="local", endpoint="default", ttl_ms=None, poll_ms=100
        )
    mine = HostTask.objects.get(call_id="held")
    out = HostTask.objects.get(call_id="out")
    for seconds in (0.0, 0.5, 0.9, 1.5):
        host_tasks.note_task_polls([mine.pk, out.pk], NOW + timedelta(seconds=seconds))
        mine.refresh_from_db()
        assert mine.seen_at == NOW + timedelta(seconds=0 if seconds < 1 else seconds)
    out.refresh_from_db()
    assert out.seen_at is None


def test_somebody_elses_is_not_found():
    followed = adopted()
    assert host_tasks.find_task(followed.task_id, agent="local", endpoint="default")
    assert host_tasks.find_task(followed.task_id, agent="eve", endpoint="default") is None
    assert host_tasks.find_task(followed.task_id, agent="local", endpoint="other") is None
    assert host_tasks.find_task("\x00nothing", agent="local", endpoint="default") is None


def test_a_task_is_kept_as_long_as_its_host_was_promised():
    Configuration.objects.filter(pk=1).update(keep_payloads_days=1, keep_calls_days=1)
    long_ago = NOW - timedelta(days=20)
    call = ended("held-long", received_at=long_ago, finished_at=NOW)
    host_tasks.create_task(
        call_id=call.pk, agent="local", endpoint="default", ttl_ms=1, poll_ms=100, now=long_ago
    )
    retention.prune(NOW + timedelta(hours=23))
    view = host_tasks.build_task_view(HostTask.objects.get())
    assert view["ttlMs"] > timedelta(days=20).total_seconds() * 1000
    assert view["status"] == "completed"
    retention.prune(NOW + timedelta(hours=25))
    assert not HostTask.objects.exists()


def test_results_of_servers_tasks_are_erased_in_time():
    Configuration.objects.filter(pk=1).update(keep_payloads_days=30, keep_calls_days=365)
    remote_tasks.finish_task(
        followed=adopted(),
        state=InvocationState.SUCCEEDED,
        outcome={"result": {"content": [], "secret": "x"}},
    )
    assert retention.prune(timezone.now() + timedelta(days=31))["tasks"] == 1
    view = host_tasks.build_task_view(HostTask.objects.get())
    assert "secret" not in str(view)
    assert "no longer stored" in view["result"]["content"][0]["text"]


def test_every_invariant_holds_after_all_of_it():
    remote_tasks.finish_task(
        followed=adopted("c1"), state=InvocationState.SUCCEEDED, outcome={"result": {"content": []}}
    )
    later = remote_tasks.take_over_task(
        task_id=adopted("c2").task_id, now=NOW + remote_tasks.LEASE * 2
    )
    assert later is not None
    remote_tasks.finish_task(
        followed=later,
        state=InvocationState.TOOL_ERROR,
        code="X",
        outcome={"error": {"code": 1, "message": "m"}},
    )
    found = {
        finding.rule: finding.examples
        for finding in calls.check_invariants(timezone.now(), strict=True)
    }
    assert {rule: examples for rule, examples in found.items() if examples} == {}
