"""What an approver changed in a call's arguments, and how the agent is told. Pure: values in,
values out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.offer_kinds import KINDS
from mcpregistry.domain.text.canonical import encode_lossy_json

META_KEY = "slipsnisse/approval"
# characters of one value in the words to the model; whole values stand in the metadata
_SHOWN = 500
_WHOLE = 16_000  # characters of a value that the metadata still takes whole


@dataclass(frozen=True, slots=True)
class ArgumentEdit:
    """One argument that differs; None where it is absent, else its canonical JSON."""

    name: str
    asked: str | None
    ran: str | None


def list_argument_edits(asked: str, ran: str) -> list[ArgumentEdit]:
    """The arguments that an approver changed, by name; empty when ``ran`` is empty, which means
    "not edited".

    ``asked`` and ``ran`` are JSON objects as text.
    """
    if not ran:
        return []
    before = _encode_arguments(asked)
    after = _encode_arguments(ran)
    names = sorted(before.keys() | after.keys())
    return [
        ArgumentEdit(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)
    ]


def add_edit_note(
    result: Mapping[str, Any], *, request: str, by: str, asked: str, ran: str
) -> dict[str, Any]:
    """The server's result with a note about the edit in front: text for the model, ``_meta`` for
    programs.

    ``request`` is the approval's id, ``by`` who edited. The structured content stays as it is,
    since it must fit the tool's output schema. Without a change, a copy of the result comes back.
    """
    changed = list_argument_edits(asked, ran)
    place = next((kind.answer for kind in KINDS.values() if kind.answer in result), "")
    content = result.get(place)
    meta = result.get("_meta")
    if not changed or not isinstance(content, list):
        return dict(result)
    note: dict[str, Any] = {"type": "text", "text": describe_edits(changed, by)}
    if place == "messages":  # of a prompt
        note = {"role": "user", "content": note}
    elif place == "contents":  # of a resource
        note = {
            "uri": f"slipsnisse:approval/{request}",
            "mimeType": "text/plain",
            "text": note["text"],
        }
    told_too = {
        "id": request,
        "edited_by": by,
        "changed": {c.name: _describe_change(c) for c in changed},
    }
    kept = meta if isinstance(meta, Mapping) else {}
    return {**result, place: [note, *content], "_meta": {**kept, META_KEY: told_too}}


def remove_edit_note(result: Mapping[str, Any]) -> dict[str, Any]:
    """The server's own result without the note of ``add_edit_note``; runs of expert tools use it to
    take the first part as a value.
    """
    meta = result.get("_meta")
    if not isinstance(meta, Mapping) or META_KEY not in meta:
        return dict(result)
    return {**result, "content": list(result.get("content") or [])[1:]}


def describe_edits(changed: list[ArgumentEdit], by: str) -> str:
    """The note to the model, one paragraph: who changed what, and that something else ran than what
    it asked for."""
    lines = [f"- {c.name}: {_shorten_value(c.asked)} -> {_shorten_value(c.ran)}" for c in changed]
    return "\n".join(
        [
            f"NOTE: {by} approved this call with changed arguments. The call that ran differs from your request:",
            *lines,
        ]
    )


def _encode_arguments(arguments: str) -> dict[str, str]:
    value = json.loads(arguments)
    return (
        {name: encode_lossy_json(item) for name, item in value.items()}
        if isinstance(value, dict)
        else {}
    )


def _shorten_value(text: str | None) -> str:
    if text is None:
        return "(absent)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def _describe_change(change: ArgumentEdit) -> dict[str, Any]:
    sides = {"asked": change.asked, "ran": change.ran}
    return {side: _parse_change_value(text) for side, text in sides.items() if text is not None}


def _parse_change_value(text: str) -> Any:
    return json.loads(text) if len(text) <= _WHOLE else _shorten_value(text)
