"""What a run would fail over is refused before it begins, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.test import override_settings

from mcpregistry.db import db_call
from mcpregistry.domain.errors import Denied, SlipsnisseError
from mcpregistry.models import Configuration, Credential, Invocation, Server, Tool
from mcpregistry.services.access.credentials import save_credential
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers import lifecycle
from subagents.domain.expert_chains import longest_through
from subagents.domain.lifecycle import RunState
from subagents.models import Attempt, ExpertTool, LanguageModel, Provider, Run
from subagents.runs.targets import build_target
from subagents.services import experts, providers
from tests.subagents.kit import Bench, calls, confirmed

SECRET = "sk-5ecre7"


def tool_row() -> Tool:
    return Tool.objects.select_related("server", "latest").get(name="echo")


def gone(bench: Bench) -> None:
    observe.observe(server=tool_row().server, listed=[])


def changed(bench: Bench) -> None:
    row = tool_row()
    observe.observe(server=row.server, listed=[{**row.latest.data, "description": "other"}])  # type: ignore[union-attr]


def off(bench: Bench) -> None:
    Tool.objects.update(enabled=False)


def server_off(bench: Bench) -> None:
    lifecycle.disable_server(server=Server.objects.get(), actor="test")


def awaited(bench: Bench) -> None:
    ExpertTool.objects.update(awaited_tools=["docs::read"])


def model_off(bench: Bench) -> None:
    LanguageModel.objects.update(enabled=False)


def no_key(bench: Bench) -> None:
    Provider.objects.update(kind="openai", base_url="")


def empty_credential(bench: Bench) -> None:
    save_credential(credential=Credential(name="k"), actor="test", scope=["provider:scripts"])
    providers.save_provider(provider=Provider.objects.get(), actor="test", key="${cred:k}")


MISSING: dict[str, tuple[Callable[[Bench], None], str, str]] = {
    "a tool that is gone": (gone, "no longer offers it", "Remove it"),
    "a tool that was changed": (changed, "waits for approval", "Approve or reject"),
    "a tool that is switched off": (off, "disabled", "Enable it"),
    "a server that is disabled": (server_off, "its server is disabled", "enable the server"),
    "a tool that was never seen": (awaited, "docs::read", "Confirm and test"),
    "a model that is switched off": (
        model_off,
        "All models of the expert tool",
        "enable one of these models",
    ),
    "a provider without key": (no_key, "does not have a key", "Enter the key in the admin"),
    "a credential without value": (
        empty_credential,
        "does not have a value",
        "Enter the value in the admin under Credentials",
    ),
}


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.one_database
@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_named_before_anything_is_spent(bench: Bench, name: str) -> None:
    spoil, sentence, remedy = MISSING[name]
    server = bench.server()
    expert = bench.expert(bench.model("m", {"text": "never"}))
    experts.set_whitelist(expert=expert, tools=server.tools.all(), actor="test")
    spoil(bench)
    with pytest.raises(Denied) as refusal:
        bench.start()
    assert sentence in refusal.value.message
    assert remedy in (refusal.value.remedy or "")
    assert not Run.objects.exists()
    assert not bench.models.journal


@pytest.mark.one_database
def test_one_model_with_a_key_is_enough(bench: Bench) -> None:
    other = Provider.objects.create(slug="paid", kind="anthropic")
    bench.expert(
        LanguageModel.objects.create(provider=other, name="x"), bench.model("m", {"text": "yes"})
    )
    assert bench.start().state == RunState.QUEUED


def chained(bench: Bench, length: int) -> list[ExpertTool]:
    """Each may be called by the one before."""
    model = bench.model("m", {"text": "x"})
    made = [bench.expert(model, name=f"e{number}") for number in range(length)]
    for caller, callee in pairwise(made):
        experts.offer(expert=callee, agents=[caller.agent], endpoints=[], actor="test")
    return made


def test_a_chain_that_is_too_deep_is_refused_when_saved_wherever_it_grows(bench: Bench) -> None:
    made = chained(bench, 3)
    first = bench.expert(LanguageModel.objects.get(), name="first")
    with pytest.raises(SlipsnisseError, match="this chain has 4: first > e0 > e1 > e2"):
        experts.offer(expert=made[0], agents=[first.agent], endpoints=[], actor="test")
    with pytest.raises(SlipsnisseError, match="this chain has 4: e0 > e1 > e2 > first"):
        experts.offer(expert=first, agents=[made[2].agent], endpoints=[], actor="test")
    with pytest.raises(SlipsnisseError, match="call itself"):
        experts.offer(expert=made[0], agents=[made[2].agent], endpoints=[], actor="test")
    assert not made[0].users.exists()


def test_the_longest_chain_through_a_tool() -> None:
    callers = {"b": ["a"], "c": ["b", "x"], "d": ["c"], "z": ["y"]}
    assert longest_through("c", callers) == ["a", "b", "c", "d"]
    assert longest_through("z", callers) == ["y", "z"]
    assert longest_through("alone", callers) == ["alone"]
    assert longest_through("p", {"p": ["q"], "q": ["p"]})[-1] == "q"


@pytest.mark.one_database
def test_a_key_may_be_a_reference_and_sees_only_what_the_operator_lists(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    credential = Credential(name="team", scope=["provider:scripts"])
    Configuration.objects.update_or_create(
        id=1, defaults={"variable_scope": {"MODEL_KEY": credential.scope}}
    )
    credential.value = "blue"
    credential.save()
    provider = providers.save_provider(
        provider=Provider.objects.get(),
        actor="test",
        key="${MODEL_KEY}",
        headers={"X-Team": "Bearer ${cred:team}"},
    )
    confirmed(provider)
    model = bench.model("m", {"text": "x"})
    with pytest.raises(
        SlipsnisseError, match='"scripts" refers to a value that does not exist'
    ) as refusal:
        build_target(model.pk, temperature=0, at_most=5)
    assert SECRET not in str(refusal.value)
    with override_settings(PASS_ENV=["MODEL_KEY"]):
        target = build_target(model.pk, temperature=0, at_most=5)
    assert (target.key, target.headers) == (SECRET, {"X-Team": "Bearer blue"})
    provider.refresh_from_db()
    assert provider.key == "${MODEL_KEY}"


@pytest.mark.one_database
async def test_a_key_that_is_not_to_be_had_in_the_worker_leaves_the_model_to_the_next(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        other = Provider(slug="paid", kind="openai")
        providers.save_provider(provider=other, actor="test", key="${NOT_HERE}")
        bench.expert(
            LanguageModel.objects.create(provider=other, name="x"),
            bench.model("m", {"text": "yes"}),
        )
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert run.answer == "yes"
    tried = await db_call(lambda: list(Attempt.objects.values_list("model_name", "trouble")))
    assert tried == [("paid/x", "auth")]


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_tools_of_one_name_on_two_servers_are_told_apart(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        one = bench.server("echo", slug="docs")
        two = bench.server("echo", slug="files")
        asked = calls(("docs__echo", {"text": "to docs"}), ("files__echo", {"text": "to files"}))
        bench.expert(bench.model("m", asked, {"text": "done"}), uses=[one, two])
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert run.state == RunState.DONE
    sent = await db_call(lambda: dict(Invocation.objects.values_list("server_slug", "arguments")))
    assert {server: "to " + server in arguments for server, arguments in sent.items()} == {
        "docs": True,
        "files": True,
    }
