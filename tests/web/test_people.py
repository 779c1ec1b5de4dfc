"""Two people at one queue, in real browsers: keys, live news, and what happens when both decide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals import votes
from tests.fakes.held import hold
from tests.fakes.seed import Site
from tests.waiting import eventually
from tests.web.conftest import answered
from tests.web.test_detail import state

pytestmark = [pytest.mark.web, pytest.mark.one_database]
WindowOf = Callable[..., Any]


def expect_tools(window: Any, *names: str) -> None:
    expect(window.locator(".sn-open-row")).to_have_text(list(names))


def until(window: Any, truth: str) -> None:
    """Wait for a JavaScript expression; Playwright's own way needs the ``eval`` that our pages
    forbid."""
    eventually(lambda: window.evaluate(truth))


def expect_here(window: Any, name: str) -> None:
    expect(window.locator(".sn-here .sn-open-row")).to_have_text(name)


def three(now: Any = None) -> tuple[ApprovalRequest, ApprovalRequest, ApprovalRequest]:
    """High, medium and low, in the order in which the queue shows them."""
    return (
        hold(tool="git_push", risk="high", arguments={"query": "origin main"}),
        hold(tool="git_commit", risk="medium", arguments={"query": "all"}),
        hold("time", "get_current_time", risk="low", arguments={"query": "Europe/Oslo"}),
    )


@pytest.mark.exhaustive
def test_both_see_the_queue_grow_and_shrink_without_reloading(window_of: WindowOf):
    ann = window_of("approver")
    bo = window_of("root")
    for window in (ann, bo):
        window.goto("/approvals/")
        window.get_by_text("Nothing is waiting").wait_for()
        expect(window).to_have_title("Approvals | Slipsnisse")
        window.evaluate("window.__same = true")
    held = hold()
    for window in (ann, bo):
        window.get_by_role("link", name="git_push").wait_for()
        until(window, "document.title.includes('(1) Approvals')")
        expect(window.locator("#announcer")).to_contain_text("1 new call is waiting")
    ann.get_by_role("link", name="git_push").click()
    ann.fill("#reason", "Not today.")
    ann.get_by_role("button", name="Reject").click()
    # first: it says so for ten seconds
    until(bo, "document.title.startsWith('approver rejected git_push')")
    bo.get_by_text("Nothing is waiting").wait_for()
    ann.wait_for_url("**/approvals/")
    expect(bo.locator("#announcer")).to_have_text("approver rejected git_push")
    assert bo.evaluate("window.__same") is True
    assert state(held) == InvocationState.REJECTED


@pytest.mark.exhaustive
def test_keys_move_open_and_never_fire_in_a_field(window_of: WindowOf):
    three()
    window = window_of("approver")
    window.goto("/approvals/")
    for key, expected in (
        ("j", "git_push"),
        ("j", "git_commit"),
        ("j", "get_current_time"),
        ("j", "get_current_time"),
        ("k", "git_commit"),
    ):
        window.keyboard.press(key)
        expect_here(window, expected)
    window.keyboard.press("/")
    window.keyboard.type("jkade?")
    expect(window.locator("#search")).to_have_value("jkade?")
    assert window.url.endswith("/approvals/")
    window.keyboard.press("Escape")
    window.keyboard.press("?")
    expect(window.locator("#keys")).to_be_visible()
    window.keyboard.press("j")
    expect_here(window, "git_commit")
    window.keyboard.press("Escape")
    window.keyboard.press("Enter")  # at once, while the closed dialog still has the focus
    window.wait_for_url("**/approvals/*/")
    expect(window.locator("h1")).to_contain_text("git_commit")
    window.keyboard.press("u")
    window.wait_for_url("**/approvals/")


@pytest.mark.exhaustive
def test_what_is_chosen_stays_chosen_when_the_list_is_renewed(window_of: WindowOf):
    _, second, _ = three()
    window = window_of("approver")
    window.goto("/approvals/")
    window.keyboard.press("j")
    window.keyboard.press("j")
    hold(tool="git_diff", risk="high")
    window.get_by_role("link", name="git_diff").wait_for()
    expect_here(window, "git_commit")
    expect(window.locator(f"#a{second.pk}")).to_be_focused()
    window.keyboard.press("j")
    expect_here(window, "get_current_time")


@pytest.mark.exhaustive
def test_approving_by_keyboard(window_of: WindowOf):
    _, medium, _ = three()
    window = window_of("approver")
    window.goto("/approvals/")
    window.keyboard.press("j")
    window.keyboard.press("j")
    window.keyboard.press("a")
    window.wait_for_url("**/approvals/*/#to-approve")
    until(window, "document.activeElement.id === 'approve'")
    assert state(medium) == InvocationState.PENDING
    window.keyboard.press("Enter")
    window.get_by_text("Approved git_commit").wait_for()
    assert state(medium) == InvocationState.READY


@pytest.mark.exhaustive
def test_a_risky_call_is_not_approved_by_two_keys(window_of: WindowOf):
    high, _, _ = three()
    window = window_of("approver")
    window.goto("/approvals/")
    window.keyboard.press("j")
    window.keyboard.press("a")
    window.wait_for_url("**/approvals/*/#*")
    until(window, "document.activeElement.id === 'reason'")
    window.keyboard.press("Enter")
    window.keyboard.type("checked with Kim")
    assert state(high) == InvocationState.PENDING
    window.keyboard.press("Control+Enter")
    window.get_by_text("Approved git_push").wait_for()
    vote = ApprovalRequest.objects.get(pk=high.pk).votes.get()
    assert (vote.approve, vote.reason) == (True, "checked with Kim")


@pytest.mark.exhaustive
def test_denying_by_keyboard_needs_a_reason(window_of: WindowOf):
    high, _, _ = three()
    window = window_of("approver")
    window.goto("/approvals/")
    window.keyboard.press("j")
    window.keyboard.press("r")
    window.wait_for_url("**/approvals/*/#*")
    until(window, "document.activeElement.id === 'reason'")
    window.keyboard.press("Control+Enter")
    answered(window, "A reason is required to reject a call.")
    expect(window.locator("#reason")).to_have_attribute("aria-invalid", "true")
    window.keyboard.press("r")
    window.keyboard.type("wrong branch")
    window.keyboard.press("Control+Enter")
    window.get_by_text("Rejected git_push").wait_for()
    assert "wrong branch" in ApprovalRequest.objects.get(pk=high.pk).call.reason


@pytest.mark.exhaustive
def test_editing_by_keyboard(window_of: WindowOf):
    high, _, _ = three()
    window = window_of("approver")
    window.goto("/approvals/")
    window.keyboard.press("j")
    window.keyboard.press("e")
    window.wait_for_url("**/approvals/*/#to-edit")
    until(window, "document.activeElement.id === 'edited'")
    assert json.loads(window.input_value("#edited")) == {"query": "origin main"}
    window.keyboard.press("Control+A")
    window.keyboard.type('{"query": 5}')
    window.locator("#preview").get_by_text("/query").wait_for()
    window.keyboard.press("Control+A")
    window.keyboard.type('{"query": "origin review"}')
    window.locator("#preview").get_by_text("origin review").wait_for()
    assert state(high) == InvocationState.PENDING
    window.keyboard.press("Control+Enter")
    window.get_by_text("with your changes").wait_for()
    assert ApprovalRequest.objects.get(pk=high.pk).edited == '{"query":"origin review"}'


@pytest.mark.exhaustive
def test_an_open_call_that_somebody_else_decides_says_so_and_keeps_what_was_typed(
    window_of: WindowOf, crowd: Site
):
    held = hold()
    window = window_of("approver")
    window.goto(f"/approvals/{held.pk}/")
    window.fill("#reason", "half a thought")
    votes.vote(
        request_id=held.pk, user=crowd.people["root"], approve=False, reason="No.", via="web"
    )
    # first: it says so for ten seconds
    until(window, "document.title.startsWith('Rejected by root.')")
    window.locator("#status").get_by_text("Rejected by root.").wait_for()
    expect(window.locator("#approve")).to_be_disabled()
    expect(window.locator("#reason")).to_have_value("half a thought")


@pytest.mark.exhaustive
def test_two_who_press_at_once_one_decides_and_the_other_is_told(window_of: WindowOf):
    held = hold()
    ann = window_of("approver")
    bo = window_of("root")
    for window in (ann, bo):
        window.route("**/live/*", lambda route: route.abort())  # neither is warned by the poll
        window.goto(f"/approvals/{held.pk}/")
    ann.get_by_role("button", name="Approve call").click()
    ann.get_by_text("Approved git_push").wait_for()
    bo.fill("#reason", "no")
    bo.get_by_role("button", name="Reject").click()
    bo.get_by_text("Your decision was not saved").wait_for()
    expect(bo.locator("#problem")).to_contain_text("approver already approved this call")
    assert state(held) == InvocationState.READY


@pytest.mark.exhaustive
def test_the_countdown_runs_to_zero_by_the_servers_clock(window_of: WindowOf):
    held = hold(at=timezone.now() - timedelta(seconds=56), decide_seconds=60)
    window = window_of("viewer")
    window.goto("/approvals/")
    clock = window.locator(f"#r{held.pk} time")
    assert clock.inner_text() in ("0:04", "0:03", "0:02", "0:01", "0:00", "expired")
    until(window, f"document.querySelector('#r{held.pk} time')?.textContent === 'expired'")
    later = hold(decide_seconds=3 * 3600)
    expect(window.locator(f"#r{later.pk} time")).to_have_text(
        re.compile("^(2 h 59 min|3 h 0 min)$")
    )


@pytest.mark.exhaustive
def test_a_renewed_list_is_never_seen_without_its_times(window_of: WindowOf):
    window = window_of("viewer")
    hold()
    window.goto("/approvals/")
    window.evaluate("""() => {
        window.seen = [];
        new MutationObserver(() => window.seen.push(...[...document.querySelectorAll('.sn-row time')].map((t) => t.textContent)))
            .observe(document.body, { childList: true, subtree: true });
    }""")
    later = hold(tool="git_log")
    window.locator(f"#r{later.pk}").wait_for()
    assert len(seen := window.evaluate("window.seen")) >= 2
    assert "" not in seen


@pytest.mark.exhaustive
def test_sound_is_off_until_it_is_switched_on(window_of: WindowOf):
    window = window_of("viewer")
    window.add_init_script(
        "window.beeps = 0; const A = window.AudioContext;"
        "window.AudioContext = class extends A { createOscillator() { window.beeps++; return super.createOscillator(); } }"
    )
    window.goto("/approvals/")
    hold()
    window.locator(".sn-row").first.wait_for()
    assert window.evaluate("window.beeps") == 0
    window.click("#sound")
    expect(window.locator("#sound")).to_have_attribute("aria-pressed", "true")
    before = window.evaluate("window.beeps")
    hold(tool="git_log", risk="low")
    until(window, f"window.beeps > {before}")


@pytest.mark.exhaustive
def test_a_site_that_does_not_answer_is_said_to_be_away(window_of: WindowOf):
    window = window_of("viewer")
    window.goto("/approvals/")
    window.context.set_offline(True)
    window.locator("#offline").wait_for()
    window.context.set_offline(False)
    window.locator("#offline").wait_for(state="hidden")


@pytest.mark.exhaustive
def test_filters_apply_as_soon_as_they_are_chosen(window_of: WindowOf):
    three()
    window = window_of("viewer")
    window.goto("/approvals/")
    window.select_option("select[name=risk]", "low")
    window.wait_for_url("**risk=low**")
    expect_tools(window, "get_current_time")
    hold(tool="git_diff", risk="high")
    hold(tool="git_log", risk="low")
    window.get_by_role("link", name="git_log").wait_for()
    expect_tools(window, "get_current_time", "git_log")


@pytest.mark.exhaustive
def test_a_call_leaves_a_second_approver_an_open_form(window_of: WindowOf, crowd: Site):
    held = hold(quorum=2)
    window = window_of("approver")
    window.goto(f"/approvals/{held.pk}/")
    window.fill("#reason", "I agree")
    votes.vote(request_id=held.pk, user=crowd.people["root"], approve=True, via="web")
    window.get_by_text("1 of 2 approvals").wait_for()
    expect(window.locator("#reason")).to_have_value("I agree")
    window.click("#approve")
    window.get_by_text("Approved git_push").wait_for()
    eventually(lambda: state(held) == InvocationState.READY)
