"""The queue without a browser: who may see it, what it shows, that looking changes nothing, its
budget."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote, AuditEntry
from mcpregistry.services.approvals import votes
from mcpregistry.web.approvals.queue import FIRST_SHOWN
from tests.fakes.held import bulk, hold
from tests.fakes.seed import Site
from tests.web.conftest import ClientOf

pytestmark = pytest.mark.exhaustive(on="postgresql")

QUEUE = "/approvals/"


def names(html: str) -> list[str]:
    return re.findall(r'sn-open-row"[^>]*>([^<]+)<', html)


def live_address(html: str) -> str:
    found = re.search(r'hx-get="([^"]+)"', html)
    assert found is not None
    return found[1].replace("&amp;", "&")


def seen(client: Client, address: str = QUEUE) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.content[:500]
    return answer.content.decode()


def test_a_stranger_is_sent_to_the_login_and_back(people: Site):
    held = hold()
    answer = Client().get(f"/approvals/{held.pk}/")
    assert answer.status_code == 302
    assert answer["Location"] == f"/admin/login/?next=/approvals/{held.pk}/"
    form = {"username": "approver", "password": "correct horse battery staple"}
    assert Client().post(answer["Location"], form)["Location"] == f"/approvals/{held.pk}/"


def test_somebody_without_a_role_sees_nothing(people: Site):
    User.objects.create_user("nobody", is_staff=True)
    client = Client()
    held = hold()
    client.force_login(User.objects.get(username="nobody"))
    for address in (
        QUEUE,
        "/approvals/live/",
        "/approvals/history/",
        "/approvals/figures/",
        f"/approvals/{held.pk}/",
    ):
        answer = client.get(address)
        assert answer.status_code == 403, address
        assert b"git_push" not in answer.content


def test_a_viewer_sees_the_queue_and_may_not_decide(client_of: ClientOf):
    held = hold()
    client = client_of("viewer")
    page = seen(client)
    assert names(page) == ["git_push"]
    assert "You can view calls, but" in page
    assert "decision" not in re.findall(
        r'<form[^>]*id="([^"]+)"', seen(client, f"/approvals/{held.pk}/")
    )


@pytest.mark.both_databases
def test_the_riskiest_and_then_the_oldest_come_first(client_of: ClientOf):
    now = timezone.now()
    for tool, risk, age in (
        ("git_log", "low", 500),
        ("git_diff", "high", 10),
        ("git_push", "high", 90),
        ("git_commit", "medium", 700),
    ):
        hold(tool=tool, risk=risk, at=now - timedelta(seconds=age))
    assert names(seen(client_of("viewer"))) == ["git_push", "git_diff", "git_commit", "git_log"]


@pytest.mark.both_databases
@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("server=time", ["get_current_time"]),
        ("tool=git_push", ["git_push"]),
        ("agent=ci", ["get_current_time"]),
        ("risk=high", ["git_push"]),
        ("rule=no+rule+matches", ["git_push", "get_current_time"]),
        ("search=needle", ["git_push"]),
        ("search=GIT_", ["git_push"]),
        ("search=nothing", []),
        ("risk=none", []),
        ("search=%00", ["git_push", "get_current_time"]),
    ],
)
def test_filters_and_search(client_of: ClientOf, query: str, found: list[str]):
    hold(arguments={"query": "a needle in hay"})
    hold("time", "get_current_time", agent="ci", risk="low")
    assert names(seen(client_of("viewer"), f"{QUEUE}?{query}")) == found


@pytest.mark.both_databases
def test_polling_is_cheap_and_answers_only_when_something_changed(
    client_of: ClientOf, people: Site
):
    first = hold()
    client = client_of("viewer")
    address = live_address(seen(client))
    with CaptureQueriesContext(connection) as questions:
        assert client.get(address).status_code == 204
    assert len(questions) <= 8
    assert not any('"arguments"' in question["sql"] for question in questions)
    hold(tool="git_log", risk="low")
    fresh = client.get(address)
    assert fresh.status_code == 200
    assert names(fresh.content.decode()) == ["git_push", "git_log"]
    address = live_address(fresh.content.decode())
    assert client.get(address).status_code == 204
    votes.vote(
        request_id=first.pk, user=people.people["approver"], approve=False, reason="no", via="web"
    )
    fresh = client.get(address).content.decode()
    assert names(fresh) == ["git_log"]
    assert "<li>approver rejected git_push</li>" in fresh


def test_one_is_not_told_of_what_one_did_oneself(client_of: ClientOf, people: Site):
    held = hold()
    client = client_of("approver")
    address = live_address(seen(client))
    votes.vote(request_id=held.pk, user=people.people["approver"], approve=True, via="web")
    assert "rejected" not in client.get(address).content.decode()
    assert "approved git_push" not in client.get(address).content.decode()


def test_a_poll_after_the_session_ended_reloads_the_page(client_of: ClientOf):
    client = client_of("viewer")
    address = live_address(seen(client))
    client.logout()
    answer = client.get(address, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Refresh"]) == (401, "true")


def test_every_answer_is_sealed(client_of: ClientOf):
    held = hold()
    client = client_of("approver")
    for address in (
        QUEUE,
        f"/approvals/{held.pk}/",
        "/approvals/history/",
        "/approvals/figures/",
        "/approvals/nothing/",
    ):
        answer = client.get(address)
        assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
        assert "script-src 'self'" in answer["Content-Security-Policy"]
        assert "no-store" in answer["Cache-Control"]
        assert not re.findall(rb"<script(?![^>]*\bsrc=)", answer.content), address
        assert not re.findall(rb"\son[a-z]+=", answer.content), address


def test_looking_changes_nothing(client_of: ClientOf):
    held = hold()
    client = client_of("approver")
    before = (AuditEntry.objects.count(), ApprovalRequest.objects.values().get())
    for address in (
        f"/approvals/{held.pk}/",
        f"/approvals/{held.pk}/?do=approve&reason=x",
        f"/approvals/{held.pk}/live/",
        QUEUE,
    ):
        for ask in (client.get, client.head):
            assert (
                ask(address, headers={"Purpose": "prefetch", "Sec-Purpose": "prefetch"}).status_code
                == 200
            )
    for ask in (client.put, client.delete, client.patch):
        assert ask(f"/approvals/{held.pk}/").status_code == 405
    assert client.post(QUEUE, {"do": "approve"}).status_code == 405
    assert (AuditEntry.objects.count(), ApprovalRequest.objects.values().get()) == before


@pytest.mark.exhaustive
@pytest.mark.exhaustive(on="postgresql")
def test_a_thousand_waiting_calls_cost_a_bounded_number_of_questions(
    client_of: ClientOf, capsys: pytest.CaptureFixture[str]
):
    client = client_of("approver")
    bulk(30)
    with CaptureQueriesContext(connection) as few:
        seen(client)
    ApprovalRequest.objects.all().delete()
    bulk(1_000)
    with CaptureQueriesContext(connection) as many:
        page = seen(client)
    assert len(names(page)) == FIRST_SHOWN
    assert "Show all 1000 calls" in page
    assert len(many) <= len(few) + 1 <= 16  # one more counts what the limit leaves out
    assert not any('"result",' in question["sql"] for question in many)
    count = len(many)
    assert len(names(client.get(QUEUE, {"all": "1"}).content.decode())) == 1_000
    took = []
    for _ in range(3):
        began = time.process_time()
        client.get(QUEUE)
        took.append((time.process_time() - began) * 1000)
    with capsys.disabled():
        print(
            f"\n  1,000 waiting calls: {min(took):.0f} ms of this process at best of three, {count} queries"
        )


# Identical low-risk calls


def three_alike() -> list[ApprovalRequest]:
    return [
        hold("time", "get_current_time", {"query": "Europe/Oslo"}, agent=agent, risk="low")
        for agent in ("local", "ci", "research")
    ]


def token(html: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', html)
    assert found is not None
    return found[1]


@pytest.mark.both_databases
def test_identical_low_risk_calls_are_decided_together(client_of: ClientOf):
    alike = three_alike()
    other = hold("time", "get_current_time", {"query": "Europe/Bergen"}, risk="low")
    client = client_of("approver")
    assert "3 identical low-risk calls" in seen(client)
    address = f"/approvals/{alike[0].pk}/alike/"
    answer = client.post(
        address, {"token": token(seen(client, address)), "do": "approve"}, follow=True
    )
    assert "Approved 3 calls." in answer.content.decode()
    states = {row.pk: row.call.state for row in ApprovalRequest.objects.select_related("call")}
    assert [states[each.pk] for each in alike] == [InvocationState.READY] * 3
    assert states[other.pk] == InvocationState.PENDING


@pytest.mark.both_databases
def test_one_of_them_decided_meanwhile_is_left_as_it_is(client_of: ClientOf, people: Site):
    alike = three_alike()
    client = client_of("approver")
    address = f"/approvals/{alike[0].pk}/alike/"
    form = {"token": token(seen(client, address)), "do": "deny", "reason": "not now"}
    votes.vote(request_id=alike[1].pk, user=people.people["root"], approve=True, via="web")
    answer = client.post(address, form, follow=True).content.decode()
    assert "Rejected 2 calls." in answer
    assert "1 call was not changed" in answer
    assert ApprovalRequest.objects.get(pk=alike[1].pk).call.state == InvocationState.READY


def test_high_risk_calls_are_never_decided_together(client_of: ClientOf):
    risky = [hold(arguments={"query": "x"}, agent=agent) for agent in ("local", "ci")]
    client = client_of("approver")
    assert "Decide together" not in seen(client)
    assert client.get(f"/approvals/{risky[0].pk}/alike/").status_code == 400
    calm = three_alike()
    good = token(seen(client, f"/approvals/{calm[0].pk}/alike/"))
    assert (
        client.post(
            f"/approvals/{risky[0].pk}/alike/", {"token": good, "do": "approve"}
        ).status_code
        == 400
    )
    # A token of low-risk calls whose risk was found to be higher meanwhile does not help either.
    ApprovalRequest.objects.filter(pk__in=[each.pk for each in calm]).update(risk="high")
    client.post(f"/approvals/{calm[0].pk}/alike/", {"token": good, "do": "approve"})
    assert ApprovalVote.objects.count() == 0


def test_a_group_decision_needs_its_own_token_and_a_reason_to_deny(client_of: ClientOf):
    alike = three_alike()
    client = client_of("approver")
    address = f"/approvals/{alike[0].pk}/alike/"
    assert client.post(address, {"do": "approve"}).status_code == 409
    stolen = token(seen(client_of("root"), address))
    assert client.post(address, {"do": "approve", "token": stolen}).status_code == 409
    mine = token(seen(client, address))
    assert client.post(address, {"do": "deny", "token": mine}).status_code == 422
    assert client.post(address, {"do": "both", "token": mine}).status_code == 422
    assert client_of("viewer").get(address).status_code == 403
    assert ApprovalVote.objects.count() == 0
