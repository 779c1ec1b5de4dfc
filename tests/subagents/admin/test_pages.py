"""Pages of expert tools: seen by those who may, saved through the services, honest about what goes wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from mcpregistry.models import Agent, AuditEntry, Definition, Endpoint, Grant, Server, Tool
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import ExpertTool, LanguageModel, Provider, Run, ToolCall, Turn
from subagents.services import experts, runs

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
    provider = Provider.objects.create(slug="acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
    return LanguageModel.objects.create(provider=provider, name="small")


@pytest.fixture
def tool(db: None) -> Tool:
    now = timezone.now()
    server = Server.objects.create(slug="files")
    tool = Tool.objects.create(server=server, name="read", first_seen_at=now, last_seen_at=now)
    definition = Definition.objects.create(tool=tool, hash="h", body='{"name": "read"}', seen_at=now, approved=True)
    Tool.objects.filter(pk=tool.pk).update(pinned=definition, latest=definition)
    return tool


@pytest.fixture
def expert(model: LanguageModel) -> ExpertTool:
    return experts.save_expert(
        expert=ExpertTool(name="digest", description="Reads and tells."), targets=[model], actor="test"
    )


def form(model: LanguageModel, **changed: Any) -> dict[str, Any]:
    return {
        "name": "digest", "enabled": "on", "description": "Reads.", "arguments": '{"q": {"type": "string"}}',
        "first": model.pk, "temperature": "0", "max_steps": "10", "max_seconds": "60", "max_calls": "100",
        "parallelism": "4", "max_result_bytes": "12288", "on_server_death": "tell", "cache_seconds": "0",
    } | changed  # fmt: skip


def test_a_new_expert_tool_gets_its_own_agent_its_whitelist_and_a_version(model: LanguageModel, tool: Tool) -> None:
    ann, default = Agent.objects.create(slug="ann"), Endpoint.objects.create(slug="default")
    data = form(model, tools=[tool.pk], users=[ann.pk], endpoints=[default.pk])
    answer = client_as("admin").post(f"{LIST}add/", data)
    assert answer.status_code == 302, answer.content.decode()
    expert = ExpertTool.objects.get()
    assert [target.model for target in expert.ordered_targets.all()] == [model]
    assert list(Grant.objects.values_list("agent__slug", "tool__name")) == [("expert.digest", "read")]
    assert (list(expert.users.all()), list(expert.endpoints.all())) == ([ann], [default])
    assert [v.number for v in expert.versions.all()] == [1]
    assert AuditEntry.objects.filter(kind="expert.created", subject="expert:digest", actor="user:admin").exists()


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
def test_what_cannot_work_is_refused_when_saved(model: LanguageModel, changed: dict[str, Any], words: str) -> None:
    client = client_as("admin")
    answer = client.post(f"{LIST}add/", form(model, **changed), follow=True)
    assert words in answer.content.decode()
    assert not ExpertTool.objects.exists()


def test_a_change_makes_a_new_version_and_none_makes_none(expert: ExpertTool, model: LanguageModel) -> None:
    experts.save_expert(expert=expert, targets=[model], actor="test")
    assert expert.versions.count() == 1
    expert.max_steps = 3
    experts.save_expert(expert=expert, targets=[model], actor="test")
    assert [v.number for v in expert.versions.all()] == [2, 1]


def test_a_circle_of_experts_is_refused(expert: ExpertTool, model: LanguageModel) -> None:
    other = experts.save_expert(expert=ExpertTool(name="other", description="d"), targets=[model], actor="test")
    experts.offer(expert=other, agents=[expert.agent], endpoints=[], actor="test")
    with pytest.raises(Exception, match="call itself"):
        experts.offer(expert=expert, agents=[other.agent], endpoints=[], actor="test")


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "admin"])
@pytest.mark.parametrize("page", ["experttool", "run", "languagemodel", "provider"])
def test_lists_open_for_every_role(expert: ExpertTool, role: str, page: str) -> None:
    assert client_as(role).get(f"/admin/subagents/{page}/").status_code == 200


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 403), ("admin", 302)])
def test_only_who_may_grant_may_change_it(expert: ExpertTool, model: LanguageModel, role: str, status: int) -> None:
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
    client.post(f"/admin/subagents/provider/{provider.pk}/change/", data | {"key": "", "headers": "X-A=•••"})
    provider.refresh_from_db()
    assert (provider.key, provider.headers) == ("sk-canary-3c1", {"X-A": "hid-canary"})


@pytest.fixture
def run(expert: ExpertTool, model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)
    run = runs.start(expert="digest", arguments={}, origin="rest")
    Turn.objects.create(
        run=run, number=1, model=model, model_name=HOSTILE, text=HOSTILE, finish="calls", started_at=timezone.now(),
        duration_ms=12, input_tokens=5, output_tokens=6, cost=Decimal("0.001"),
    )  # fmt: skip
    ToolCall.objects.create(
        run=run, turn_number=1, index=0, provider_id="c", name=HOSTILE, arguments=HOSTILE, state=CallState.UNKNOWN,
        result=HOSTILE, started_at=timezone.now(), finished_at=timezone.now(),
    )  # fmt: skip
    return run


def test_the_page_of_a_run_shows_hostile_texts_harmlessly(run: Run) -> None:
    for address in (f"/admin/subagents/run/{run.pk}/change/?raw=1", f"/admin/subagents/run/{run.pk}/live/"):
        shown = client_as(f"{'viewer' if 'raw' in address else 'admin'}").get(address).content.decode()
        assert "<script>window.x" not in shown
        assert "\u202e" not in shown
        assert "&lt;script&gt;" in shown


def test_the_live_part_stops_when_the_run_has_ended(run: Run) -> None:
    client = client_as("viewer")
    assert client.get(f"/admin/subagents/run/{run.pk}/live/").status_code == 200
    Run.objects.update(finished_at=timezone.now(), state=RunState.DONE, exit=Exit.ANSWER)
    assert client.get(f"/admin/subagents/run/{run.pk}/live/").status_code == 286


def test_an_operator_settles_and_cancels_a_viewer_does_not(run: Run) -> None:
    page = f"/admin/subagents/run/{run.pk}/do/"
    viewer, operator = client_as("viewer"), client_as("operator")
    assert viewer.post(f"{page}done/").status_code == 403
    assert operator.post(f"{page}done/").status_code == 302
    assert ToolCall.objects.get().state == CallState.DONE
    assert viewer.post(f"{page}cancel/").status_code == 403
    assert operator.get(f"{page}cancel/").status_code == 405
    operator.post(f"{page}cancel/")
    assert Run.objects.get().cancel_requested


def test_running_again_starts_a_new_run_of_the_newest_version(
    run: Run, expert: ExpertTool, model: LanguageModel
) -> None:
    expert.max_steps = 4
    experts.save_expert(expert=expert, targets=[model], actor="test")
    Run.objects.update(finished_at=timezone.now(), state=RunState.DONE)
    client_as("operator").post(f"/admin/subagents/run/{run.pk}/do/replay/")
    assert list(Run.objects.order_by("created_at").values_list("version__number", flat=True)) == [1, 2]
