"""The history, its file, and the figures: the right rows, the right numbers, no formulas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote, Invocation
from mcpregistry.queries import approval_figures as queries
from mcpregistry.services.approvals import held_calls, requests
from mcpregistry.web.approvals.history import cell
from tests.fakes.held import bulk, decided, ended, hold
from tests.fakes.seed import Site
from tests.web.conftest import ClientOf
from tests.web.test_queue import seen

HISTORY = "/approvals/history/"
FILE = "/approvals/history.csv"


def lines(client: Client, address: str = FILE) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/csv")
    assert "attachment" in answer["Content-Disposition"]
    content: Iterable[bytes] = answer.streaming_content  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(b"".join(content).decode())))


@pytest.fixture
def past(people: Site) -> dict[str, ApprovalRequest]:
    """One request for each way in which one can end."""
    now = timezone.now() - timedelta(minutes=5)
    ann = people.people["approver"]
    root = people.people["root"]
    rows = {
        end: hold(arguments={"query": end}, at=now)
        for end in ("approved", "rejected", "cancelled", "too late", "waiting")
    }
    rows["expired"] = hold(
        "time", "get_current_time", agent="ci", risk="low", at=now, decide_seconds=60
    )
    decided(rows["approved"], ann, at=now + timedelta(seconds=10))
    ended(rows["approved"])
    decided(
        rows["rejected"],
        root,
        approve=False,
        reason="=cmd|'/c calc'!A1",
        at=now + timedelta(seconds=30),
    )
    decided(rows["too late"], ann, at=now + timedelta(seconds=20))
    Invocation.objects.filter(pk=rows["too late"].call_id).update(
        state=InvocationState.EXPIRED, finished_at=timezone.now()
    )
    held_calls.cancel(
        request_id=rows["cancelled"].pk, reason="the host withdrew it", actor="agent:local"
    )
    held_calls.expire_due(timezone.now())
    return rows


def ids(found: Iterable[dict[str, str]]) -> set[str]:
    return {line["id"] for line in found}


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    "end", ["approved", "rejected", "cancelled", "too late", "waiting", "expired"]
)
def test_the_history_is_filtered_by_how_it_ended(
    client_of: ClientOf, past: dict[str, ApprovalRequest], end: str
):
    client = client_of("viewer")
    found = lines(client, f"{FILE}?end={end}")
    expected = {past[end].pk} | ({past["too late"].pk} if end == "approved" else set())
    assert ids(found) == expected
    page = seen(client, f"{HISTORY}?end={end}")
    assert [pk for pk in [row.pk for row in past.values()] if pk in page] == [
        row.pk for row in past.values() if row.pk in expected
    ]


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    ("query", "ends"),
    [
        ("approver=root", {"rejected"}),
        ("approver=approver", {"approved", "too late"}),
        ("agent=ci", {"expired"}),
        ("server=time", {"expired"}),
        ("rule=no+rule+matches&server=time", {"expired"}),
        ("rule=other", set()),
        ("since=2020-01-01&until=2020-12-31", set()),
        ("since=2020-02-30", None),
        ("since=x&after=x&until=%00", None),
        ("search=rejected", {"rejected"}),
    ],
)
def test_the_history_is_filtered_by_who_what_and_when(
    client_of: ClientOf, past: dict[str, ApprovalRequest], query: str, ends: set[str] | None
):
    expected = {row.pk for end, row in past.items() if ends is None or end in ends}
    assert ids(lines(client_of("viewer"), f"{FILE}?{query}")) == expected


@pytest.mark.exhaustive
def test_a_day_includes_its_last_second(client_of: ClientOf, past: dict[str, ApprovalRequest]):
    day = past["waiting"].asked_at.date().isoformat()
    assert past["waiting"].pk in ids(lines(client_of("viewer"), f"{FILE}?since={day}&until={day}"))


def test_pages_of_the_history_neither_repeat_nor_skip(client_of: ClientOf):
    bulk(120)
    client = client_of("viewer")
    address = HISTORY
    found = []
    for _ in range(3):
        page = seen(client, address)
        found += [pk for pk in page.split("/approvals/") if len(pk) > 32 and pk[32] == "/"]
        hold()  # what arrives meanwhile does not shift the pages
        if 'rel="next"' not in page:
            break
        address = HISTORY + page.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    pages = [pk[:32] for pk in found]
    assert len(pages) == len(set(pages)) == 120


def test_the_file_says_who_decided_what_and_why(
    client_of: ClientOf, past: dict[str, ApprovalRequest]
):
    line = next(line for line in lines(client_of("viewer")) if line["id"] == past["rejected"].pk)
    assert (line["end"], line["tool"], line["agent"], line["seconds"]) == (
        "rejected",
        "git_push",
        "local",
        "30.0",
    )
    assert line["votes"] == "root: reject (web)"
    assert line["reason"] == "'=cmd|'/c calc'!A1"
    assert json.loads(line["arguments"]) == {"query": "rejected"}


@pytest.mark.parametrize("lead", ["=", "+", "-", "@", "\t", "\r", "\n", "|", "  =", "\u200b="])
def test_no_cell_is_a_formula(lead: str):
    safe = cell(f"{lead}HYPERLINK(1)")
    assert safe.startswith("'") or not safe.lstrip().startswith(("=", "+", "-", "@", "|"))
    assert safe.strip()[0] in "'⟦"


def test_hostile_texts_stay_within_their_cells(client_of: ClientOf, people: Site):
    held = hold(arguments={"query": '","=1+1\r\n=2+2'})
    Invocation.objects.filter(pk=held.call_id).update(
        tool_name='a","b\r\n=3', agent_slug="@SUM(1)", host_name="+1"
    )
    line = lines(client_of("viewer"))[0]
    assert len(lines(client_of("viewer"))) == 1
    assert (line["agent"], line["host"]) == ("'@SUM(1)", "'+1")
    assert line["id"] == held.pk


# Figures


def decisions(
    people: Site,
    rule: str,
    *,
    approved: int,
    rejected: int,
    seconds: int,
    who: str = "approver",
    at: datetime | None = None,
) -> None:
    """So many decided requests of a rule, each after so many seconds; written directly, for
    speed."""
    model = hold()
    at = at or timezone.now() - timedelta(hours=1)
    for number in range(approved + rejected):
        yes = number < approved
        call = Invocation.objects.get(pk=model.call_id)
        request = ApprovalRequest.objects.get(pk=model.pk)
        call.pk = f"{rule}-{who}-{number}"
        request.pk = call.pk
        call.state = InvocationState.SUCCEEDED if yes else InvocationState.REJECTED
        call.finished_at = at
        call.save(force_insert=True)
        request.call = call
        request.rule_name = rule
        request.join_key = None
        request.asked_at = at
        request.decided_at = at + timedelta(seconds=seconds + number)
        request.execute_by = request.decided_at if yes else None
        request.save(force_insert=True)
        ApprovalVote.objects.create(
            request=request,
            user=people.people[who],
            name=who,
            approve=yes,
            via="web",
            arguments_hash="",
            at=request.decided_at,
        )
    ApprovalRequest.objects.filter(pk=model.pk).delete()


def test_figures_count_by_rule_and_by_approver(client_of: ClientOf, people: Site):
    decisions(people, "always", approved=30, rejected=0, seconds=10)
    decisions(people, "mixed", approved=3, rejected=1, seconds=100, who="root")
    decisions(
        people, "old", approved=5, rejected=0, seconds=1, at=timezone.now() - timedelta(days=40)
    )
    hold(rule=None)
    found = queries.compute_figures(since=timezone.now() - timedelta(days=30))
    rules = {each.rule: each for each in found.rules}
    assert set(rules) == {"always", "mixed", "no rule matches"}
    assert (rules["always"].held, rules["always"].rate, rules["always"].seconds) == (30, 1.0, 24.5)
    assert (rules["mixed"].approved, rules["mixed"].rejected, rules["mixed"].rate) == (3, 1, 0.75)
    assert (rules["no rule matches"].waiting, rules["no rule matches"].rate) == (1, None)
    assert (found.total.held, found.total.decided) == (35, 34)
    people_found = {each.name: each for each in found.approvers}
    assert (people_found["approver"].approved, people_found["approver"].seconds) == (30, 24.5)
    assert (people_found["root"].rejected, people_found["root"].rate) == (1, 0.75)


def test_a_rule_that_is_nearly_always_approved_may_be_relaxed(client_of: ClientOf, people: Site):
    decisions(people, "tired", approved=39, rejected=1, seconds=3)
    decisions(people, "few", approved=5, rejected=0, seconds=3)
    decisions(people, "sharp", approved=38, rejected=2, seconds=3)
    relaxed = {
        each.rule
        for each in queries.compute_figures(since=timezone.now() - timedelta(days=1)).rules
        if each.may_relax
    }
    assert relaxed == {"tired"}
    page = seen(client_of("viewer"), "/approvals/figures/?days=1")
    assert page.count(">may be relaxed<") == 1


def test_what_expired_or_was_withdrawn_is_no_decision(
    client_of: ClientOf, past: dict[str, ApprovalRequest]
):
    total = queries.compute_figures(since=timezone.now() - timedelta(days=1)).total
    assert (total.held, total.approved, total.rejected) == (6, 2, 1)
    assert (total.expired, total.cancelled, total.void, total.waiting) == (1, 1, 0, 1)
    assert total.rate == pytest.approx(2 / 3)
    assert total.seconds == 20.0


def test_figures_as_json_and_as_a_file(client_of: ClientOf, past: dict[str, ApprovalRequest]):
    client = client_of("viewer")
    facts: dict[str, Any] = client.get("/approvals/figures.json?days=7").json()
    assert (facts["days"], facts["total"]["held"], facts["total"]["may_relax"]) == (7, 6, False)
    assert {each["name"] for each in facts["approvers"]} == {"approver", "root"}
    found = lines(client, "/approvals/figures.csv?days=7")
    assert [line["name"] for line in found if line["kind"] == "approver"] == ["approver", "root"]
    assert client.get("/approvals/figures/?days=12345678901234567890").status_code == 200


def test_figures_ask_the_database_a_fixed_number_of_questions(
    client_of: ClientOf, people: Site, django_assert_max_num_queries: Any
):
    for number in range(6):
        decisions(people, f"rule {number}", approved=2, rejected=1, seconds=5)
    with django_assert_max_num_queries(6):
        queries.compute_figures(since=timezone.now() - timedelta(days=1))


@pytest.mark.exhaustive
def test_the_votes_of_somebody_who_left_stay_readable(
    client_of: ClientOf, past: dict[str, ApprovalRequest], people: Site
):
    people.people["root"].delete()
    assert (
        "root: reject"
        in next(line for line in lines(client_of("viewer")) if line["id"] == past["rejected"].pk)[
            "votes"
        ]
    )
    assert requests.hash_current_arguments(past["waiting"])
