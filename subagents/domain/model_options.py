"""Options of a model's requests: one spelling for each, and for each kind of provider those that it
takes.

Operators and files write them as they know them (``topP``, ``top_p``, ``maxOutputTokens``); they
are stored as written and read by ``normalize_names``. What would be ignored or refused with every
request is refused when it is saved (``problem``), so that nothing is dropped without a word.

What is not on a kind's list is refused (``not_allowed``): options become arguments of the library
that asks models, and among its arguments are those that say where a request goes and with which
key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Options = Mapping[str, Any]

# The other spellings of the three vendors' APIs and of the source designs' files.
_ALIASES = {
    "stop_sequences": "stop",
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_tokens",
}
_SAMPLING = {"temperature", "top_p", "stop"}
_CHAT = _SAMPLING | {
    "frequency_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "seed",
    "user",
    "verbosity",
}
_OPEN_WEIGHTS = {"min_p", "repetition_penalty", "top_a", "top_k"}  # of servers that run them
_COMPATIBLE = (
    _CHAT
    | _OPEN_WEIGHTS
    | {
        "chat_template_kwargs",
        "enable_thinking",
        "include_reasoning",
        "length_penalty",
        "logprobs",
        "metadata",
        "min_tokens",
        "num_ctx",
        "num_predict",
        "reasoning",
        "repeat_last_n",
        "repeat_penalty",
        "service_tier",
        "stop_token_ids",
        "store",
        "think",
        "thinking",
        "thinking_budget",
        "top_logprobs",
        "typical_p",
    }
)
_KNOWN = {
    "openai": _CHAT
    | {"metadata", "prompt_cache_retention", "safety_identifier", "service_tier", "store"},
    "anthropic": _SAMPLING
    | {
        "metadata",
        "parallel_tool_calls",
        "reasoning_effort",
        "service_tier",
        "thinking",
        "top_k",
    },
    "google": _SAMPLING
    | {
        "frequency_penalty",
        "presence_penalty",
        "reasoning_effort",
        "safety_settings",
        "seed",
        "thinking_config",
        "top_k",
    },
    "ollama": _SAMPLING
    | {
        "min_p",
        "num_ctx",
        "num_predict",
        "repeat_last_n",
        "repeat_penalty",
        "seed",
        "think",
        "top_k",
    },
    "openrouter": _CHAT
    | _OPEN_WEIGHTS
    | {
        "include_reasoning",
        "metadata",
        "models",
        "plugins",
        "provider",
        "reasoning",
        "route",
        "service_tier",
        "thinking",
        "transforms",
    },
    "compatible": _COMPATIBLE,
    "scripted": _COMPATIBLE,
}
_NAMES = set().union(*_KNOWN.values(), _ALIASES, _ALIASES.values())
_OURS = {
    "model",
    "messages",
    "tools",
    "stream",
    "api_key",
    "api_base",
    "num_retries",
    "max_retries",
    "timeout",
}
_EFFORTS = {
    "minimal": 1_024,
    "low": 1_024,
    "medium": 2_048,
    "high": 4_096,
    "xhigh": 8_192,
    "max": 16_384,
}
LEAST_BUDGET = 1_024  # tokens; Anthropic refuses less
_ROOM = 512  # tokens of the output that are left for the answer itself
# claude-3-7-sonnet-…, claude-opus-4-20250514, claude-sonnet-4-5-…, claude-sonnet-5
_CLAUDE = re.compile(r"claude\D*?-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_OPENAI_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d))(?!.*chat)")


@dataclass(frozen=True, slots=True)
class OptionProblem:
    """Why options cannot be sent, and what to do about it."""

    sentence: str
    remedy: str


def normalize_names(options: Options) -> dict[str, Any]:
    """The same options under the names that the rest of this project knows: ``topP`` is ``top_p``.

    A name that we do not know stays as it is, so that its refusal names it as it was written.
    """
    return {_name(written): value for written, value in options.items()}


def _name(written: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), written)
    return _ALIASES.get(snake, snake) if snake in _NAMES else written


def combine_options(kind: str, model: str, general: Options, own: Options) -> dict[str, Any]:
    """What is sent to a model: the provider's options (``general``) under its own; both as they are
    written.

    A provider's sampling is a default, as an expert tool's temperature is: it does not go to models
    that take none.
    """
    found = normalize_names(general) | normalize_names(own)
    if _samples_by_itself(kind, model, found):
        for name in {"temperature", "top_p"} - set(normalize_names(own)):
            found.pop(name, None)
    return found


def _samples_by_itself(kind: str, model: str, given: Options) -> bool:
    if kind == "openai":
        return bool(_OPENAI_REASONS.match(model)) and given.get("reasoning_effort") != "none"
    return kind == "anthropic" and (not takes_temperature(model) or _thinks(given))


def problem(
    kind: str, model: str, given: Options, *, max_output: int, tool_choice: str = ""
) -> OptionProblem | None:
    """What a provider of this kind, asked for this model, would refuse or ignore. ``model`` empty:
    of any model.

    ``given`` is ``combine_options``; ``max_output`` in tokens.
    """
    return (
        not_allowed(kind, given)
        or (
            _check_fixed_sampling(given)
            if kind == "openai" and _samples_by_itself(kind, model, given)
            else None
        )
        or (_claudes(model, given, max_output, tool_choice) if kind == "anthropic" else None)
    )


def not_allowed(kind: str, given: Options) -> OptionProblem | None:
    """Which of these options are not on the kind's list, whatever model is asked. ``given`` is
    ``normalize_names``."""
    known = _KNOWN.get(kind, set())
    unknown = sorted(set(given) - known)
    allowed = f"Allowed options: {_list(known)}."
    if "max_tokens" in given:
        return OptionProblem(
            "The length of an answer (max_tokens) is not an option.",
            "Remove max_tokens from the options, and enter it in the field Max output of the model.",
        )
    if ours := sorted(_OURS & set(given)):
        return OptionProblem(
            f"These options are reserved for the site: {', '.join(ours)}.",
            f"Remove them. {allowed}",
        )
    if unknown:
        return OptionProblem(
            f"This kind of provider does not have these options: {', '.join(unknown)}.",
            f"Remove them. {allowed}",
        )
    return None


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _check_fixed_sampling(given: Options) -> OptionProblem | None:
    fixed = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"} & set(
        given
    )
    if fixed - ({"temperature"} if given.get("temperature") == 1 else set()):
        return OptionProblem(
            f"The reasoning models of OpenAI do not support these options: {_list(fixed)}.",
            "Remove these options, or choose another model.",
        )
    return None


def _claudes(model: str, given: Options, max_output: int, tool_choice: str) -> OptionProblem | None:
    """Anthropic's rules for extended thinking, and for models that take no sampling parameters."""
    effort = given.get("reasoning_effort")
    if effort is not None and effort != "none" and effort not in _EFFORTS:
        return OptionProblem(
            f"{effort!r:.60} is not a valid reasoning effort.",
            f"Use one of none, {', '.join(_EFFORTS)}.",
        )
    if not takes_temperature(model) and (fixed := {"temperature", "top_p", "top_k"} & set(given)):
        return OptionProblem(
            f"This model does not support these options: {_list(fixed)}.",
            "Remove these options, or choose another model.",
        )
    return _wrong_thinking(model, given.get("thinking"), max_output) or (
        _beside_thinking(given, max_output, tool_choice) if _thinks(given) else None
    )


def _beside_thinking(given: Options, max_output: int, tool_choice: str) -> OptionProblem | None:
    if max_output < LEAST_BUDGET + _ROOM:
        return OptionProblem(
            f"Thinking requires at least {LEAST_BUDGET:,} tokens of the output limit, which is {max_output:,} tokens.",
            f"Raise the output limit of the model to {LEAST_BUDGET + _ROOM:,} tokens or more.",
        )
    if given.get("temperature", 1) != 1 or "top_k" in given or given.get("top_p", 1) < 0.95:
        return OptionProblem(
            "With thinking, the model supports only a temperature of 1 and a top_p of 0.95 or more, and does not support top_k.",
            "Remove these options.",
        )
    if tool_choice == "required":
        return OptionProblem(
            "With thinking, the model cannot be forced to call a tool.",
            "In the field Tool choice of the model (or, if it is empty, of the provider), choose “The model chooses”.",
        )
    return None


def _wrong_thinking(model: str, thinking: Any, max_output: int) -> OptionProblem | None:
    if thinking is None:
        return None
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in ("enabled", "adaptive", "disabled"):
        return OptionProblem(
            "The option thinking must be an object with the type enabled, adaptive or disabled.",
            'Use, for example, {"type": "enabled", "budget_tokens": 2048}.',
        )
    if kind == "adaptive" and (0, 0) < _version(model) < (4, 6):
        return OptionProblem(
            "This model cannot choose the length of its thinking itself.",
            'Set the length in the option thinking: {"type": "enabled", "budget_tokens": 2048}.',
        )
    if kind == "enabled" and not takes_temperature(model):
        return OptionProblem(
            "This model chooses the length of its thinking itself.",
            'Set the option thinking to {"type": "adaptive"}.',
        )
    return _wrong_budget(thinking.get("budget_tokens"), max_output) if kind == "enabled" else None


def _wrong_budget(budget: Any, max_output: int) -> OptionProblem | None:
    if not isinstance(budget, int) or budget < LEAST_BUDGET:
        return OptionProblem(
            f"budget_tokens in the option thinking must be at least {LEAST_BUDGET:,} (got {budget!r:.40}).",
            "Raise budget_tokens.",
        )
    if budget + _ROOM > max_output:
        return OptionProblem(
            f"A thinking budget of {budget:,} tokens leaves no room for an answer in the output limit of {max_output:,} tokens.",
            f"Raise the output limit of the model to {budget + _ROOM:,} tokens or more, or lower budget_tokens.",
        )
    return None


def _thinks(given: Options) -> bool:
    if given.get("thinking") is not None:
        return isinstance(given["thinking"], dict) and given["thinking"].get("type") != "disabled"
    return given.get("reasoning_effort") not in (None, "none")


def _version(model: str) -> tuple[int, int]:
    """Of a Claude's name; (0, 0) where it tells none."""
    found = _CLAUDE.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


@dataclass(frozen=True, slots=True)
class ClaudeThinking:
    """``thinking`` as Anthropic's API takes it; ``effort`` of a model that decides by itself how
    long it thinks."""

    thinking: dict[str, Any]
    effort: str = ""


def claude_thinking(model: str, given: Options, max_output: int) -> ClaudeThinking | None:
    """None: no thinking. The budget is below ``max_output`` whatever was asked for. ``given`` is
    ``normalize_names``."""
    if not _thinks(given) or max_output < LEAST_BUDGET + _ROOM:
        return None
    thinking = given.get("thinking")
    if thinking is None:
        effort = str(given["reasoning_effort"])
        if _version(model) >= (4, 6):
            return ClaudeThinking({"type": "adaptive"}, {"minimal": "low"}.get(effort, effort))
        thinking = {"type": "enabled", "budget_tokens": _EFFORTS.get(effort, LEAST_BUDGET)}
    if thinking["type"] == "enabled":
        thinking = {**thinking, "budget_tokens": min(thinking["budget_tokens"], max_output - _ROOM)}
    return ClaudeThinking(dict(thinking))


def takes_temperature(model: str) -> bool:
    """Whether this Claude has one at all; newer ones refuse it."""
    return _version(model) < (4, 7)


def gemini_thinking(model: str, given: Options, max_output: int) -> dict[str, Any]:
    """Gemini's ``thinkingConfig``, empty for the model's own way: as it was written, or from
    ``reasoning_effort``."""
    if written := given.get("thinking_config"):
        return dict(written)
    effort = given.get("reasoning_effort")
    if effort is None:
        return {}
    if effort == "none":
        return {"thinkingBudget": 0}
    if re.search(r"gemini-(?:[3-9]|\d\d)", model):
        levels = {"minimal": "low", "low": "low", "medium": "medium"}
        return {"thinkingLevel": levels.get(str(effort), "high")}
    return {
        "thinkingBudget": min(_EFFORTS.get(str(effort), LEAST_BUDGET), max(0, max_output - _ROOM))
    }
