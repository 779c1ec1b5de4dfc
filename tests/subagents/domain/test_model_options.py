"""Options in every spelling, and which of them are refused when they are saved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagents.domain.model_options import (
    LEAST_BUDGET,
    claude_thinking,
    combine_options,
    normalize_names,
    problem,
)

THINKS = {"thinking": {"type": "enabled", "budget_tokens": 2048}}


def test_each_option_has_one_spelling_and_an_unknown_one_keeps_its_own() -> None:
    written = {
        "topP": 0.8,
        "topK": 3,
        "stopSequences": ["END"],
        "reasoningEffort": "low",
        "ownThing": True,
    }
    assert normalize_names(written) == {
        "top_p": 0.8,
        "top_k": 3,
        "stop": ["END"],
        "reasoning_effort": "low",
        "ownThing": True,
    }


@pytest.mark.parametrize(
    ("kind", "model", "options"),
    [
        (
            "openai",
            "gpt-4o",
            {"topP": 0.8, "seed": 7, "parallel_tool_calls": False, "temperature": 0.1},
        ),
        ("openai", "gpt-5-mini", {"reasoning_effort": "high", "temperature": 1}),
        ("openai", "gpt-5.1", {"reasoning_effort": "none", "top_p": 0.5}),
        ("openai", "gpt-5-chat-latest", {"temperature": 0.1}),
        ("anthropic", "claude-sonnet-4-5", {**THINKS, "temperature": 1}),
        ("anthropic", "claude-opus-4-7", {"thinking": {"type": "adaptive"}}),
        (
            "anthropic",
            "claude-sonnet-4-5",
            {"thinking": {"type": "disabled"}, "temperature": 0.2, "top_k": 5},
        ),
        (
            "google",
            "gemini-2.5-flash",
            {"topK": 4, "safetySettings": [], "thinkingConfig": {"thinkingBudget": 5}},
        ),
        ("ollama", "qwen3", {"num_ctx": 8192, "think": True}),
        ("compatible", "m", {"chat_template_kwargs": {"enable_thinking": True}, "min_p": 0.1}),
    ],
)
def test_what_a_provider_takes_is_no_problem(
    kind: str, model: str, options: dict[str, Any]
) -> None:
    assert problem(kind, model, normalize_names(options), max_output=4096) is None


@pytest.mark.parametrize(
    ("kind", "model", "options", "says"),
    [
        (
            "openai",
            "gpt-4o",
            {"thinking": {"type": "enabled"}},
            "does not have these options: thinking",
        ),
        ("openai", "gpt-4o", {"topK": 4}, "does not have these options: top_k"),
        ("openai", "gpt-5-mini", {"topP": 0.4}, "options: top_p"),
        (
            "openai",
            "o3-mini",
            {"temperature": 0.4},
            "options: temperature",
        ),
        ("compatible", "m", {"maxOutputTokens": 100}, "is not an option"),
        ("google", "gemini-2.5-flash", {"max_tokens": 100}, "is not an option"),
        ("openrouter", "m", {"messages": []}, "reserved for the site: messages"),
        ("anthropic", "claude-sonnet-4-5", {"seed": 7}, "does not have these options: seed"),
        ("anthropic", "claude-sonnet-4-5", {"thinking": True}, "must be an object with the type"),
        ("anthropic", "claude-sonnet-4-5", {"thinking": {"type": "enabled"}}, "at least 1,024"),
        (
            "anthropic",
            "claude-sonnet-4-5",
            {"thinking": {"type": "enabled", "budget_tokens": 4000}},
            "no room",
        ),
        (
            "anthropic",
            "claude-sonnet-4-5",
            {"thinking": {"type": "adaptive"}},
            "cannot choose the length of its thinking",
        ),
        ("anthropic", "claude-opus-4-7", THINKS, "chooses the length"),
        ("anthropic", "claude-opus-4-7", {"temperature": 0.2}, "options: temperature"),
        (
            "anthropic",
            "claude-sonnet-4-5",
            {**THINKS, "temperature": 0.2},
            "only a temperature of 1",
        ),
        ("anthropic", "claude-sonnet-4-5", {**THINKS, "topK": 4}, "does not support top_k"),
        (
            "anthropic",
            "claude-sonnet-4-5",
            {"reasoning_effort": "huge"},
            "'huge' is not a valid reasoning effort",
        ),
        ("ollama", "qwen3", {"topPP": 1}, "does not have these options: topPP"),
        ("compatible", "m", {"baseUrl": "http://h"}, "does not have these options: baseUrl"),
    ],
)
def test_what_would_be_dropped_or_refused_later_is_refused_at_once(
    kind: str, model: str, options: dict[str, Any], says: str
) -> None:
    found = problem(kind, model, normalize_names(options), max_output=4096)
    assert found is not None
    assert says in found.sentence
    assert found.remedy


# What litellm takes besides, and by which a request could go elsewhere, with another key, or
# through somebody.
REDIRECTIONS = (
    "base_url",
    "api_base",
    "api_key",
    "api_version",
    "api_type",
    "custom_llm_provider",
    "extra_headers",
    "headers",
    "default_headers",
    "extra_body",
    "extra_query",
    "proxy",
    "proxies",
    "client",
    "shared_session",
    "fallbacks",
    "context_window_fallbacks",
    "model_list",
    "deployment_id",
    "organization",
    "mock_response",
    "ssl_verify",
    "aws_bedrock_runtime_endpoint",
    "vertex_location",
    "region_name",
    "use_litellm_proxy",
    "litellm_params",
    "callbacks",
    "success_callback",
    "langfuse_host",
    "allowed_openai_params",
    "_skip_responses_api_bridge",
    "litellm_metadata",
    "caching",
    "cache",
    "hooks",
    "prompt_id",
    "api-base",
    "BASE_URL",
    "baseURL",
    "apiBase",
)


@pytest.mark.parametrize(
    "kind", ["openai", "anthropic", "google", "openrouter", "ollama", "compatible", "scripted"]
)
def test_options_are_an_allow_list_and_nothing_on_it_says_where_a_request_goes(kind: str) -> None:
    for name in REDIRECTIONS:
        found = problem(
            kind, "m", normalize_names({name: "http://127.0.0.1:1/v1"}), max_output=4096
        )
        assert found is not None, name
        assert name in found.sentence
        assert "Allowed options: " in found.remedy
        assert "temperature" in found.remedy
    assert problem("unheard of", "m", {"seed": 1}, max_output=4096) is not None


def test_a_model_that_thinks_cannot_be_made_to_call_and_needs_room_for_an_answer() -> None:
    found = problem(
        "anthropic", "claude-sonnet-4-5", THINKS, max_output=4096, tool_choice="required"
    )
    assert found is not None
    assert "forced to call" in found.sentence
    found = problem("anthropic", "claude-sonnet-4-5", {"reasoning_effort": "low"}, max_output=1200)
    assert found is not None
    assert "at least 1,024" in found.sentence


@given(
    max_output=st.integers(1, 200_000),
    options=st.one_of(
        st.builds(
            lambda n: {"thinking": {"type": "enabled", "budget_tokens": n}},
            st.integers(1024, 200_000),
        ),
        st.builds(
            lambda e: {"reasoning_effort": e},
            st.sampled_from(["minimal", "low", "medium", "high", "max"]),
        ),
    ),
)
def test_a_budget_is_always_below_the_output_limit(
    max_output: int, options: dict[str, Any]
) -> None:
    thinking = claude_thinking("claude-sonnet-4-5", options, max_output)
    if thinking is not None:
        assert LEAST_BUDGET <= thinking.thinking["budget_tokens"] < max_output


def test_a_providers_sampling_does_not_go_to_a_model_that_takes_none_but_its_own_does_and_is_refused() -> (
    None
):
    general = {"temperature": 0.7, "topP": 0.9, "seed": 7}
    assert combine_options("openai", "gpt-5-mini", general, {}) == {"seed": 7}
    assert combine_options("openai", "gpt-4o", general, {"topP": 0.5}) == {
        "temperature": 0.7,
        "top_p": 0.5,
        "seed": 7,
    }
    assert combine_options("anthropic", "claude-sonnet-4-5", general, THINKS) == THINKS | {
        "seed": 7
    }
    own = combine_options("openai", "gpt-5-mini", general, {"topP": 0.5})
    assert problem("openai", "gpt-5-mini", own, max_output=4096) is not None
