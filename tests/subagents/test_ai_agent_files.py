"""A file of ai-agent: its providers, models and defaults become records, and later changes go back
into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from subagents.models import LanguageModel, Provider
from subagents.runs.targets import build_target
from subagents.services import providers
from tests.domain.formats.samples import sample

pytestmark = pytest.mark.django_db

SECRET = "sk-5ecre7"
RAW = sample("ai-agent/ai-agent.json")


def take(data: dict[str, Any], **options: Any) -> ImportOutcome:
    return import_file(
        raw=json.dumps({"mcpServers": {}} | data).encode(),
        path=".ai-agent.json",
        actor="test",
        **{"may_rule": True, "may_grant": True} | options,
    )


def given_back() -> dict[str, Any]:
    return dict(export_config(format_name="ai-agent", actor="test").data)


def test_providers_and_models_are_made_of_it_and_it_comes_back_unchanged() -> None:
    assert take(json.loads(RAW)).saved
    anthropic = Provider.objects.get(slug="anthropic")
    assert (
        anthropic.kind,
        anthropic.key,
        anthropic.base_url,
        anthropic.tool_choice,
        anthropic.timeout,
    ) == (
        "anthropic",
        "${ANTHROPIC_API_KEY}",
        "https://api.example",
        "auto",
        120,
    )
    haiku = anthropic.models.get()
    assert (
        haiku.name,
        haiku.context_window,
        haiku.tokenizer,
        haiku.buffer_tokens,
        haiku.tool_choice,
    ) == (
        "haiku",
        200_000,
        "anthropic",
        512,
        "required",
    )
    assert Provider.objects.get(slug="ollama").options == {
        "temperature": 0.7,
        "top_p": 1.0,
        "think": True,
        "num_ctx": 8192,
    }
    assert given_back()["providers"] == json.loads(RAW)["providers"]
    assert {change.action for change in take(json.loads(RAW)).changes} == {"unchanged"}


def test_the_defaults_are_in_every_request() -> None:
    models = {"a": {"overrides": {"seed": 7}}}
    defaults = {
        "temperature": 0.3,
        "topP": 0.9,
        "parallelToolCalls": False,
        "llmTimeout": 1500,
        "contextWindowBufferTokens": 1000,
    }
    assert take(
        {"providers": {"openai": {"apiKey": SECRET, "models": models}}, "defaults": defaults}
    ).saved
    model = LanguageModel.objects.get()
    target = build_target(model.pk, temperature=0.0, at_most=60)
    assert (target.temperature, target.timeout, target.key) == (0.3, 1.5, SECRET)
    assert target.options == {"top_p": 0.9, "parallel_tool_calls": False, "seed": 7}
    assert model.buffer_tokens == 1000


def test_overrides_are_sent_in_the_providers_spelling_and_the_output_limit_is_the_models() -> None:
    models = {"a": {"overrides": {"topP": 0.8, "maxOutputTokens": 900}}}
    given = {"providers": {"openai": {"apiKey": SECRET, "models": models}}}
    assert take(given).saved
    model = LanguageModel.objects.get()
    target = build_target(model.pk, temperature=0.0, at_most=60)
    assert (target.options, target.max_output, model.max_output) == ({"top_p": 0.8}, 900, 900)
    assert given_back()["providers"]["openai"]["models"] == models


def test_an_option_that_a_provider_would_ignore_is_refused_with_its_place() -> None:
    models = {"a": {"overrides": {"topK": 3}}}
    outcome = take({"providers": {"openai": {"apiKey": SECRET, "models": models}}})
    assert not outcome.saved
    assert "does not have these options: top_k" in str(outcome)


def test_a_small_window_leaves_room_for_a_question() -> None:
    models = {
        "a": {
            "contextWindow": 4000,
            "contextWindowBufferTokens": 512,
            "tokenizer": "tiktoken:o200k_base",
        }
    }
    assert take({"providers": {"ollama": {"models": models}}}).saved
    model = LanguageModel.objects.get()
    assert (model.context_window, model.max_output, model.buffer_tokens) == (4000, 1000, 512)


def test_what_is_changed_here_shows_in_the_file_and_a_deleted_provider_is_gone_from_it() -> None:
    take(json.loads(RAW))
    haiku = LanguageModel.objects.get(name="haiku")
    haiku.context_window = 100_000
    providers.save_model(model=haiku, actor="test")
    providers.delete_provider(provider=Provider.objects.get(slug="ollama"), actor="test")
    expected = json.loads(RAW)["providers"]
    expected["anthropic"]["models"]["haiku"]["contextWindow"] = 100_000
    del expected["ollama"]
    assert given_back()["providers"] == expected


def test_a_key_that_is_written_out_is_sealed_and_leaves_as_a_reference() -> None:
    take({"providers": {"openai": {"apiKey": SECRET}}})
    provider = Provider.objects.get()
    assert provider.key == SECRET
    assert SECRET not in str(list(Provider.objects.values())) + str(list(Provider.history.values()))
    assert SECRET not in json.dumps(given_back())
    assert given_back()["providers"]["openai"]["apiKey"].startswith("${")
    other = export_config(format_name="slipsnisse-extended", actor="test", include_secrets=True)
    assert SECRET not in json.dumps(other.data)
    own = export_config(format_name="ai-agent", actor="test", include_secrets=True)
    assert own.data["providers"]["openai"]["apiKey"] == SECRET


def test_another_key_is_a_conflict_that_shows_neither() -> None:
    take({"providers": {"openai": {"apiKey": SECRET}}})
    outcome = take({"providers": {"openai": {"apiKey": SECRET + "x"}}})
    assert [note.pointer for note in outcome.refused] == ["/providers/openai"]
    assert SECRET not in str(outcome.notes) + outcome.format_diff()
    assert take({"providers": {"openai": {"apiKey": SECRET + "x"}}}, on_conflict="replace").saved
    assert Provider.objects.get().key == SECRET + "x"


def test_an_address_may_come_from_a_variable_of_the_place_of_import() -> None:
    file = {"providers": {"home": {"baseUrl": "http://${HOST_AT_HOME}:8080/v1"}}}
    assert [n.pointer for n in take(file, variables={}).refused] == ["/providers/home"]
    assert take(file, variables={"HOST_AT_HOME": "127.0.0.1"}).saved
    provider = Provider.objects.get()
    assert (provider.kind, provider.base_url) == ("compatible", "http://127.0.0.1:8080/v1")


def test_whoever_may_not_grant_has_them_kept_and_is_told() -> None:
    outcome = take(json.loads(RAW), may_grant=False)
    assert outcome.saved
    assert not Provider.objects.exists()
    told = {
        note.pointer for note in outcome.notes if note.sentence.startswith("Kept, but not created")
    }
    assert told == {"/providers/anthropic", "/providers/ollama"}
    assert given_back()["providers"] == json.loads(RAW)["providers"]


@pytest.mark.parametrize(
    ("file", "pointer"),
    [
        ({"providers": {"openai": []}}, "/providers/openai"),
        (
            {"providers": {"openai": {"models": {"m": {"contextWindow": 0}}}}},
            "/providers/openai/models/m/contextWindow",
        ),
        ({"providers": {"openai": {"toolChoice": "none"}}}, "/providers/openai/toolChoice"),
        (
            {"providers": {"ollama": {"custom": {"providerOptions": {"ollama": {"thnik": True}}}}}},
            "/providers/ollama",
        ),
        (
            {"providers": {"openai": {"models": {"m": {"tokenizer": "abacus"}}}}},
            "/providers/openai/models/m",
        ),
        (
            {"providers": {"a b": {"baseUrl": "http://x"}, "a-b": {"baseUrl": "http://y"}}},
            "/providers/a-b",
        ),
        ({"defaults": {"temperature": 3}}, "/defaults/temperature"),
        ({"defaults": {"llmTimeout": 5}}, "/defaults/llmTimeout"),
    ],
)
def test_what_cannot_hold_is_refused_with_its_place(file: dict[str, Any], pointer: str) -> None:
    outcome = take(file)
    assert pointer in [note.pointer for note in outcome.refused]
    assert all(note.remedy for note in outcome.refused)
    assert not Provider.objects.exists()
