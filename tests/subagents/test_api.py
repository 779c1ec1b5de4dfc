"""Runs over REST: started, listed, watched, cancelled; an agent sees its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.test import AsyncClient, Client
from django.utils import timezone

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.db import db_call
from mcpregistry.models import Agent, Token
from mcpregistry.services.access import agents, tokens
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import ExpertTool, LanguageModel, Provider, Run, ToolCall
from subagents.services import experts, runs
from tests.subagents.kit import ready_provider

BASE = "/api/v1"


class Caller:
    def __init__(self, client: Any, token: str = "") -> None:
        self.client = client
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str) -> Any:
        return self.client.get(BASE + path, headers=self.headers)

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        return self.client.post(
            BASE + path,
            json.dumps(body or {}),
            content_type="application/json",
            headers=self.headers | headers,
        )


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)


@pytest.fixture
def expert(live_db: None) -> ExpertTool:
    provider = ready_provider("acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
    model = LanguageModel.objects.create(provider=provider, name="small")
    arguments = {"q": {"type": "string"}, "deep": {"type": "boolean", "default": False}}
    return experts.save_expert(
        expert=ExpertTool(name="digest", description="Reads.", arguments=arguments),
        targets=[model],
        actor="test",
    )


def agent(slug: str) -> Caller:
    row = agents.save_agent(agent=Agent(slug=slug), actor="test")
    return Caller(Client(), tokens.issue_token(name="t", actor="test", agent=row)[1])


def person(role: str) -> Caller:
    user = User.objects.create_user(role)
    user.groups.add(Group.objects.get(name=role))
    return Caller(Client(), tokens.issue_token(name="t", actor="test", user=user)[1])


def test_a_run_is_started_with_defaults_filled_in_and_listed(expert: ExpertTool) -> None:
    operator = person("operator")
    started = operator.post("/experts/digest/runs", {"arguments": {"q": "why"}})
    assert started.status_code == 202
    run = operator.get(f"/runs/{started.json()['id']}").json()
    assert (run["state"], run["arguments"]) == ("queued", {"q": "why", "deep": False})
    assert [r["id"] for r in operator.get("/runs?expert=digest&state=queued").json()["items"]] == [
        run["id"]
    ]
    assert operator.get("/runs?state=done").json()["items"] == []


def test_a_run_knows_the_person_who_started_it_or_asked_again(expert: ExpertTool) -> None:
    operator = person("operator")
    other = person("admin")
    started = operator.post("/experts/digest/runs", {"arguments": {"q": "why"}}).json()
    again = other.post(f"/runs/{started['id']}/replay").json()
    assert (started["requester"], again["requester"]) == ("operator", "admin")
    assert Run.objects.get(pk=again["id"]).requester_id == User.objects.get(username="admin").pk


def test_a_start_and_a_replay_that_are_repeated_with_their_key_are_one_run_each(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    monkeypatch.setattr("subagents.services.runs.wake", woken.append)
    operator = person("operator")
    path = "/experts/digest/runs"
    body = {"arguments": {"q": "why"}}
    starts = [operator.post(path, body, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [start.status_code for start in starts] == [202, 202]
    assert starts[0].content == starts[1].content
    replay = f"/runs/{starts[0].json()['id']}/replay"
    replays = {operator.post(replay, **{"Idempotency-Key": "r"}).content for _ in range(2)}
    assert (len(replays), Run.objects.count(), len(woken)) == (1, 2, 2)
    other = operator.post(path, {"arguments": {"q": "how"}}, **{"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["code"]) == (409, "CONFLICT")
    own = agent("ann")
    expert.users.add(Agent.objects.get(slug="ann"))
    assert own.post(path, body, **{"Idempotency-Key": "k"}).json()["id"] != starts[0].json()["id"]


@pytest.mark.parametrize(
    ("name", "arguments", "status", "code"),
    [
        ("digest", {"q": 5}, 422, "ARGUMENTS_INVALID"),
        ("digest", {}, 422, "ARGUMENTS_INVALID"),
        ("nothing", {"q": "x"}, 404, "NOT_FOUND"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_spent(
    expert: ExpertTool, name: str, arguments: dict[str, Any], status: int, code: str
) -> None:
    answer = person("operator").post(f"/experts/{name}/runs", {"arguments": arguments})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Run.objects.exists()


def test_a_tool_without_a_model_that_is_on_is_refused(expert: ExpertTool) -> None:
    Provider.objects.update(enabled=False)
    answer = person("operator").post("/experts/digest/runs", {"arguments": {"q": "x"}})
    assert answer.json()["code"] == "DENIED"
    assert "are disabled" in answer.json()["message"]


def test_an_agent_starts_what_it_may_and_sees_its_own(expert: ExpertTool) -> None:
    ann = agent("ann")
    bob = agent("bob")
    assert ann.post("/experts/digest/runs", {"arguments": {"q": "x"}}).status_code == 404
    expert.users.add(Agent.objects.get(slug="ann"))
    run = ann.post("/experts/digest/runs", {"arguments": {"q": "x"}}).json()
    assert [r["id"] for r in ann.get("/runs").json()["items"]] == [run["id"]]
    assert bob.get("/runs").json()["items"] == []
    for answer in (bob.get(f"/runs/{run['id']}"), bob.post(f"/runs/{run['id']}/cancel")):
        assert answer.status_code == 404
    assert ann.post(f"/runs/{run['id']}/cancel").status_code == 200
    assert Run.objects.get().cancel_requested
    assert ann.post(f"/runs/{run['id']}/resume").status_code == 403


def test_an_unknown_call_is_settled_once(expert: ExpertTool) -> None:
    operator = person("operator")
    run = runs.start(expert="digest", arguments={"q": "x"}, origin="rest")
    call = ToolCall.objects.create(
        run=run, turn_number=1, index=0, name="write", state=CallState.UNKNOWN
    )
    path = f"/runs/{run.pk}/calls/{call.pk}/settle"
    assert (
        operator.post(path, {"what": "failed", "note": "no row"}).json()["calls"][0]["state"]
        == "failed"
    )
    assert operator.post(path, {"what": "done"}).status_code == 409
    assert operator.post(path, {"what": "maybe"}).status_code == 422


def test_a_run_is_asked_again_of_another_version_and_another_model(expert: ExpertTool) -> None:
    operator = person("operator")
    run = runs.start(expert="digest", arguments={"q": "x"}, origin="rest")
    first = expert.ordered_targets.get().model
    other = LanguageModel.objects.create(provider=first.provider, name="large")
    expert.system_prompt = "Be brief."
    experts.save_expert(expert=expert, targets=[first], actor="test")
    path = f"/runs/{run.pk}/replay"
    assert [
        operator.post(path).json()["version"],
        operator.post(path, {"version": 1}).json()["version"],
    ] == [2, 1]
    asked = operator.post(path, {"model": "acme/large"})
    assert (asked.status_code, Run.objects.get(pk=asked.json()["id"]).asks) == (202, other)
    for wrong, said in [
        ({"version": 9}, "no version 9"),
        ({"model": "acme/none"}, "provider/name"),
        ({"version": 0}, "version"),
    ]:
        answer = operator.post(path, wrong)
        assert (answer.status_code in (404, 422), said in answer.text) == (True, True)
    assert Run.objects.filter(replay_of=run).count() == 3


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("path", ["/experts", "/runs"])
def test_longer_lists_ask_no_more_questions(
    expert: ExpertTool, django_assert_max_num_queries: Any, path: str
) -> None:
    model = expert.ordered_targets.get().model
    for number in range(12):
        tool = ExpertTool(name=f"digest{number}", description="Reads.")
        experts.save_expert(expert=tool, targets=[model], actor="test")
        runs.start(expert=tool.name, arguments={}, origin="rest")
    viewer = person("viewer")
    viewer.get(path)
    with django_assert_max_num_queries(10):
        assert len(viewer.get(path).json()["items"]) >= 12


def test_an_expert_tool_shows_its_figures(expert: ExpertTool) -> None:
    run = runs.start(expert="digest", arguments={"q": "x"}, origin="rest")
    Run.objects.filter(pk=run.pk).update(
        state=RunState.DONE, exit=Exit.ANSWER, savings={"context_saved": -5}
    )
    shown = person("viewer").get("/experts/digest").json()
    assert (shown["models"], shown["agent"], shown["figures"]["saved"]) == (
        ["acme/small"],
        "expert.digest",
        -5,
    )
    assert shown["figures"]["costs_more"]


@pytest.fixture
async def engine(live_db: None) -> AsyncIterator[Engine]:
    engine = Engine("web")
    await engine.start()
    set_current_engine(engine)
    yield engine
    set_current_engine(None)
    await engine.stop()


async def test_watching_tells_every_change_and_ends_with_the_run(
    expert: ExpertTool, engine: Engine
) -> None:
    run = await db_call(runs.start, expert="digest", arguments={"q": "x"}, origin="rest")
    viewer = await db_call(person, "viewer")
    answer = await AsyncClient().get(f"{BASE}/runs/{run.pk}/events", headers=viewer.headers)
    assert answer["Content-Type"] == "text/event-stream"
    seen = []
    async for chunk in answer.streaming_content:  # type: ignore[union-attr]
        seen.append(json.loads(chunk.decode().split("data: ", 1)[1])["state"])
        if len(seen) == 1:
            ended = {"state": RunState.FAILED, "exit": Exit.AUTH, "finished_at": timezone.now()}
            await db_call(Run.objects.filter(pk=run.pk).update, **ended)
    assert seen == ["queued", "failed"]


def revoke_tokens() -> None:
    for token in Token.objects.all():
        tokens.revoke_token(token=token, actor="test")


def disable_agent() -> None:
    row = Agent.objects.get(slug="ann")
    row.enabled = False
    agents.save_agent(agent=row, actor="test")


def disable_person() -> None:
    User.objects.update(is_active=False)


def take_role() -> None:
    User.objects.get().groups.clear()


def log_out() -> None:
    Session.objects.all().delete()


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize(
    ("who", "end_access"),
    [
        ("agent", revoke_tokens),
        ("agent", disable_agent),
        ("token", revoke_tokens),
        ("token", disable_person),
        ("token", take_role),
        ("browser", disable_person),
        ("browser", log_out),
        ("browser", take_role),
    ],
)
async def test_stream_of_a_run_ends_with_the_access_of_its_reader(
    expert: ExpertTool,
    engine: Engine,
    who: str,
    end_access: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subagents.api.runs._LOOK_SECONDS", 0.05)
    client = AsyncClient()
    headers = dict[str, str]()
    if who == "browser":
        await db_call(person, "viewer")
        await db_call(client.force_login, await db_call(User.objects.get))
        headers = {"X-CSRFToken": "unchecked"}
    else:
        headers = (
            await db_call(*((agent, "ann") if who == "agent" else (person, "viewer")))
        ).headers
    run = await db_call(
        runs.start, expert="digest", arguments={"q": "x"}, origin="rest", caller="ann"
    )
    answer = await client.get(f"{BASE}/runs/{run.pk}/events", headers=headers)
    events = aiter(answer.streaming_content)  # type: ignore[union-attr]
    assert "queued" in (await anext(events)).decode()
    await db_call(end_access)
    await db_call(
        Run.objects.filter(pk=run.pk).update, state=RunState.FAILED, finished_at=timezone.now()
    )
    assert [each async for each in events] == []
