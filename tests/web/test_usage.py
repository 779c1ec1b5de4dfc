"""Usage on its page, in its file and over REST: the same figures, sorted, narrowed, and with what
they advise."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from mcpregistry.calls.catalog import build_current_catalogue
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.usage import UsageTally, find_duration_bucket, truncate_to_hour
from mcpregistry.domain.usage_advice import advise_on_usage
from mcpregistry.models import (
    Configuration,
    CountedSpan,
    Endpoint,
    Invocation,
    SpanFailure,
    SpanUsage,
    Tool,
)
from mcpregistry.queries import failures
from mcpregistry.queries import usage as queries
from mcpregistry.queries.definition_sizes import (
    ShownLists,
    list_tool_sizes,
    own_definitions,
    sort_page,
    with_definitions,
)
from mcpregistry.queries.failures import patterns
from mcpregistry.queries.usage import PERIODS, By, UsageFilter
from mcpregistry.services.access import grants
from mcpregistry.services.access.agents import save_agent
from mcpregistry.services.records import call_hours
from mcpregistry.services.upkeep import retention
from mcpregistry.templatetags.slipsnisse import options
from subagents.models import ExpertTool
from tests.fakes.lived import populated
from tests.fakes.remembered import remembered
from tests.fakes.seed import Site, govern, populate
from tests.web.conftest import ClientOf

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]


def call(
    number: int,
    at: datetime,
    *,
    tool: str = "git_log",
    took: float = 40.0,
    agent: str = "ci",
    **more: Any,
) -> Invocation:
    facts = {
        "state": InvocationState.SUCCEEDED,
        "result": "{}",
        "result_bytes": 400,
        "server_slug": "git",
        "outcome": "allow",
        "dispatched_at": at,
    } | more
    return Invocation(
        id=f"use-{number}",
        agent_slug=agent,
        endpoint_slug="default",
        tool_name=tool,
        exposed_name=tool,
        origin="http",
        writer="w",
        received_at=at,
        finished_at=at,
        duration_ms=took,
        arguments="{}",
        **facts,
    )


@pytest.fixture
def people(request: pytest.FixtureRequest, db: None) -> Site:
    """The people of other pages; with ``used``, also its calls, which take longer to count than a
    test."""
    if "used" in request.fixturenames:
        return remembered("tests/web/test_usage.py", populate_used)
    return populated(calls=0)


@pytest.fixture
def used(people: Site) -> datetime:
    """A week of calls, and the week before in which git_log was quick; the newest hour is not
    counted yet."""
    return Invocation.objects.latest("received_at").received_at


def populate_used() -> Site:
    site = populate(calls=0)
    Invocation.objects.all().delete()
    now = timezone.now()
    week = timedelta(days=7)
    hour = timedelta(hours=1)
    calls = [call(n, now - week - hour * (n + 2)) for n in range(40)]
    calls += [
        call(100 + n, now - hour * n, took=900.0, agent="ci" if n % 2 else "alice")
        for n in range(60)
    ]
    calls += [
        call(200 + n, now - hour * n, tool="git_status", took=5.0, result_bytes=90_000)
        for n in range(40)
    ]
    said = '{"content":[{"type":"text","text":"no branch \\"b%d\\" <here>"}],"isError":true}'
    calls += [
        call(
            300 + n,
            now - hour * n,
            tool="git_diff",
            state=InvocationState.TOOL_ERROR,
            error_code="TOOL-ERROR",
            result=said % n,
        )
        for n in range(12)
    ]
    calls.append(
        call(
            400,
            now,
            tool="made up",
            server_slug="",
            state=InvocationState.DENIED,
            dispatched_at=None,
        )
    )
    Invocation.objects.bulk_create(calls)
    call_hours.count_due(now)
    return site


def table(client_of: ClientOf, query: str = "") -> tuple[str, list[list[str]]]:
    html = client_of("viewer").get(reverse("usage:index") + query).content.decode()
    body = html[html.index('id="usage"') :] if 'id="usage"' in html else ""
    rows = re.findall(r"<tr>(.*?)</tr>", body[body.index("<tbody>") :] if body else "", re.DOTALL)
    return html, [
        [
            " ".join(re.sub(r"<[^>]+>", " ", cell).split())
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in rows
    ]


def test_the_busiest_come_first_with_their_figures_and_what_they_advise(
    client_of: ClientOf, used: datetime
) -> None:
    html, rows = table(client_of)
    assert [row[0] for row in rows] == [
        "git_log git advice",
        "git_status git advice",
        "git_diff git advice",
        "(unknown names)",
    ]
    assert rows[0][1:4] == ["60", "+50 %", "0"]
    assert rows[2][3] == "12 100 % TOOL-ERROR 12"
    assert "grown slower" in html
    assert "large results" in html
    assert "12 of 12 calls failed with TOOL-ERROR." in html
    assert table(client_of, "?sort=p95")[1][-2][0].startswith("git_log"), (
        "the unknown ones have none"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", [*By])
def test_each_kind_of_rows_adds_up_to_the_same_calls(
    client_of: ClientOf, used: datetime, by: By
) -> None:
    for period in PERIODS.values():
        found = queries.usage(by, period, now=used, wanted=UsageFilter())
        expected = Invocation.objects.filter(received_at__gte=period.since(used))
        expected = expected.filter(server_slug="expert") if by is By.EXPERT else expected
        assert (
            found.total.tally.calls
            == sum(row.tally.calls for row in found.rows)
            == expected.count()
        )
        html = client_of("viewer").get(
            reverse("usage:index"), {"by": by, "period": period.name, "sort": "-cost"}
        )
        assert html.status_code == 200


@pytest.mark.exhaustive
def test_calls_of_a_row_are_those_by_the_filters_of_the_page(
    client_of: ClientOf, used: datetime
) -> None:
    html, _ = table(client_of, "?agent=ci&period=90d")
    links = [
        parse_qs(found)
        for found in re.findall(r'invocation/\?([^"]+)" title="View these calls"', unescape(html))
    ]
    wanted = {
        "server": ["git"],
        "tool_name": ["git_status"],
        "agent": ["ci"],
        "period": ["quarter"],
    }
    assert wanted in links
    assert all(link["agent"] == ["ci"] for link in links)


@pytest.mark.exhaustive
def test_it_says_which_hours_nobody_has_counted(client_of: ClientOf, used: datetime) -> None:
    assert "has not counted them yet" not in table(client_of)[0]
    CountedSpan.objects.filter(begins__gte=used - timedelta(hours=6)).delete()
    assert "has not counted them yet" in table(client_of)[0]


@pytest.mark.exhaustive(but=("some before the period",))
@pytest.mark.parametrize("counted", ["some before the period", "none"])
def test_it_reports_that_no_hour_of_the_period_is_counted(used: datetime, counted: str) -> None:
    hours = (
        CountedSpan.objects.all()
        if counted == "none"
        else CountedSpan.objects.exclude(begins__lt=used - timedelta(days=3))
    )
    hours.delete()
    period = PERIODS["24h"]
    found = queries.usage(By.TOOL, period, now=used, wanted=UsageFilter())
    assert found.missing_from == period.since(used)
    Invocation.objects.filter(received_at__lt=found.live_from).delete()
    assert queries.usage(By.TOOL, period, now=used, wanted=UsageFilter()).missing_from is None, (
        "no call is missing"
    )


def test_it_is_narrowed_by_agent_and_by_name(client_of: ClientOf, used: datetime) -> None:
    assert [row[1] for row in table(client_of, "?agent=alice")[1]] == ["30"]
    assert [row[1] for row in table(client_of, "?search=STATUS")[1]] == ["40"]
    assert "No matches" in table(client_of, "?server=none&search=%00")[0]
    for odd in ("?by=x&period=y&sort=z&page=0", "?page=99999999999", "?page=7", "?sort=-name"):
        assert client_of("viewer").get(reverse("usage:index") + odd).status_code == 200


@pytest.mark.exhaustive
def test_the_file_has_every_row_and_no_formula(client_of: ClientOf, used: datetime) -> None:
    Invocation.objects.bulk_create([call(500, used, tool="=1+1")])
    answer = client_of("viewer").get(reverse("usage:csv"), {"sort": "-errors"})
    lines = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))  # type: ignore[attr-defined]
    assert (lines[0]["tool"], lines[0]["codes"], lines[0]["errors"]) == (
        "git_diff",
        "TOOL-ERROR 12",
        "12",
    )
    assert "'=1+1" in {line["tool"] for line in lines}


def test_what_fails_alike_is_one_line_until_payloads_are_forgotten(
    client_of: ClientOf, used: datetime
) -> None:
    def page(query: str = "") -> str:
        return client_of("viewer").get(reverse("usage:failures") + query).content.decode()

    html = page()
    assert "12\u00d7" in html
    assert "no branch &#x27;…&#x27; &lt;here&gt;" in html
    assert html.count(f'href="{reverse("admin:mcpregistry_invocation_changelist")}use-') == 5, (
        "examples"
    )
    assert f'href="{reverse("admin:mcpregistry_invocation_change", args=["use-300"])}"' in html
    assert "No matches" in page("?server=time")
    assert "12\u00d7" in page("?search=branch&tool=git_diff")
    Configuration.objects.update(keep_payloads_days=0)
    assert SpanFailure.objects.exists()
    retention.prune(used + timedelta(days=1))
    assert not SpanFailure.objects.exists()
    assert SpanUsage.objects.exists()


def test_tools_that_fail_alike_share_one_row(used: datetime) -> None:
    def failed(number: int, tool: str, at: datetime) -> Invocation:
        words = json.dumps({"content": [{"type": "text", "text": f"Row {number} is locked."}]})
        return call(number, at, tool=tool, state="tool_error", error_code="LOCKED", result=words)

    times = [used - timedelta(hours=hours) for hours in (20, 19, 19, 2, 0)]
    tools = ["git_log", "git_diff", "git_log", "git_log", "git_log"]
    made = [failed(600 + number, *row) for number, row in enumerate(zip(tools, times, strict=True))]
    Invocation.objects.bulk_create(made)
    call_hours.count_due(used)
    found = patterns(queries.PERIODS["7d"], now=used, wanted=UsageFilter(search="LOCKED")).rows
    (row,) = [each for each in found if each.code == "LOCKED"]
    assert row.shape == "Row # is locked."
    assert [tuple(each) for each in row.tools] == [("git", "git_log", 4), ("git", "git_diff", 1)]
    assert (row.alike.count, row.alike.first, row.alike.last) == (5, times[0], times[4])
    assert [each.call for each in row.alike.examples][:2] == [made[4].pk, made[3].pk]
    assert len(row.alike.examples) == 5
    (narrowed,) = patterns(
        queries.PERIODS["7d"], now=used, wanted=UsageFilter(tool="git_diff", search="LOCKED")
    ).rows
    assert (narrowed.alike.count, narrowed.alike.first, narrowed.alike.last) == (
        1,
        times[1],
        times[1],
    )


def test_of_too_many_failures_the_newest_whole_hours_are_counted(
    client_of: ClientOf, used: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(number: int, tool: str, hours: int) -> Invocation:
        at = used - timedelta(hours=hours)
        return call(
            700 + number,
            at,
            tool=tool,
            state="tool_error",
            error_code="ODD",
            result=f"Odd thing {number}.",
        )

    SpanFailure.objects.all().delete()
    Invocation.objects.bulk_create(failed(n, f"tool_{n % 2}", 20 + n // 2) for n in range(6))
    call_hours.count_due(used)
    wanted = UsageFilter(search="ODD")
    monkeypatch.setattr(failures, "MOST_FAILURES", 3)
    found = patterns(queries.PERIODS["7d"], now=used, wanted=wanted)
    assert [each.alike.count for each in found.rows] == [2]
    assert found.cut == truncate_to_hour(used - timedelta(hours=20))
    assert "only failures since" in client_of("viewer").get("/usage/failures/").content.decode()
    monkeypatch.undo()
    found = patterns(queries.PERIODS["7d"], now=used, wanted=wanted)
    assert ([each.alike.count for each in found.rows], found.cut) == ([6], None)


def test_advice_is_worked_out_for_the_busiest_tools(
    used: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [
        call(800 + n, used - timedelta(hours=2), tool="git_log", took=30_000.0) for n in range(60)
    ]
    failing = {"state": "tool_error", "error_code": "ODD", "result": "Odd."}
    rare = [
        call(900 + n, used - timedelta(hours=2), tool="git_diff", took=30_000.0, **failing)
        for n in range(40)
    ]
    Invocation.objects.bulk_create([*slow, *rare])
    call_hours.count_due(used)

    def advised() -> set[str]:
        rows = queries.usage(By.TOOL, PERIODS["7d"], now=used, wanted=UsageFilter(agent="ci")).rows
        return {row.name for row in rows if row.advice}

    every = advised()
    assert every
    monkeypatch.setattr(queries, "_MOST_ADVISED", 1)
    assert advised() == every & {"git_log"}


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("sort", queries.SORTS)
def test_definitions_are_those_of_the_shown_rows(people: Site, used: datetime, sort: str) -> None:
    rows = queries.usage(By.TOOL, PERIODS["7d"], now=used, wanted=UsageFilter()).rows
    every = queries.sort_rows(with_definitions(rows, By.TOOL, now=used, wanted=UsageFilter()), sort)
    shown = sort_page(rows, sort, slice(1, 3), By.TOOL, now=used, wanted=UsageFilter())
    assert shown == every[1:3]
    assert any(row.definition for row in every)


@pytest.mark.exhaustive
def test_who_has_no_role_sees_neither(client_of: ClientOf, people: Site) -> None:
    people.people["viewer"].groups.clear()
    for name in ("index", "csv", "failures"):
        assert client_of("viewer").get(reverse(f"usage:{name}")).status_code == 403


def test_empty_lists_say_what_to_do(client_of: ClientOf, people: Site) -> None:
    Invocation.objects.all().delete()
    assert "Connect a host" in table(client_of)[0]
    assert "No expert tool was called" in table(client_of, "?by=expert")[0]
    assert "No calls failed" in client_of("viewer").get(reverse("usage:failures")).content.decode()


@pytest.mark.exhaustive
def test_over_rest_in_pages(client_of: ClientOf, used: datetime) -> None:
    client = client_of("viewer")
    first = client.get("/api/v1/usage", {"sort": "-p95", "limit": 2}).json()
    assert first.get("items"), first
    assert first["items"][0]["name"] == "git_log"
    second = client.get(
        "/api/v1/usage", {"sort": "-p95", "limit": 2, "cursor": first["next"]}
    ).json()
    assert {row["name"] for row in [*first["items"], *second["items"]]} == {
        "git_log",
        "git_status",
        "git_diff",
        "",
    }
    assert second["next"] is None
    (pattern,) = client.get("/api/v1/usage/failures", {"server": "git"}).json()["items"]
    assert (pattern["count"], pattern["code"]) == (12, "TOOL-ERROR")
    assert pattern["tools"] == [{"server": "git", "tool": "git_diff", "count": 12}]
    assert pattern["examples"][0]["id"] == "use-300"
    assert len(pattern["examples"]) == 5
    assert client.get("/api/v1/usage", {"cursor": "bm8"}).status_code == 400
    assert client.get("/api/v1/usage", {"by": "colour"}).status_code == 422


def sums(calls: int, took: float, **more: Any) -> UsageTally:
    tally = UsageTally(calls=calls, sent=calls, **more)
    tally.took[find_duration_bucket(took)] = calls
    return tally


def test_advice_needs_calls_enough_and_a_difference() -> None:
    def kinds(tally: UsageTally, before: UsageTally, others: UsageTally) -> list[str]:
        return [each.kind for each in advise_on_usage(tally, before=before, others=others)]

    quick = sums(100, 20)
    assert kinds(sums(100, 5_000), quick, quick) == [
        "grown slower",
        "slower than the other tools of its server",
    ]
    assert kinds(sums(29, 5_000), quick, quick) == []
    assert kinds(sums(100, 5_000), sums(29, 20), sums(29, 20)) == []
    assert kinds(sums(100, 150), quick, quick) == [], "less than people notice"
    assert kinds(sums(100, 20, size=100 * 20_000), quick, quick) == ["large results"]


def test_names_to_choose_from_are_escaped_and_the_chosen_one_is_marked() -> None:
    said = options(["git", '<b>"\u202e'], "git")
    assert (
        said
        == '<option value="git" selected>git</option><option value="&lt;b&gt;&quot;\u202e">&lt;b&gt;&quot;⟦U+202E⟧</option>'
    )


def definitions(by: By, used: datetime, **wanted: str) -> dict[str, int | None]:
    asked = UsageFilter(**wanted)
    found = queries.usage(by, PERIODS["7d"], now=used, wanted=asked)
    rows = with_definitions(found.rows, by, now=used, wanted=asked)
    return {row.name: row.definition_tokens for row in rows}


@pytest.mark.exhaustive
def test_an_agent_carries_what_it_is_shown(people: Site, used: datetime) -> None:
    ci = people.agents["ci"]
    of_servers = {
        slug: sum(tool.characters for tool in list_tool_sizes(slug) if tool.server == slug)
        for slug in ("time", "git")
    }
    assert definitions(By.AGENT, used)["ci"] == round(of_servers["time"] / 4)
    grants.grant_access(agent=ci, server=people.servers["git"], actor="test")
    assert definitions(By.AGENT, used)["ci"] == round(sum(of_servers.values()) / 4)
    assert ShownLists(used).of_agent("ci", endpoint="readonly") == of_servers["time"]
    assert definitions(By.AGENT, used, server="git")["ci"] == round(of_servers["git"] / 4)
    assert definitions(By.AGENT, used)["alice"] is None, "no agent is called so"


@pytest.mark.exhaustive
def test_what_is_carried_is_what_hosts_are_shown(people: Site, used: datetime) -> None:
    for agent in people.agents.values():
        for endpoint in Endpoint.objects.all():
            seen = build_current_catalogue(agent, endpoint, now=used)
            assert seen is not None
            listed = {entry.offer.tool.id for entry in seen.entries.values()}
            expected = sum(tool.characters for tool in list_tool_sizes() if tool.pk in listed)
            assert ShownLists(used).of_agent(agent.slug, endpoint=endpoint.slug) == expected


def test_an_endpoint_carries_the_longest_list_of_any_agent(people: Site, used: datetime) -> None:
    lists = ShownLists(used)
    for endpoint in ("default", "readonly"):
        longest = max(lists.of_agent(slug, endpoint=endpoint) or 0 for slug in people.agents)
        assert lists.of_endpoint(endpoint) == longest > 0
    assert definitions(By.ENDPOINT, used) == {
        "default": round((lists.of_endpoint("default") or 0) / 4)
    }


def test_an_agent_without_the_capability_carries_nothing_of_a_server(
    people: Site, used: datetime
) -> None:
    agent = people.agents["local"]
    agent.capabilities = ["mcp_time::*"]
    save_agent(agent=agent, actor="test")
    expected = sum(tool.characters for tool in list_tool_sizes("time") if tool.server == "time")
    assert ShownLists(used).of_agent("local") == expected > 0


def test_an_own_description_counts_in_place_of_the_servers(people: Site, used: datetime) -> None:
    tool = Tool.objects.get(server__slug="git", name="git_log")
    before = {each.pk: each.characters for each in list_tool_sizes("git")}[tool.pk]
    tool.own_description = "x" * 4_000
    tool.save()
    after = {each.pk: each.characters for each in list_tool_sizes("git")}[tool.pk]
    assert after - before == 4_000 - len(json.loads(tool.pinned.body)["description"])  # type: ignore[union-attr]


@pytest.mark.exhaustive
def test_an_expert_tool_counts_where_it_is_shown(people: Site, used: datetime) -> None:
    govern(people)
    expert = ExpertTool.objects.get()
    Invocation.objects.bulk_create([call(900, used, tool=expert.name, server_slug="expert")])
    (own,) = own_definitions()
    assert definitions(By.EXPERT, used) == {expert.name: round(own.characters / 4)}
    without = ShownLists(used, server="time").of_agent("ci") or 0
    expert.users.set([people.agents["ci"]])
    expert.endpoints.set(Endpoint.objects.filter(slug="default"))
    assert ShownLists(used).of_agent("ci", endpoint="default") == without + own.characters
    assert ShownLists(used).of_agent("ci", endpoint="readonly") == without


@pytest.mark.exhaustive
def test_definitions_of_an_agent_lead_to_its_context_bill(
    client_of: ClientOf, used: datetime
) -> None:
    html, _ = table(client_of, "?by=agent&endpoint=default")
    assert 'href="/admin/context-bill/?agent=ci&amp;endpoint=default"' in html


@pytest.mark.exhaustive
@pytest.mark.usefixtures("contexts")
def test_advice_leads_to_the_calls_that_it_is_about(client_of: ClientOf, used: datetime) -> None:
    for number, row in enumerate(Invocation.objects.all()):
        Invocation.objects.filter(pk=row.pk).update(
            duration_ms=F("duration_ms") + number, result_bytes=F("result_bytes") + number
        )
    client = client_of("viewer")
    html = client.get(reverse("usage:index")).content.decode()
    found = dict(
        re.findall(
            r'href="([^"]+)">(Slowest calls|Largest results|Failures)</a></span>', unescape(html)
        )
    )
    assert sorted(found.values()) == ["Failures", "Largest results", "Slowest calls"]
    orders = {"Slowest calls": "duration_ms", "Largest results": "result_bytes"}
    for address, label in found.items():
        answer = client.get(address)
        assert answer.status_code == 200
        if label in orders:
            values = [getattr(call, orders[label]) for call in answer.context["cl"].result_list]
            assert len(values) > 10
            assert values == sorted(values, reverse=True)
