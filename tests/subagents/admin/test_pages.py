"""Pages of expert tools: seen by those who may, saved through the services, honest about what goes
wrong."""

from __future__ import annotations

import html
import re
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.models import Agent, AuditEntry, Definition, Endpoint, Grant, Server, Tool
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import Attempt, ExpertTool, LanguageModel, Provider, Run, ToolCall, Turn
from subagents.runs.run_views import view
from subagents.services import experts, runs
from tests.subagents.kit import ready_provider

pytestmark = pytest.mark.one_database

LIST = "/admin/subagents/experttool/"
HOSTILE = "<script>window.x=1</script>\u202eevil"


def client_as(role: str) -> Client:
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def model(db: None) -> LanguageModel:
    provider = ready_provider("acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
    return LanguageModel.objects.create(provider=provider, name="small")


@pytest.fixture
def tool(db: None) -> Tool:
    now = timezone.now()
    server = Server.objects.create(slug="files")
    tool = Tool.objects.create(server=server, name="read", first_seen_at=now, last_seen_at=now)
    definition = Definition.objects.create(
        tool=tool, hash="h", body='{"name": "read"}', seen_at=now, approved=True
    )
    Tool.objects.filter(pk=tool.pk).update(pinned=definition, latest=definition)
    return tool


@pytest.fixture
def expert(model: LanguageModel) -> ExpertTool:
    return experts.save_expert(
        expert=ExpertTool(name="digest", description="Reads and tells."),
        targets=[model],
        actor="test",
    )


def form(model: LanguageModel, **changed: Any) -> dict[str, Any]:
    return {
        "name": "digest",
        "enabled": "on",
        "description": "Reads.",
        "arguments": '{"q": {"type": "string"}}',
        "first": model.pk,
        "temperature": "0",
        "max_steps": "10",
        "max_seconds": "60",
        "max_calls": "100",
        "parallelism": "4",
        "max_result_bytes": "12288",
        "on_server_death": "tell",
        "cache_seconds": "0",
    } | changed


def test_a_new_expert_tool_gets_its_own_agent_its_whitelist_and_a_version(
    model: LanguageModel, tool: Tool
) -> None:
    ann = Agent.objects.create(slug="ann")
    default = Endpoint.objects.create(slug="default")
    data = form(model, tools=[tool.pk], users=[ann.pk], endpoints=[default.pk])
    answer = client_as("admin").post(f"{LIST}add/", data)
    assert answer.status_code == 302, answer.content.decode()
    expert = ExpertTool.objects.get()
    assert [target.model for target in expert.ordered_targets.all()] == [model]
    assert list(Grant.objects.values_list("agent__slug", "tool__name")) == [
        ("expert.digest", "read")
    ]
    assert (list(expert.users.all()), list(expert.endpoints.all())) == ([ann], [default])
    assert [v.number for v in expert.versions.all()] == [1]
    assert AuditEntry.objects.filter(
        kind="expert.created", subject="expert:digest", actor="user:admin"
    ).exists()


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"first": ""}, "required"),
        ({"max_cost": "1"}, "prices"),
        ({"name": "two words"}, "letters"),
        ({"output_schema": '{"type": "nonsense"}'}, "output schema"),
        ({"max_steps": "0"}, "greater than"),
    ],
)
def test_what_cannot_work_is_refused_when_saved(
    model: LanguageModel, changed: dict[str, Any], words: str
) -> None:
    client = client_as("admin")
    answer = client.post(f"{LIST}add/", form(model, **changed), follow=True)
    assert words in answer.content.decode()
    assert not ExpertTool.objects.exists()


def test_a_change_makes_a_new_version_and_none_makes_none(
    expert: ExpertTool, model: LanguageModel
) -> None:
    experts.save_expert(expert=expert, targets=[model], actor="test")
    assert expert.versions.count() == 1
    expert.max_steps = 3
    experts.save_expert(expert=expert, targets=[model], actor="test")
    assert [v.number for v in expert.versions.all()] == [2, 1]


def test_a_circle_of_experts_is_refused(expert: ExpertTool, model: LanguageModel) -> None:
    other = experts.save_expert(
        expert=ExpertTool(name="other", description="d"), targets=[model], actor="test"
    )
    experts.offer(expert=other, agents=[expert.agent], endpoints=[], actor="test")
    with pytest.raises(Exception, match="call itself"):
        experts.offer(expert=expert, agents=[other.agent], endpoints=[], actor="test")


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "admin"])
@pytest.mark.parametrize("page", ["experttool", "run", "languagemodel", "provider"])
@pytest.mark.both_databases
def test_lists_open_for_every_role(expert: ExpertTool, role: str, page: str) -> None:
    assert client_as(role).get(f"/admin/subagents/{page}/").status_code == 200


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 403), ("admin", 302)])
def test_only_who_may_grant_may_change_it(
    expert: ExpertTool, model: LanguageModel, role: str, status: int
) -> None:
    answer = client_as(role).post(f"{LIST}{expert.pk}/change/", form(model, description="Changed."))
    assert answer.status_code == status


def test_a_key_is_stored_sealed_and_never_shown(db: None) -> None:
    client = client_as("admin")
    data = {
        "slug": "acme",
        "kind": "openai",
        "key": "sk-canary-3c1",
        "headers": "X-A=hid-canary",
        "options": "{}",
        "timeout": "60",
    }
    assert client.post("/admin/subagents/provider/add/", data).status_code == 302
    provider = Provider.objects.get()
    assert (provider.key, provider.headers) == ("sk-canary-3c1", {"X-A": "hid-canary"})
    shown = client.get(f"/admin/subagents/provider/{provider.pk}/change/").content.decode()
    history = client.get(f"/admin/subagents/provider/{provider.pk}/history/").content.decode()
    assert "canary" not in shown + history + provider.sealed_key
    client.post(
        f"/admin/subagents/provider/{provider.pk}/change/", data | {"key": "", "headers": "X-A=•••"}
    )
    provider.refresh_from_db()
    assert (provider.key, provider.headers) == ("sk-canary-3c1", {"X-A": "hid-canary"})


@pytest.fixture
def run(expert: ExpertTool, model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)
    run = runs.start(expert="digest", arguments={}, origin="rest")
    Turn.objects.create(
        run=run,
        number=1,
        model=model,
        model_name=HOSTILE,
        text=HOSTILE,
        finish="calls",
        started_at=timezone.now(),
        duration_ms=12,
        input_tokens=5,
        output_tokens=6,
        cost=Decimal("0.001"),
    )
    ToolCall.objects.create(
        run=run,
        turn_number=1,
        index=0,
        provider_id="c",
        name=HOSTILE,
        arguments=HOSTILE,
        state=CallState.UNKNOWN,
        result=HOSTILE,
        started_at=timezone.now(),
        finished_at=timezone.now(),
    )
    return run


@pytest.mark.both_databases
def test_the_page_of_a_run_shows_hostile_texts_harmlessly(run: Run) -> None:
    for address in (
        f"/admin/subagents/run/{run.pk}/change/?raw=1",
        f"/admin/subagents/run/{run.pk}/live/",
    ):
        shown = (
            client_as(f"{'viewer' if 'raw' in address else 'admin'}").get(address).content.decode()
        )
        assert "<script>window.x" not in shown
        assert "\u202e" not in shown
        assert "&lt;script&gt;" in shown


def test_what_was_said_and_each_failed_request_are_on_the_page_of_a_run(run: Run) -> None:
    Turn.objects.create(
        run=run,
        number=2,
        model_name="acme/small",
        text="Start. " + "More. " * 100 + "The very end.",
        finish="stop",
        started_at=timezone.now(),
        duration_ms=1,
    )
    Attempt.objects.create(
        run=run,
        turn_number=2,
        model_name="acme/small",
        trouble="overloaded",
        message="Come back later.",
        status=503,
        at=timezone.now(),
        duration_ms=340,
    )
    client = client_as("viewer")
    page = f"/admin/subagents/run/{run.pk}/change/"
    shown = client.get(page).content.decode()
    assert "Come back later." in shown
    assert "overloaded" in shown
    assert "The very end." not in shown
    assert "The very end." in client.get(f"{page}?raw=1").content.decode()


@pytest.mark.attack
def test_links_of_results_are_on_the_page_and_only_web_addresses_can_be_followed(run: Run) -> None:
    good = ["https://docs.example/guide?a=1&b=2", "http://docs.example:8080/"]
    bad = [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "java\nscript:alert(1)",
        "data:text/html,<script>1</script>",
        "file:///etc/passwd",
        "made://report/7",
        "//docs.example/x",
        "https:docs.example",
        "https://bank.example@evil.example/",
        "https://bank.ex\u0430mple/",
        "https://docs.example/\u202egpj.exe",
        "https://docs.example\\@evil.example",
        "https://[",
        "http://a.example/ onclick=x",
        "",
        HOSTILE,
        'https://"><script>window.x=1</script>',
        " https://docs.example/",
    ]
    links = [{"uri": uri, "name": HOSTILE, "mimeType": 'text/"><b>'} for uri in [*good, *bad]]
    ToolCall.objects.create(
        run=run,
        turn_number=2,
        index=0,
        provider_id="c",
        name="files__find",
        arguments="{}",
        state=CallState.DONE,
        details={"links": links},
        started_at=timezone.now(),
        finished_at=timezone.now(),
    )
    shown = client_as("viewer").get(f"/admin/subagents/run/{run.pk}/change/").content.decode()
    row = shown[shown.index("files__find") :]
    row = row[: row.index("</tr>")]
    addresses = re.findall(
        r'<a class="sn-link" href="([^"]*)" rel="noopener noreferrer nofollow"', row
    )
    assert [html.unescape(each) for each in addresses] == good
    assert "made://report/7" in row
    assert row.count("&lt;script&gt;window.x=1") >= len(links)
    assert "<script" not in row
    assert "<b>" not in row
    assert "\u202e" not in row


def test_the_live_part_stops_when_the_run_has_ended(run: Run) -> None:
    client = client_as("viewer")
    assert client.get(f"/admin/subagents/run/{run.pk}/live/").status_code == 200
    Run.objects.update(finished_at=timezone.now(), state=RunState.DONE, exit=Exit.ANSWER)
    assert client.get(f"/admin/subagents/run/{run.pk}/live/").status_code == 286


def test_an_operator_settles_each_call_and_cancels_a_viewer_does_not(run: Run) -> None:
    page = f"/admin/subagents/run/{run.pk}/"
    second = ToolCall.objects.get()
    second.pk = None
    second.index = 1
    second.save()
    viewer = client_as("viewer")
    operator = client_as("operator")
    settle = f"{page}calls/{second.pk}/done/"
    assert viewer.post(settle).status_code == 403
    assert operator.get(settle).status_code == 405
    assert settle in operator.get(f"{page}change/").content.decode()
    assert settle not in viewer.get(f"{page}change/").content.decode()
    assert operator.post(settle, {"note": "I looked."}).status_code == 302
    assert list(ToolCall.objects.values_list("index", "state")) == [(0, "unknown"), (1, "done")]
    assert "I looked." in ToolCall.objects.get(pk=second.pk).result
    assert viewer.post(f"{page}do/cancel/").status_code == 403
    assert operator.get(f"{page}do/cancel/").status_code == 405
    operator.post(f"{page}do/cancel/")
    assert Run.objects.get().cancel_requested


def test_what_cannot_be_settled_is_said_and_nothing_changes(run: Run, model: LanguageModel) -> None:
    operator = client_as("operator")
    call = ToolCall.objects.get()
    page = f"/admin/subagents/run/{run.pk}/calls/"
    assert operator.post(f"{page}999999/done/").status_code == 404
    assert (
        "Use done (the call took effect), failed (it had no effect) or repeat"
        in operator.post(f"{page}{call.pk}/nonsense/", follow=True).content.decode()
    )
    Turn.objects.create(
        run=run, number=2, model_name="m", finish="stop", started_at=timezone.now(), duration_ms=1
    )
    assert (
        "the run has continued"
        in operator.post(f"{page}{call.pk}/repeat/", follow=True).content.decode()
    )
    Run.objects.update(finished_at=timezone.now(), state=RunState.DONE)
    assert "it is finished" in operator.post(f"{page}{call.pk}/done/", follow=True).content.decode()
    assert ToolCall.objects.get().state == CallState.UNKNOWN


def test_running_again_starts_a_new_run_of_the_newest_version(
    run: Run, expert: ExpertTool, model: LanguageModel
) -> None:
    expert.max_steps = 4
    experts.save_expert(expert=expert, targets=[model], actor="test")
    Run.objects.update(finished_at=timezone.now(), state=RunState.DONE, answer="Yes.")
    client_as("operator").post(f"/admin/subagents/run/{run.pk}/do/replay/")
    assert Run.objects.get(pk=run.pk).version.number == 1
    assert Run.objects.exclude(pk=run.pk).get().version.number == 2


def ended(run: Run, answer: str) -> None:
    Run.objects.filter(pk=run.pk).update(
        finished_at=timezone.now(), state=RunState.DONE, exit=Exit.ANSWER, answer=answer
    )


def test_asked_again_with_another_model_and_the_first_version_it_is_compared(
    run: Run, expert: ExpertTool, model: LanguageModel
) -> None:
    expert.max_steps = 4
    experts.save_expert(expert=expert, targets=[model], actor="test")
    other = LanguageModel.objects.create(provider=model.provider, name="large")
    ended(run, "There are three files.")
    operator = client_as("operator")
    page = f"/admin/subagents/run/{run.pk}/"
    operator.post(f"{page}do/replay/", {"version": "1", "model": other.pk})
    again = Run.objects.exclude(pk=run.pk).get()
    assert (again.version.number, again.asks, again.replay_of, again.origin) == (
        1,
        other,
        run,
        "replay",
    )
    assert [target.label for target in view(again.pk, now=timezone.now()).spec.targets] == [
        "acme/large"
    ]
    assert AuditEntry.objects.filter(kind="run.replayed", subject=f"run:{again.pk}").exists()
    ended(again, "There are four files.")
    shown = " ".join(operator.get(f"{page}change/").content.decode().split())
    assert "There are <del>three</del><ins>four</ins> files." in shown
    back = " ".join(
        operator.get(f"/admin/subagents/run/{again.pk}/change/").content.decode().split()
    )
    assert "There are <del>four</del><ins>three</ins> files." in back


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "order", [{"version": "9"}, {"model": "999999"}, {"version": "x" * 50}, {"version": "-1"}]
)
def test_no_such_version_or_model_starts_nothing(run: Run, order: dict[str, str]) -> None:
    ended(run, "Yes.")
    answer = client_as("operator").post(
        f"/admin/subagents/run/{run.pk}/do/replay/", order, follow=True
    )
    told = " ".join(answer.content.decode().split())
    assert ("The model no longer exists" if "model" in order else "has no version") in told
    assert Run.objects.count() == 1


def test_a_money_budget_refuses_a_replay_on_a_model_without_prices(
    run: Run, expert: ExpertTool, model: LanguageModel
) -> None:
    LanguageModel.objects.filter(pk=model.pk).update(input_price=1, output_price=5)
    model.refresh_from_db()
    expert.max_cost = Decimal(1)
    experts.save_expert(expert=expert, targets=[model], actor="test")
    free = LanguageModel.objects.create(provider=model.provider, name="unpriced")
    ended(run, "Yes.")
    answer = client_as("operator").post(
        f"/admin/subagents/run/{run.pk}/do/replay/", {"model": free.pk}, follow=True
    )
    assert "has no prices" in answer.content.decode()
    assert Run.objects.count() == 1


@pytest.mark.exhaustive
@pytest.mark.both_databases
def test_the_page_and_the_list_keep_their_budget_when_rows_multiply(
    run: Run, model: LanguageModel
) -> None:
    viewer = client_as("viewer")
    page = f"/admin/subagents/run/{run.pk}/change/"

    def asked(url: str) -> int:
        with CaptureQueriesContext(connection) as questions:
            assert viewer.get(url).status_code == 200
        return len(questions)

    ToolCall.objects.update(invocation="i")
    before = asked(page), asked("/admin/subagents/run/")
    now = timezone.now()
    ToolCall.objects.bulk_create(
        ToolCall(
            run=run,
            turn_number=2,
            index=index,
            provider_id="c",
            name="git__log",
            arguments="{}",
            state=CallState.DONE,
            started_at=now,
            finished_at=now,
            result="x" * 5_000,
            invocation=f"i{index}",
        )
        for index in range(200)
    )
    Run.objects.bulk_create(
        Run(
            id=f"r{number}",
            version=run.version,
            expert_name="digest",
            arguments="{}",
            origin="rest",
            created_at=now,
        )
        for number in range(1_000)
    )
    assert (asked(page), asked("/admin/subagents/run/")) == before
    assert max(before) <= 24
    with CaptureQueriesContext(connection) as questions:
        viewer.get(f"/admin/subagents/run/{run.pk}/live/")
    assert not any('"subagents_toolcall"."result"' in question["sql"] for question in questions)
