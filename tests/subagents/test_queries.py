"""What pages and programs read of expert tools: whether their answers were enough."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import Invocation
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import ExpertTool, LanguageModel, Run, ToolCall
from subagents.queries import compute_expert_figures
from subagents.services import experts, runs
from tests.services.rows import ended
from tests.subagents.admin.test_pages import client_as
from tests.subagents.kit import ready_provider

NOW = timezone.now() - timedelta(hours=2)
HOST = {
    "agent_slug": "ann",
    "endpoint_slug": "default",
    "origin": "stdio",
    "host_name": "claude",
    "writer": "runmcp:1",
}


class Asked:
    """An expert tool that callers have asked, and what they did after that."""

    def __init__(self) -> None:
        provider = ready_provider("acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
        model = LanguageModel.objects.create(provider=provider, name="small")
        self.expert = experts.save_expert(
            expert=ExpertTool(name="digest", description="d"), targets=[model], actor="test"
        )
        self._made = 0

    def answered(self, *servers: str, **facts: Any) -> Run:
        """A run that used these servers; its call has ended at NOW."""
        call = self.called(
            "expert", after=timedelta(seconds=-30), finished_at=NOW, tool_name="digest"
        )
        run = runs.start(
            expert="digest",
            arguments={},
            origin="call",
            caller="ann",
            endpoint="default",
            call_id=call.pk,
        )
        done = {"state": RunState.DONE, "exit": Exit.ANSWER, "finished_at": NOW} | facts
        Run.objects.filter(pk=run.pk).update(**done)
        for index, server in enumerate(servers):
            inner = {
                "agent_slug": "expert.digest",
                "endpoint_slug": "",
                "origin": "run",
                "request_id": run.pk,
            }
            made = self.called(server, after=timedelta(seconds=-10), **inner)
            ToolCall.objects.create(
                run=run,
                turn_number=1,
                index=index,
                name="x",
                state=CallState.DONE,
                invocation=made.pk,
            )
        return run

    def called(
        self, server: str, *, after: timedelta = timedelta(minutes=1), **facts: Any
    ) -> Invocation:
        """A call that began so long after NOW, by the same caller unless said otherwise."""
        self._made += 1
        at = NOW + after
        times = {"received_at": at, "dispatched_at": at, "finished_at": at}
        return ended(f"{self._made:032x}", server_slug=server, **HOST | times | facts)

    @property
    def figures(self) -> tuple[int, int]:
        found = compute_expert_figures(self.expert)
        return found["gone_itself"], found["given"]


@pytest.fixture
def asked(db: None, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(runs, "wake", lambda run_id: None)
    return Asked()


def test_a_caller_that_goes_to_the_same_server_itself_had_no_good_answer(asked: Asked) -> None:
    asked.answered("git", "time")
    asked.answered("files")
    assert asked.figures == (0, 2)
    asked.called("git")
    asked.called("git", after=timedelta(minutes=2))  # it counts once
    assert asked.figures == (1, 2)


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    "facts",
    [
        {"server": "files"},
        {"after": timedelta(minutes=11)},
        {"after": timedelta(seconds=-20)},
        {"agent_slug": "bob"},
        {"endpoint_slug": "other"},
        {"host_name": "cursor"},
        {"origin": "run"},
        {"writer": "runmcp:2"},  # another window of the same host
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_what_others_do_or_the_caller_much_later_or_before_says_nothing(
    asked: Asked, facts: dict[str, Any]
) -> None:
    asked.answered("git")
    asked.called(**{"server": "git"} | facts)
    assert asked.figures == (0, 1)


def test_over_http_any_process_may_take_the_next_call(asked: Asked) -> None:
    run = asked.answered("git")
    Invocation.objects.filter(pk=run.call_id).update(origin="http")
    asked.called("git", origin="http", writer="web:2")
    assert asked.figures == (1, 1)


def test_only_answers_to_callers_count(asked: Asked) -> None:
    outer = asked.answered("git", "expert")
    asked.answered("git", state=RunState.FAILED, exit=Exit.AUTH)
    asked.answered("git", parent=outer)
    Run.objects.filter(pk=asked.answered("git").pk).update(call_id="")  # from a command
    # to the server that was called
    Run.objects.filter(pk=asked.answered("git").pk).update(origin=runs.SAMPLING)
    asked.called("expert")  # another question to an expert tool
    assert asked.figures == (0, 1)
    asked.called("git")
    assert asked.figures == (1, 1)


def test_it_is_told_on_the_tools_page_and_in_rest_in_no_more_questions(
    asked: Asked, django_assert_max_num_queries: Any
) -> None:
    viewer = client_as("viewer")
    page = f"/admin/subagents/experttool/{asked.expert.pk}/change/"
    for _ in range(3):
        asked.answered("git")
    assert "called the same servers directly" not in viewer.get(page).content.decode()
    asked.called("git", agent_slug="ann")
    assert (
        "After 3 of 3 answers, the caller called the same servers directly."
        in viewer.get(page).content.decode()
    )
    figures = viewer.get("/api/v1/experts/digest").json()["figures"]
    assert (figures["gone_itself"], figures["given"]) == (3, 3)
    with django_assert_max_num_queries(5):
        compute_expert_figures(asked.expert)
