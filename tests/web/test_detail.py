"""One held call without a browser: what is shown of it, and that a decision counts once, by those
who may."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from mcpregistry.domain.calls.arguments import hash_stored_text
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    ApprovalVote,
    AuditEntry,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    Tool,
    ToolUsage,
)
from mcpregistry.services.approvals import requests, votes
from mcpregistry.services.servers import lifecycle
from mcpregistry.web.approvals import form_tokens
from tests.fakes.held import decided, ended, hold
from tests.fakes.seed import ACTOR, Site
from tests.web.conftest import ClientOf
from tests.web.test_queue import seen, token

pytestmark = pytest.mark.one_database


def address(held: ApprovalRequest) -> str:
    return f"/approvals/{held.pk}/"


def decide(client: Client, held: ApprovalRequest, do: str, *, at: str = "", **form: Any) -> Any:
    """Open the page and press the button; ``token`` may be given instead of read."""
    where = at or address(held)
    data = {"token": token(seen(client, where))} | form | {"do": do}
    return client.post(where, data)


def state(held: ApprovalRequest) -> str:
    return ApprovalRequest.objects.select_related("call").get(pk=held.pk).call.state


def plain(html: str) -> str:
    """The text of a page, tags and runs of white space taken out."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest.mark.attack
def test_who_asked_is_named_and_gets_no_form(client_of: ClientOf):
    held = hold()
    client = client_of("approver")
    asked = User.objects.get(pk=client.session["_auth_user_id"])
    Invocation.objects.filter(pk=held.call_id).update(
        requester=asked.username, requester_id=asked.pk
    )
    page = seen(client, address(held))
    assert f"<strong>{asked.username}</strong>, as agent <strong>local</strong>" in page
    assert "You requested this call, so another approver must decide." in plain(page)
    assert 'name="do"' not in page
    forged = form_tokens.sign(
        form_tokens.FormRendering({held.pk: requests.hash_current_arguments(held)}, True), asked
    )
    assert client.post(address(held), {"token": forged, "do": "approve"}).status_code == 403
    assert state(held) == InvocationState.PENDING


def test_the_facts_come_from_the_stored_record(client_of: ClientOf):
    rule = PolicyRule.objects.create(name="Pushes", condition='tool.name == "git_push"', quorum=2)
    held = hold(
        arguments={"query": "origin main", "force": True}, rule=rule, quorum=2, said="Trust me."
    )
    page = plain(seen(client_of("approver"), address(held)))
    for fact in (
        "git_push",
        "git__git_push",
        "uvx mcp-server-git==2025.9.25 --repository /srv/project",
        "local",
        "claude-code",
        "endpoint default",
        "high",
        "Pushes",
        "tool.name == &quot;git_push&quot;",
        "0 of 2 approvals",
        "origin main",
        hash_stored_text(held.call.arguments),
        f"{len(held.call.arguments)} characters",
        "not estimated",
        "Trust me.",
    ):
        # Words of a command stand apart in the page.
        assert fact in page, fact
    assert page.index(hash_stored_text(held.call.arguments)) < page.index("Trust me.")


def test_an_operators_estimate_of_energy_and_cost_is_shown_as_one(client_of: ClientOf):
    held = hold()
    Tool.objects.filter(name=held.call.tool_name).update(call_energy=2.5, call_cost="0.003")
    page = plain(seen(client_of("approver"), address(held)))
    assert "about 2.50 units (estimated by an operator)" in page
    assert "$0.003 (an operator's estimate)" in page


def test_the_energy_of_a_call_is_estimated_by_what_its_tool_took(client_of: ClientOf):
    held = hold()
    assert "(from its definition)" in plain(seen(client_of("approver"), address(held)))
    tool = Tool.objects.get(name=held.call.tool_name, server__slug=held.call.server_slug)
    ToolUsage.objects.create(
        tool=tool,
        calls=195,
        seconds=10.0,
        length=10,
        median=9.0,
        p95=12.0,
        counted_at=timezone.now(),
    )
    detail, queue = (
        plain(seen(client_of("approver"), where)) for where in (address(held), "/approvals/")
    )
    assert "(from its last 195 calls)" in detail
    found = [
        re.search(sign, page)
        for sign, page in ((r"about ([0-9.]+) units", detail), (r"≈ ([0-9.]+) energy", queue))
    ]
    assert [19 < float(each[1]) < 20 for each in found if each] == [True, True], (
        "nearly 2 units for each of 10 seconds"
    )


def test_the_address_of_a_remote_server_is_shown(client_of: ClientOf):
    assert "https://api.githubcopilot.com/mcp/" in seen(
        client_of("viewer"), address(hold("github", "create_issue"))
    )


@pytest.mark.exhaustive
@pytest.mark.both_databases
def test_arguments_are_compared_with_the_last_approved_call_of_the_tool(
    client_of: ClientOf, people: Site
):
    hour = timezone.now() - timedelta(hours=1)
    for agent, branch in (("ci", "theirs"), ("local", "ours")):
        before = hold(
            arguments={"branch": branch, "same": 1, "gone": True, "query": "q"},
            agent=agent,
            at=hour,
        )
        decided(before, people.people["approver"], at=hour + timedelta(seconds=5))
        ended(before)
    rejected = hold(arguments={"branch": "never", "query": "q"}, at=hour)
    decided(rejected, people.people["approver"], approve=False, reason="no", at=hour)
    page = plain(
        seen(
            client_of("approver"),
            address(hold(arguments={"branch": "main", "same": 1, "query": "q"})),
        )
    )
    assert "- ours + main" in page
    assert "missing this time" in page
    assert page.count("same as last time") == 2
    assert "never" not in page
    foreign = plain(
        seen(
            client_of("approver"),
            address(hold(arguments={"branch": "x", "query": "q"}, agent="research")),
        )
    )
    assert "by another agent" in foreign


@pytest.mark.both_databases
def test_an_approval_runs_the_call_and_is_counted_once(client_of: ClientOf, woken: list[Any]):
    held = hold(waiting_as="task")
    client = client_of("approver")
    used = token(seen(client, address(held)))
    answer = client.post(
        address(held), {"token": used, "do": "approve", "reason": "fine"}, follow=True
    )
    assert "Approved git_push" in answer.content.decode()
    assert state(held) == InvocationState.READY
    vote = ApprovalVote.objects.get()
    assert (vote.name, vote.approve, vote.reason, vote.via) == ("approver", True, "fine", "web")
    again = client.post(address(held), {"token": used, "do": "deny", "reason": "no"})
    assert again.status_code == 409
    assert "Your decision was not saved" in again.content.decode()
    assert ApprovalVote.objects.count() == 1
    assert state(held) == InvocationState.READY


def test_a_rejection_needs_a_reason_and_gives_it_to_the_agent(client_of: ClientOf):
    held = hold()
    client = client_of("approver")
    answer = decide(client, held, "deny", reason="  ")
    assert answer.status_code == 422
    assert "A reason is required to reject a call" in answer.content.decode()
    assert state(held) == InvocationState.PENDING
    decide(client, held, "deny", reason="Not on Fridays.")
    assert state(held) == InvocationState.REJECTED
    assert "Not on Fridays" in ApprovalRequest.objects.get(pk=held.pk).call.reason


@pytest.mark.both_databases
def test_who_comes_second_is_told_who_was_first(client_of: ClientOf):
    held = hold()
    second = client_of("approver")
    shown = token(seen(second, address(held)))
    decide(client_of("root"), held, "deny", reason="mine")
    answer = second.post(address(held), {"token": shown, "do": "approve"})
    assert answer.status_code == 409
    text = plain(answer.content.decode())
    assert "root already rejected this call" in text
    assert "Rejected by root" in text
    assert 'id="decision"' not in answer.content.decode()


def test_a_form_shown_before_an_edit_does_not_approve_the_edit(client_of: ClientOf, people: Site):
    held = hold(arguments={"query": "main"}, quorum=2)
    second = client_of("approver")
    shown = token(seen(second, address(held)))
    votes.vote(
        request_id=held.pk,
        user=people.people["root"],
        approve=True,
        arguments={"query": "evil"},
        via="web",
    )
    answer = second.post(address(held), {"token": shown, "do": "approve"})
    assert answer.status_code == 409
    page = plain(answer.content.decode())
    assert "evil" in page
    assert "compared with the agent's original request" in page
    assert state(held) == InvocationState.PENDING
    assert decide(second, held, "approve").status_code == 302
    assert state(held) == InvocationState.READY


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("bad", ["", "forged", "a:b:c"])
def test_a_token_that_is_not_ours_decides_nothing(client_of: ClientOf, bad: str):
    held = hold()
    assert (
        client_of("approver").post(address(held), {"token": bad, "do": "approve"}).status_code
        == 409
    )
    assert state(held) == InvocationState.PENDING


def test_a_token_is_for_one_person_and_one_call(client_of: ClientOf):
    held = hold()
    other = hold()
    client = client_of("approver")
    theirs = token(seen(client_of("root"), address(held)))
    assert client.post(address(held), {"token": theirs, "do": "approve"}).status_code == 409
    elsewhere = token(seen(client, address(other)))
    assert client.post(address(held), {"token": elsewhere, "do": "approve"}).status_code == 409
    assert ApprovalVote.objects.count() == 0


def test_a_form_without_its_csrf_token_is_refused(people: Site):
    held = hold()
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.people["approver"])
    shown = token(seen(client, address(held)))
    assert client.post(address(held), {"token": shown, "do": "approve"}).status_code == 403
    assert state(held) == InvocationState.PENDING


def test_an_edit_is_checked_kept_and_told(client_of: ClientOf):
    held = hold(arguments={"query": "main"})
    client = client_of("approver")
    for typed, problem in (
        ('{"query": ', "line 1, column"),
        ('{"query": 7}', "/query"),
        ("[]", "object"),
        ('{"query": NaN}', "JSON cannot represent"),
    ):
        answer = decide(client, held, "edit", arguments=typed)
        assert answer.status_code == 422
        assert problem in answer.content.decode()
        assert typed.replace('"', "&quot;") in answer.content.decode()
        assert state(held) == InvocationState.PENDING
    assert decide(client, held, "edit", arguments='{\n  "query": "develop"\n}').status_code == 302
    after = ApprovalRequest.objects.select_related("call").get(pk=held.pk)
    assert (after.edited, after.call.state) == ('{"query":"develop"}', InvocationState.READY)
    assert "compared with the agent's original request" in seen(client, address(held))


def test_a_preview_says_what_an_edit_would_change_and_stores_nothing(client_of: ClientOf):
    held = hold(arguments={"query": "main"})
    client = client_of("approver")
    where = f"{address(held)}preview/"
    good = plain(client.post(where, {"arguments": '{"query": "develop"}'}).content.decode())
    assert "- main + develop" in good
    bad = client.post(where, {"arguments": '{"query": 1}'}).content.decode()
    assert "/query" in bad
    assert (
        "You have not changed anything yet"
        in client.post(where, {"arguments": '{"query":"main"}'}).content.decode()
    )
    row = ApprovalRequest.objects.select_related("call").get(pk=held.pk)
    assert (row.edited, row.call.arguments) == ("", '{"query":"main"}')


@pytest.mark.both_databases
def test_what_cannot_be_seen_is_named_and_an_editor_keeps_it(client_of: ClientOf):
    text = "pay\u202eeno\u200b\x1b[2J\U000e0041"
    held = hold(arguments={"query": text})
    client = client_of("approver")
    page = seen(client, address(held))
    for sign in ("\u202e", "\u200b", "\x1b", "\U000e0041"):
        assert sign not in page
    assert "pay⟦U+202E⟧eno⟦U+200B⟧⟦ESC⟧[2J⟦U+E0041⟧" in page
    editor = re.search(r'id="edited"[^>]*>([^<]*)<', page)
    assert editor is not None
    assert json.loads(editor[1].replace("&quot;", '"')) == {"query": text}


def test_huge_arguments_are_folded_and_only_whole_ones_can_be_approved(client_of: ClientOf):
    held = hold(arguments={"query": "x", "more": "A" * 60_000 + "THE-END"})
    client = client_of("approver")
    folded = seen(client, address(held))
    assert "THE-END" not in folded
    assert "Show all" in folded
    answer = client.post(address(held), {"token": token(folded), "do": "approve"})
    assert answer.status_code == 409
    assert "not seen all of the arguments" in plain(answer.content.decode())
    assert state(held) == InvocationState.PENDING
    whole = f"{address(held)}?all=1"
    assert "THE-END" in seen(client, whole)
    assert decide(client, held, "approve", at=whole).status_code == 302
    assert state(held) == InvocationState.READY


def test_folded_arguments_may_be_denied(client_of: ClientOf):
    held = hold(arguments={"query": "x", "more": "A" * 60_000})
    decide(client_of("approver"), held, "deny", reason="too much")
    assert state(held) == InvocationState.REJECTED


def test_similar_calls_are_allowed_as_narrowly_as_ticked(client_of: ClientOf):
    held = hold(arguments={"branch": "main", "query": "q"})
    client = client_of("approver")
    form = {"permit": "on", "pin": ["0"], "lasts": "60", "uses": "3"}
    assert decide(client, held, "approve", **form).status_code == 302
    permit = Permit.objects.get()
    assert (permit.argument_pins, permit.uses_left, permit.agent.slug) == (
        {"branch": "main"},
        3,
        "local",
    )
    assert timedelta(minutes=59) < permit.expires_at - timezone.now() <= timedelta(minutes=61)


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    "form",
    [
        {"lasts": "999999"},
        {"uses": "0"},
        {"uses": "-1"},
        {"uses": "many"},
        {"pin": ["7"]},
        {"pin": ["branch"]},
    ],
)
def test_a_permit_that_is_not_one_of_ours_is_refused(client_of: ClientOf, form: dict[str, Any]):
    held = hold(arguments={"branch": "main", "query": "q"})
    whole = {"permit": "on", "pin": ["0"], "lasts": "60", "uses": "3"} | form
    assert decide(client_of("approver"), held, "approve", **whole).status_code == 422
    assert (Permit.objects.count(), state(held)) == (0, InvocationState.PENDING)


def test_who_may_not_decide_is_told_why(client_of: ClientOf, people: Site):
    mine = hold(agent="ci")
    Agent.objects.filter(slug="ci").update(owner=people.people["approver"])
    assert "another approver must decide" in seen(client_of("approver"), address(mine))
    group = Group.objects.create(name="owners of git")
    grouped = hold(group_id=group.pk)
    page = seen(client_of("approver"), address(grouped))
    assert "owners of git" in page
    assert 'id="decision"' not in page
    # And pressing a button that was not offered does not help.
    shown = token(seen(client_of("approver"), address(hold())))
    assert (
        client_of("approver").post(address(grouped), {"token": shown, "do": "approve"}).status_code
        == 409
    )
    assert ApprovalVote.objects.count() == 0


def test_a_viewer_who_forges_the_form_is_refused(client_of: ClientOf, people: Site):
    held = hold()
    viewer = client_of("viewer")
    rendering = form_tokens.FormRendering({held.pk: requests.hash_current_arguments(held)})
    signed = form_tokens.sign(rendering, people.people["viewer"])
    answer = viewer.post(address(held), {"token": signed, "do": "approve"})
    assert answer.status_code == 403
    assert "for the approver role" in answer.content.decode()
    assert state(held) == InvocationState.PENDING


def test_what_has_changed_since_the_call_was_asked_for_is_said_above_all(client_of: ClientOf):
    held = hold()
    client = client_of("approver")
    server = Server.objects.get(slug="git")
    server.command = ["uvx", "something-else"]
    lifecycle.save_server(server=server, actor=ACTOR)
    page = plain(seen(client, address(held)))
    assert "settings were changed after this call was requested" in page
    assert page.index("settings were changed") < page.index("from the stored record")


@pytest.mark.both_databases
def test_an_open_page_learns_of_votes_edits_and_ends(client_of: ClientOf, people: Site):
    held = hold(arguments={"query": "main"}, quorum=2)
    client = client_of("approver")

    def poll(html: str) -> str:
        found = re.search(r'id="status"[^>]*hx-get="([^"]+)"', html)
        assert found is not None
        return found[1].replace("&amp;", "&")

    where = poll(seen(client, address(held)))
    assert client.get(where).status_code == 204
    votes.vote(request_id=held.pk, user=people.people["root"], approve=True, via="web")
    fresh = client.get(where).content.decode()
    assert "1 of 2 approvals" in plain(fresh)
    assert 'data-changed=""' in fresh
    where = poll(fresh)
    votes.vote(
        request_id=held.pk,
        user=people.people["approver"],
        approve=True,
        arguments={"query": "x"},
        via="web",
    )
    fresh = client.get(where).content.decode()
    assert 'data-changed="1"' in fresh
    assert "other arguments, not counted" in plain(fresh)
    votes.vote(
        request_id=held.pk, user=people.people["root"], approve=False, reason="no", via="web"
    )
    fresh = client.get(poll(fresh)).content.decode()
    assert 'data-end="rejected"' in fresh
    assert "hx-get" not in fresh


def test_calls_that_wait_beside_it_are_shown_with_it(client_of: ClientOf):
    held = hold(arguments={"query": "one"})
    beside = hold(arguments={"query": "two"})
    other = hold(arguments={"query": "three"}, agent="ci")
    same = hold(arguments={"query": "one"}, agent="ci")
    page = seen(client_of("approver"), address(held))
    section = page[page.index('id="siblings"') : page.index('id="decide"')]
    assert beside.pk in section
    assert same.pk in section
    assert other.pk not in section


@pytest.mark.both_databases
def test_a_call_whose_payload_was_erased_is_still_a_page(client_of: ClientOf):
    held = hold()
    decide(client_of("approver"), held, "deny", reason="no")
    Invocation.objects.filter(pk=held.call_id).update(arguments="", result="")
    assert "retention period has ended" in seen(client_of("viewer"), address(held))


def test_there_is_no_such_request(client_of: ClientOf):
    answer = client_of("viewer").get("/approvals/0123456789abcdef/")
    assert answer.status_code == 404
    assert "This held call does not exist" in answer.content.decode()


def test_a_refusal_by_mistake_is_taken_back_with_one_button(client_of: ClientOf):
    held = hold()
    approver = client_of("approver")
    decide(approver, held, "deny", reason="wrong button")
    assert "Allow new requests" in seen(approver, address(held))
    assert "Allow new requests" not in seen(client_of("viewer"), address(held))
    assert client_of("viewer").post(f"{address(held)}again/").status_code == 403
    assert approver.get(f"{address(held)}again/").status_code == 302
    assert AuditEntry.objects.filter(kind="approval.refusal_lifted").count() == 0, (
        "a GET changes nothing"
    )
    answer = approver.post(f"{address(held)}again/", follow=True)
    assert "The rejection was lifted" in plain(answer.content.decode())
    assert "Allow new requests" not in answer.content.decode()
    assert AuditEntry.objects.filter(kind="approval.refusal_lifted").count() == 1
    assert approver.post(f"{address(held)}again/").status_code == 409
    assert hold().pk != held.pk
