"""Expert tools in configuration files: in, out, again, and what is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.formats import text
from mcpregistry.models import Agent, Endpoint, Grant, ImportedFile, Server, Tool
from mcpregistry.services.definitions import observe
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.followed_file import FollowedFile
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.servers.lifecycle import confirm_launch
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.services import experts, providers
from tests.domain.formats.samples import HERE, sample

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

SECRET = "sk-5ecre7"
FILES = sorted((HERE / "samples").glob("slipsnisse*/*"))
SAMPLE = "slipsnisse-extended/remote.yaml"


def tool(**changes: Any) -> dict[str, Any]:
    base = {
        "name": "t",
        "description": "d",
        "internal_tools": {"fs": ["read"]},
        "provider": "google",
        "model": "m",
    }
    return base | changes


def config(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"mcps": {"fs": {"command": "fs", "args": []}}, "tools": list(tools)} | more


def take(data: dict[str, Any], *, extended: bool = True, **options: Any) -> ImportOutcome:
    format_name = "slipsnisse-extended" if extended else "slipsnisse"
    return import_file(
        raw=json.dumps(data).encode(),
        path="x.json",
        actor="test",
        format_name=format_name,
        may_rule=True,
        may_grant=True,
        **options,
    )


def read(path: Path, name: str = "") -> ImportOutcome:
    return import_file(
        raw=path.read_bytes(),
        path=path.name,
        actor="test",
        format_name=name or path.parent.name,
        may_rule=True,
        may_grant=True,
    )


def known(*names: str) -> Server:
    """The server fs, confirmed, and its tools read."""
    server = Server.objects.get(slug="fs")
    server = confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    observe.observe(server=server, listed=[{"name": name, "inputSchema": {}} for name in names])
    return Server.objects.get(slug="fs")


def actions(outcome: ImportOutcome) -> dict[str, str]:
    return {change.label: change.action for change in outcome.changes}


def whitelist(name: str = "t") -> list[str]:
    return [str(each) for each in experts.whitelist(ExpertTool.objects.get(name=name))]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.both_databases
def test_a_file_of_expert_tools_comes_back_from_the_database_unchanged(path: Path) -> None:
    outcome = read(path)
    assert outcome.saved, [str(note) for note in outcome.refused]
    written = export_config(format_name=path.parent.name, actor="test", include_secrets=True)
    assert not written.refused
    original = text.load(path.read_bytes(), path.name)
    assert json.dumps(written.data, sort_keys=True) == json.dumps(original, sort_keys=True)
    assert [[*each] for each in written.data["tools"]] == [[*each] for each in original["tools"]]
    again = read(path)
    assert set(actions(again).values()) <= {"unchanged"}
    assert (
        export_config(format_name=path.parent.name, actor="test", include_secrets=True).data
        == written.data
    )


def test_the_worked_example_becomes_a_tool_that_waits_for_its_servers() -> None:
    outcome = read(HERE / "samples" / "slipsnisse" / "worked_example.yaml")
    assert actions(outcome) == {
        "filesystem": "created",
        "rust_docs": "created",
        "provider/google": "created",
        "model/google/gemini-2.0-flash-001": "created",
        "tool/research_dependency": "created",
    }
    expert = ExpertTool.objects.get()
    assert expert.awaited_tools == [
        "filesystem::read_file",
        "filesystem::list_directory",
        "rust_docs::search",
        "rust_docs::read_page",
    ]
    assert expert.system_prompt.startswith("You are a Rust expert.")
    assert experts.schema_of(expert)["required"] == ["query"]
    assert Provider.objects.get().key == "${GEMINI_API_KEY}"
    assert any("SLIPSNISSE_PASS_ENV" in note.remedy for note in outcome.notes)


@pytest.mark.both_databases
def test_everything_that_the_extended_format_can_say_is_in_the_records() -> None:
    read(HERE / "samples" / SAMPLE)
    expert = ExpertTool.objects.get(name="look_up")
    facts = (
        expert.max_steps,
        expert.max_seconds,
        expert.max_cost,
        expert.on_server_death,
        expert.temperature,
    )
    assert facts == (6, 45, Decimal("0.05"), "fail", 0.5)
    assert [str(target.model) for target in expert.ordered_targets.all()] == [
        "cohere/command-r",
        "google/gemini-2.0-flash-001",
    ]
    model = LanguageModel.objects.get(name="command-r")
    assert (model.context_window, model.input_price) == (128_000, Decimal("0.15"))
    provider = Provider.objects.get(slug="cohere")
    assert (provider.key, provider.headers, provider.timeout) == (
        "${COHERE_API_KEY}",
        {"X-Team": "docs"},
        45,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"q": "string"},
        {"q": {"type": "string"}},
        {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    ],
)
def test_arguments_in_each_notation_mean_the_same_and_come_back_as_they_were(
    arguments: dict[str, Any],
) -> None:
    take(config(tool(arguments=arguments)))
    expected = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    assert experts.schema_of(ExpertTool.objects.get()) == expected
    assert (
        export_config(format_name="slipsnisse", actor="t").data["tools"][0]["arguments"]
        == arguments
    )


@pytest.mark.both_databases
def test_awaited_tools_are_granted_when_their_server_offers_them() -> None:
    take(config(tool(internal_tools={"fs": ["read", "list"]})))
    known("read", "write")
    assert whitelist() == ["fs::read"]
    assert ExpertTool.objects.get().awaited_tools == ["fs::list"]
    observe.observe(server=Server.objects.get(), listed=[{"name": "list", "inputSchema": {}}])
    assert whitelist() == ["fs::list", "fs::read"]
    assert ExpertTool.objects.get().awaited_tools == []
    assert not Grant.objects.filter(tool__name="write").exists()


def test_the_whitelist_of_a_file_is_exact() -> None:
    take(config(tool(internal_tools={"fs": ["read"]})))
    known("read", "list")
    take(config(tool(internal_tools={"fs": ["list"]})), on_conflict="replace")
    assert whitelist() == ["fs::list"]


def test_a_tool_that_differs_is_a_conflict_unless_told_otherwise() -> None:
    take(config(tool()))
    refused = take(config(tool(description="other")))
    assert [note.pointer for note in refused.refused] == ["/tools/0"]
    assert "keep (skip)" in refused.refused[0].remedy
    assert (
        actions(take(config(tool(description="other")), on_conflict="skip"))["tool/t"] == "skipped"
    )
    assert ExpertTool.objects.get().description == "d"
    assert (
        actions(take(config(tool(description="other")), on_conflict="own"))["tool/t"] == "changed"
    )
    assert ExpertTool.objects.get().description == "other"
    ExpertTool.objects.filter(name="t").update(name="mine")
    ExpertTool.objects.filter(name="mine").update(name="t")
    ImportedFile.objects.all().delete()  # as if somebody had made it by hand
    refused = take(config(tool(description="third")), on_conflict="own").refused
    assert [note.remedy.partition(".")[0] for note in refused] == [
        "The existing entry was added by another file or by a user"
    ]


def test_what_a_file_does_not_say_stays_as_it_is() -> None:
    take(config(tool(max_steps=3, fallbacks=[{"provider": "openai", "model": "small"}])))
    take(config(tool(description="new")), on_conflict="replace")
    expert = ExpertTool.objects.get()
    assert (expert.description, expert.max_steps, expert.ordered_targets.count()) == ("new", 3, 2)
    assert take(config(tool(description="new"))).changes[-1].action == "unchanged"
    assert expert.versions.count() == 2


def test_an_edit_made_here_shows_in_the_file() -> None:
    take(config(tool(internal_tools={"fs": ["read", "list"]}, colour="blue")))
    known("read", "list", "stat")
    expert = ExpertTool.objects.get()
    experts.set_whitelist(
        expert=expert, tools=Tool.objects.filter(name__in=["read", "stat"]), actor="test"
    )
    model = LanguageModel.objects.get()
    expert.max_steps = 4
    experts.save_expert(expert=expert, targets=[model], actor="test")
    (written,) = export_config(format_name="slipsnisse-extended", actor="test").data["tools"]
    assert written["internal_tools"] == {"fs": ["read", "stat"]}
    assert (written["max_steps"], written["colour"]) == (4, "blue")
    experts.delete_expert(expert=expert, actor="test", rights=grant_all_rights)
    assert export_config(format_name="slipsnisse-extended", actor="test").data["tools"] == []


def test_a_tool_that_was_made_here_is_exported_too() -> None:
    provider = providers.save_provider(
        provider=Provider(slug="own", kind="compatible", base_url="http://h.example/v1"), actor="t"
    )
    model = providers.save_model(
        model=LanguageModel(provider=provider, name="m", free=True), actor="t"
    )
    experts.save_expert(expert=ExpertTool(name="mine", description="d"), targets=[model], actor="t")
    data = export_config(format_name="slipsnisse-extended", actor="t").data
    assert data["providers"] == {
        "own": {
            "kind": "compatible",
            "base_url": "http://h.example/v1",
            "models": {"m": {"free": True}},
        }
    }
    assert data["tools"] == [
        {"name": "mine", "description": "d", "internal_tools": {}, "provider": "own", "model": "m"}
    ]
    for model_class in (ExpertTool, LanguageModel, Provider, Agent):
        model_class.objects.all().delete()
    assert take(data).saved
    assert export_config(format_name="slipsnisse-extended", actor="t").data == data


@pytest.mark.parametrize("secrets", [False, True])
def test_a_key_is_never_in_a_file(secrets: bool) -> None:
    provider = providers.save_provider(
        provider=Provider(slug="google", kind="google"),
        actor="t",
        key=SECRET,
        headers={"X-Auth": SECRET + "h"},
    )
    take(config(tool()))
    written = export_config(format_name="slipsnisse-extended", actor="t", include_secrets=secrets)
    assert "key" not in written.data["providers"]["google"]
    assert (SECRET in json.dumps(written.data)) == secrets  # the header, when it was asked for
    if not secrets:
        assert take(written.data, on_conflict="replace").saved
        provider.refresh_from_db()
        assert provider.key == SECRET


@pytest.mark.parametrize("extra", [{"key": SECRET}, {"headers": {"X-Api-Key": SECRET}}])
def test_a_file_that_holds_a_secret_is_refused_without_quoting_it(extra: dict[str, Any]) -> None:
    outcome = take(config(tool(), providers={"google": {"kind": "google", **extra}}))
    assert [note.pointer.split("/")[:3] for note in outcome.refused] == [
        ["", "providers", "google"]
    ]
    assert "${VARIABLE}" in outcome.refused[0].remedy
    assert SECRET not in str(outcome.notes)


def test_a_dry_run_shows_tools_and_providers_and_hides_headers() -> None:
    data = config(tool(), providers={"google": {"kind": "google", "headers": {"X-Team": "blue"}}})
    diff = take(data, save=False).format_diff()
    assert "+++ file/tool/t" in diff
    assert "+++ file/provider/google" in diff
    assert "X-Team: (hidden)" in diff
    assert not ExpertTool.objects.exists()
    assert not Agent.objects.exists()


def test_a_watched_file_switches_off_what_it_no_longer_names() -> None:
    followed = FollowedFile("test")
    followed.follow_import(take(config(tool(), tool(name="u"))))
    assert followed.follow_import(take(config(tool()))) == ["u is no longer in the file: disabled."]
    assert not ExpertTool.objects.get(name="u").enabled
    assert followed.follow_import(take(config(tool(), tool(name="u")))) == [
        "u is in the file again: enabled."
    ]
    assert ExpertTool.objects.get(name="u").enabled


def test_users_and_endpoints_may_be_named_also_experts_of_the_same_file() -> None:
    Agent.objects.create(slug="ann")
    Endpoint.objects.get_or_create(slug="default")
    take(config(tool(users=["ann"], endpoints=["default"]), tool(name="u", users=["expert.t"])))
    assert [agent.slug for agent in ExpertTool.objects.get(name="t").users.all()] == ["ann"]
    assert [agent.slug for agent in ExpertTool.objects.get(name="u").users.all()] == ["expert.t"]


CHAIN = [tool(name="a"), *(tool(name=b, users=[f"expert.{a}"]) for a, b in ("ab", "bc", "cd"))]
GOOGLE = {"kind": "google", "models": {"m": {}}}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown provider": (config(tool(provider="gogle")), "/tools/0/provider", "google"),
    "a compatible provider without address": (
        config(tool(), providers={"p": {"kind": "compatible"}}),
        "/providers/p",
        "the address of its API",
    ),
    "an unknown kind": (
        config(tool(), providers={"p": {"kind": "what"}}),
        "/providers/p/kind",
        "Choose one",
    ),
    "a misspelt key of a provider": (
        config(tool(), providers={"p": {"kind": "google", "adress": "x"}}),
        "/providers/p",
        "Correct or remove",
    ),
    "a model that is not among those of the file": (
        config(tool(model="n"), providers={"google": GOOGLE}),
        "/tools/0/model",
        "Available models: m",
    ),
    "an unknown scripted model": (
        config(tool(provider="scripted")),
        "/tools/0/model",
        "research_repository",
    ),
    "an unknown model among the fallbacks": (
        config(tool(fallbacks=[{"provider": "scripted", "model": "n"}])),
        "/tools/0/fallbacks/0/model",
        "Available",
    ),
    "a money budget without prices": (config(tool(max_cost=1)), "/tools/0", "enter the prices"),
    "a tool that is gone": (
        config(tool(internal_tools={"fs": ["gone"]})),
        "/tools/0/internal_tools/fs",
        "offers: here",
    ),
    "a tool that never was": (
        config(tool(internal_tools={"fs": ["raed"]})),
        "/tools/0/internal_tools/fs",
        "offers: here",
    ),
    "a name that is too long": (config(tool(name="x" * 61)), "/tools/0", "Correct these fields"),
    "arguments that are no schema": (
        config(tool(arguments={"type": "object", "properties": {"q": {"type": "text"}}})),
        "/tools/0",
        "JSON Schema",
    ),
    "an unknown agent": (config(tool(users=["nobody"])), "/tools/0/users/0", "Available"),
    "an unknown endpoint": (
        config(tool(endpoints=["nowhere"])),
        "/tools/0/endpoints/0",
        "Available",
    ),
    "an expert that calls itself": (
        config(tool(users=["expert.t"])),
        "/tools/0",
        "Remove the agents of other expert tools",
    ),
    "a circle of three": (
        config(
            tool(name="a", users=["expert.c"]),
            tool(name="b", users=["expert.a"]),
            tool(name="c", users=["expert.b"]),
        ),
        "/tools/2",
        "Remove the agents of other expert tools",
    ),
    "a chain of four": (config(*CHAIN), "/tools/3", "Shorten the chain"),
    "no steps at all": (config(tool(max_steps=0)), "/tools/0/max_steps", "Correct the value"),
}


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_work_is_refused_with_its_place_and_remedy(name: str) -> None:
    take(config())
    known("here", "gone")
    observe.observe(server=Server.objects.get(), listed=[{"name": "here", "inputSchema": {}}])
    data, place, remedy = BAD[name]
    if data["tools"][0]["internal_tools"] == {"fs": ["read"]}:
        data = data | {
            "tools": [each | {"internal_tools": {"fs": ["here"]}} for each in data["tools"]]
        }
    outcome = take(data)
    assert [note.pointer for note in outcome.refused] == [place], [
        str(note) for note in outcome.refused
    ]
    assert remedy in outcome.refused[0].remedy
    assert not outcome.saved
    assert not ExpertTool.objects.exists()
    assert not Provider.objects.exists()
    assert not Agent.objects.exists()


def test_a_chain_of_three_is_allowed() -> None:
    assert take(config(*CHAIN[:3])).saved


def test_in_the_plain_format_what_only_the_extended_one_knows_is_kept_and_said_so() -> None:
    outcome = take(config(tool(max_steps=3)), extended=False)
    assert any(
        note.pointer == "/tools/0/max_steps" and "--extended" in note.remedy
        for note in outcome.notes
    )
    assert ExpertTool.objects.get().max_steps == 10
    assert export_config(format_name="slipsnisse", actor="t").data["tools"] == [tool(max_steps=3)]


def test_a_file_of_before_is_made_once_somebody_may() -> None:
    raw = sample("slipsnisse/worked_example.yaml")
    import_file(raw=raw, path="s.yaml", actor="test")
    assert not ExpertTool.objects.exists()
    import_file(raw=raw, path="s.yaml", actor="test", may_grant=True)
    assert ExpertTool.objects.get().name == "research_dependency"
    assert len(export_config(format_name="slipsnisse", actor="t").data["tools"]) == 1
    assert timezone.now() >= ExpertTool.objects.get().created_at
