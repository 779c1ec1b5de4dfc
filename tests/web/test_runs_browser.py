"""The page of a run in a real browser: it lives while the run does, foreign texts stay texts,
people steer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from mcpregistry.domain.text.canonical import clean_text
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import Attempt, ExpertTool, LanguageModel, Provider, Run, ToolCall, Turn
from subagents.services import experts, runs
from tests.fakes.hostile import POLYGLOTS
from tests.fakes.seed import Site

pytestmark = [pytest.mark.web, pytest.mark.one_database]
WindowOf = Callable[..., Any]


@pytest.fixture
def run(crowd: Site, monkeypatch: pytest.MonkeyPatch) -> Run:
    """It has asked for two calls, of which nobody knows the outcome."""
    monkeypatch.setattr(runs, "wake", lambda run_id: None)
    model = LanguageModel.objects.create(
        provider=Provider.objects.create(slug="s", kind="scripted"), name="m"
    )
    experts.save_expert(
        expert=ExpertTool(name="digest", description="d"), targets=[model], actor="test"
    )
    run = runs.start(expert="digest", arguments={}, origin="rest")
    Run.objects.filter(pk=run.pk).update(state=RunState.RUNNING, started_at=timezone.now())
    turn(run, 1, "I will push both.")
    for index in range(2):
        call(run, index, f"git__push_{index}")
    return run


def turn(run: Run, number: int, text: str, model: str = "s/m") -> None:
    Turn.objects.create(
        run=run,
        number=number,
        model_name=model,
        text=text,
        finish="calls",
        started_at=timezone.now(),
        duration_ms=5,
    )


def call(
    run: Run, index: int, name: str, state: CallState = CallState.UNKNOWN, text: str = "{}"
) -> None:
    now = timezone.now()
    ToolCall.objects.create(
        run=run,
        turn_number=1,
        index=index,
        provider_id="c",
        name=name,
        arguments=text,
        state=state,
        result=text,
        started_at=now,
        finished_at=now,
    )


def page(run: Run) -> str:
    return f"/admin/subagents/run/{run.pk}/change/"


@pytest.mark.exhaustive
def test_it_lives_while_the_run_does_and_shows_its_end(window_of: WindowOf, run: Run) -> None:
    window = window_of("viewer")
    window.goto(page(run))
    window.evaluate("window.__same = true")
    turn(run, 2, "Now I know enough.")
    window.get_by_text("Now I know enough.").wait_for()
    assert window.evaluate("window.__same"), (
        "the page was loaded anew instead of brought up to date"
    )
    Run.objects.filter(pk=run.pk).update(
        state=RunState.DONE, exit=Exit.ANSWER, answer="Both are pushed.", finished_at=timezone.now()
    )
    window.locator("#answer", has_text="Both are pushed.").wait_for()
    window.locator("#timeline:not([data-live])").wait_for()
    # Two turns and two calls, each with its place in the run's time.
    expect(window.locator(".sn-span")).to_have_count(4)


@pytest.mark.exhaustive
def test_each_unknown_call_is_settled_by_itself_and_the_run_is_cancelled(
    window_of: WindowOf, run: Run
) -> None:
    window = window_of("operator")
    window.goto(page(run))
    second = window.locator("#steps tr", has_text="git__push_1")
    window.get_by_label("Note about the call with the unknown outcome").fill(
        "It is in the remote's log."
    )
    turn(run, 2, "Meanwhile.")  # the page is brought up to date, and what was typed stays
    window.get_by_text("Meanwhile.").wait_for()
    # the model has gone on
    expect(second.get_by_role("button", name="Repeat the call")).to_have_count(0)
    second.get_by_role("button", name="Record that it took effect").click()
    window.get_by_text("git__push_1: recorded as done").wait_for()
    assert list(ToolCall.objects.order_by("index").values_list("state", "settled_by")) == [
        (CallState.UNKNOWN, ""),
        (CallState.DONE, "user:operator"),
    ]
    assert "It is in the remote's log." in ToolCall.objects.get(index=1).result
    expect(window.locator("#settle")).to_be_visible()
    window.get_by_role("button", name="Cancel").click()
    window.get_by_text("Cancellation was requested.").wait_for()
    assert Run.objects.get().cancel_requested


@pytest.mark.exhaustive
def test_a_comparison_is_brought_up_to_date_while_the_other_run_goes_on(
    window_of: WindowOf, run: Run
) -> None:
    def end(which: Run, answer: str) -> None:
        ended = {
            "state": RunState.DONE,
            "exit": Exit.ANSWER,
            "answer": answer,
            "finished_at": timezone.now(),
        }
        Run.objects.filter(pk=which.pk).update(**ended)

    end(run, "Both are pushed.")
    again = runs.start(expert="digest", arguments={}, origin="admin", replay_of=run.pk)
    window = window_of("viewer")
    window.goto(page(run))
    row = window.locator("#compared tr", has=window.locator(f"a[href*='{again.pk}']"))
    expect(row).to_contain_text("…")
    turn(again, 1, "Let me see.")
    expect(row).to_contain_text("s/m")
    end(again, "Neither is pushed.")
    expect(window.locator("#compared .sn-reworded ins")).to_have_text(["Neither", "is"])
    expect(window.locator("#compared [data-live]")).to_have_count(0)


@pytest.mark.exhaustive
@pytest.mark.attack
@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_texts_of_models_and_tools_never_run_and_never_break_the_page(
    window_of: WindowOf, run: Run, width: int
) -> None:
    assert len(POLYGLOTS) >= 25
    for number, text in enumerate(map(clean_text, POLYGLOTS), start=2):
        turn(run, number, text, model=clean_text(text, 300))
        call(run, number, clean_text(text, 500), CallState.DONE, text)
        Attempt.objects.create(
            run=run,
            turn_number=number,
            model_name=clean_text(text, 300),
            trouble="overloaded",
            message=text,
            at=timezone.now(),
            duration_ms=1,
        )
    window = window_of("operator", viewport={"width": width, "height": 800})
    for ended in (False, True):
        if ended:
            # the page of a living run would load itself anew now, beside our going there
            window.goto("about:blank")
            Run.objects.filter(pk=run.pk).update(
                state=RunState.FAILED,
                exit=Exit.MODEL,
                error=POLYGLOTS[0],
                answer="\n".join(map(clean_text, POLYGLOTS)),
                finished_at=timezone.now(),
            )
        assert window.goto(f"{page(run)}?raw=1").status == 200
        if not ended:
            turn(run, 100, "The live part is put in.")
            window.get_by_text("The live part is put in.").first.wait_for()
        assert window.evaluate("window.__x") is None
        assert not any(
            hidden in window.evaluate("document.body.innerText")
            for hidden in "\x1b\u202e\u200b\U000e0041"
        )
        assert (
            window.evaluate(
                "document.querySelectorAll('#timeline :is(img, svg, script, iframe, form, base)').length"
            )
            == 0
        )
        assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
