"""The ``providers`` and ``defaults`` of ``.ai-agent.json`` as the providers of the extended format,
and back.

A default holds for every provider of the file: ``llmTimeout`` becomes its time for one answer,
``temperature``, ``topP`` and ``parallelToolCalls`` become options of its requests,
``contextWindowBufferTokens`` the buffer of each model that states none. Back, only what differs
from the file is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.formats.document import JsonObject
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.notes import FormatReport, make_pointer
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.text.display import number_of

# A provider is of the kind that it is named after; one with an address speaks OpenAI's chat
# completions.
_KINDS = ("openai", "anthropic", "google", "openrouter", "ollama", "scripted")
_PARALLEL = ("openai", "openrouter", "compatible")
_PROVIDER = {"apiKey": "key", "baseUrl": "base_url", "toolChoice": "tool_choice"}
_BUFFER = "contextWindowBufferTokens"
_MODEL = {
    "contextWindow": "context_window",
    "tokenizer": "tokenizer",
    _BUFFER: "buffer_tokens",
    "toolChoice": "tool_choice",
    "overrides": "overrides",
}
_OUTPUT = ("maxOutputTokens", "max_output_tokens", "max_tokens", "maxTokens")
_LARGE = 16_384  # tokens
_SENT = {"temperature": "temperature", "topP": "top_p", "parallelToolCalls": "parallel_tool_calls"}


def read_providers(
    providers: JsonObject, defaults: JsonObject, report: FormatReport | None = None
) -> dict[str, JsonObject]:
    """The file's providers as those of the extended format, by the slugs under which they are known
    here.

    One whose kind is unknown is left out; with ``report`` that is said there, too.
    """
    found: dict[str, JsonObject] = {}
    for name, raw in providers.items():
        kind = _find_provider_kind(name, raw)
        key = make_slug(name)
        if report and key in found:
            report.refuse(
                make_pointer("providers", name),
                f"Another provider also gets the name {key}.",
                "Rename one of the two providers.",
            )
        if kind:
            found[key] = _read_provider(kind, raw, defaults)
        if report:
            _report_provider_keys(name, raw, kind, report)
    return found


def _report_provider_keys(name: str, raw: JsonObject, kind: str, report: FormatReport) -> None:
    at = make_pointer("providers", name)
    if not kind:
        remedy = f"Use one of these names for the provider: {', '.join(_KINDS)}. Or add a baseUrl, if the provider supports OpenAI's chat completions."
        report.add(
            "parked",
            at,
            "The provider is kept in the file, but not created, because its API is not known.",
            remedy,
        )
        return
    report.add(
        "translated",
        at,
        f"The entry becomes a provider of the kind {kind} with {number_of(len(raw.get('models', {})), 'model')}.",
    )
    if "stream" in raw.get("custom", {}):
        report.add(
            "parked",
            at + "/custom/stream",
            "The value is kept, but not used: answers are always requested as a whole.",
        )


def _find_provider_kind(name: str, raw: JsonObject) -> str:
    """Empty where that is not known, or the name has no letter that we can know it by."""
    if name in _KINDS:
        return name
    return "compatible" if raw.get("baseUrl") and make_slug(name) else ""


def _read_provider(kind: str, raw: JsonObject, defaults: JsonObject) -> JsonObject:
    entry = {"kind": kind, **_rename_keys(raw, _PROVIDER)}
    if options := {**_read_sent_parameters(kind, defaults), **_read_provider_options(raw)}:
        entry["options"] = options
    if "llmTimeout" in defaults:
        entry["timeout"] = defaults["llmTimeout"] / 1000
    if "models" in raw:
        entry["models"] = {
            name: _read_model(facts, defaults) for name, facts in raw["models"].items()
        }
    return entry


def _read_model(raw: JsonObject, defaults: JsonObject) -> JsonObject:
    buffer = {"buffer_tokens": defaults[_BUFFER]} if _BUFFER in defaults else {}
    facts = buffer | _rename_keys(raw, _MODEL) | _extract_output_limit(raw.get("overrides") or {})
    # The usual 4,096 tokens of an answer would leave a small window no question.
    if "max_output" not in facts and (window := facts.get("context_window", _LARGE)) < _LARGE:
        facts["max_output"] = max(1, window // 4)
    return facts


def _extract_output_limit(overrides: JsonObject) -> JsonObject:
    """How long an answer may be is a field of the model here, and no override."""
    found = next(
        (overrides[name] for name in _OUTPUT if isinstance(overrides.get(name), int)), None
    )
    if found is None:
        return {}
    return {
        "max_output": found,
        "overrides": {k: v for k, v in overrides.items() if k not in _OUTPUT},
    }


def _rename_keys(raw: JsonObject, names: Mapping[str, str]) -> JsonObject:
    return {ours: raw[theirs] for theirs, ours in names.items() if theirs in raw}


def _read_sent_parameters(kind: str, defaults: JsonObject) -> JsonObject:
    sent = _rename_keys(defaults, _SENT)
    if kind not in _PARALLEL:
        sent.pop("parallel_tool_calls", None)
    return sent


def _read_provider_options(raw: JsonObject) -> JsonObject:
    """``custom.providerOptions`` flat and in the providers' own spelling; Ollama nests most of its
    own once more."""
    options: JsonObject = {}
    for group in raw.get("custom", {}).get("providerOptions", {}).values():
        options |= {_to_snake_case(key): value for key, value in group.items() if key != "options"}
        nested = group.get("options", {})
        options |= nested if isinstance(nested, dict) else {"options": nested}
    return options


def _to_snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), key)


# Back


def write_providers(
    providers: JsonObject, defaults: JsonObject, now: Mapping[str, JsonObject], report: FormatReport
) -> JsonObject:
    """The file's ``providers``, brought up to date with ``now`` (the extended format's, by our
    names).

    Used by ``write``. What this format cannot say stays here and is reported; a provider that is
    gone here is left out.
    """
    stated = read_providers(providers, defaults)
    written: JsonObject = {}
    for name, raw in providers.items():
        key = make_slug(name)
        if key not in stated:
            written[name] = raw
        elif key in now:
            written[name] = _update_provider(name, raw, stated[key], now[key], report)
    for name, entry in now.items():
        if name not in stated:
            _add(written, name, entry, defaults, report)
    return written


def _add(
    written: JsonObject, name: str, entry: JsonObject, defaults: JsonObject, report: FormatReport
) -> None:
    if (
        _find_provider_kind(name, {"baseUrl": entry.get("base_url")}) != entry["kind"]
        or name in written
    ):
        sentence = (
            f"This format cannot store that the provider {name} is of the kind {entry['kind']}. "
            "The provider is kept only on this site."
        )
        report.add("parked", "/providers", sentence, column="model_providers")
        return
    written[name] = _update_provider(
        name, {}, _read_provider(entry["kind"], {}, defaults), entry, report
    )


def _update_provider(
    name: str, raw: JsonObject, stated: JsonObject, now: JsonObject, report: FormatReport
) -> JsonObject:
    # entered here, so in no file: the file's own stays
    if not now.get("key") or not is_reference(now["key"]):
        now = {**now, "key": stated.get("key")}
    changed = _overlay_changed_keys(raw, stated, now, _PROVIDER)
    if now.get("options", {}) != stated.get("options", {}):
        changed["custom"] = {
            **raw.get("custom", {}),
            "providerOptions": {name: now.get("options", {})},
        }
    models = _write_models(raw.get("models", {}), stated.get("models", {}), now.get("models", {}))
    if models or "models" in raw:
        changed["models"] = models
    _report_unwritten_fields(name, stated, now, report)
    return changed


def _write_models(raw: JsonObject, stated: JsonObject, now: JsonObject) -> JsonObject:
    return {
        name: _overlay_changed_keys(raw.get(name, {}), stated.get(name, {}), facts, _MODEL)
        for name, facts in {**{name: now[name] for name in raw if name in now}, **now}.items()
    }


def _overlay_changed_keys(
    raw: JsonObject, stated: JsonObject, now: JsonObject, names: Mapping[str, str]
) -> JsonObject:
    """``raw`` with each known key that has changed, and without those that are empty by now."""
    found: dict[str, Any] = dict(raw)
    for theirs, ours in names.items():
        if now.get(ours) != stated.get(ours):
            found[theirs] = now.get(ours)
            if found[theirs] in (None, ""):
                del found[theirs]
    return found


def _report_unwritten_fields(
    name: str, stated: JsonObject, now: JsonObject, report: FormatReport
) -> None:
    told = {"kind", "options", "models", *_PROVIDER.values()}
    stays = {key for key in now.keys() - told if now[key] != stated.get(key)}
    for model, facts in now.get("models", {}).items():
        before = stated.get("models", {}).get(model, {})
        stays |= {
            key for key in facts.keys() - set(_MODEL.values()) if facts[key] != before.get(key)
        }
    if stays:
        sentence = f"This format cannot store {', '.join(sorted(stays))}. These values are kept only on this site."
        report.add("parked", make_pointer("providers", name), sentence, column="model_providers")
