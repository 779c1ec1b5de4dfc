"""What a tool does (reads only, destroys, reaches out): what its server claims, and what a person
has confirmed of it."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import Tool
from mcpregistry.services.records import audit

HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "open_world": "openWorldHint",
}


def read_claims(tool: Tool) -> dict[str, bool]:
    """What the server claims in the approved definition (MCP tool annotations), by our names; often
    nothing."""
    given = tool.pinned.data.get("annotations") if tool.pinned else None
    said = given if isinstance(given, dict) else {}
    return {name: said[hint] for name, hint in HINTS.items() if isinstance(said.get(hint), bool)}


def fingerprint_behaviour(tool: Tool) -> str:
    """The fingerprint of what a person looks at before they vouch for a tool: its approved
    definition, and what is confirmed of it."""
    pinned = tool.pinned.hash if tool.pinned else ""
    return hash_parts("behaviour", pinned, *(str(getattr(tool, name)) for name in HINTS))


@transaction.atomic
def confirm_annotations(
    *,
    tool: Tool,
    actor: str,
    read_only: bool | None,
    destructive: bool | None,
    open_world: bool | None,
    seen: str = "",
) -> Tool:
    """Vouch for what a tool does; None: nothing is known, so the worst is assumed.

    ``seen``: ``fingerprint_behaviour`` the tool as the person was shown it; empty for callers that
    show nothing. Raises ConfigInvalid, and Conflict if the tool is not as it was shown.
    """
    if read_only and destructive:
        raise ConfigInvalid(
            "A tool that only reads cannot be destructive.",
            remedy="Choose either read-only or destructive.",
        )
    tool = lock_as_shown(tool, seen)
    tool.read_only = read_only
    tool.destructive = destructive
    tool.open_world = open_world
    tool.save(update_fields=[*HINTS])
    facts = {name: getattr(tool, name) for name in HINTS}
    audit.record_entry(kind="tool.confirmed", actor=actor, subject=f"tool:{tool}", **facts)
    return tool


@transaction.atomic
def confirm_claims(*, tool: Tool, actor: str, seen: str = "") -> Tool:
    """Confirm all that the server claims; what it is silent about stays as it is. ``seen`` and
    errors as above."""
    tool = lock_as_shown(tool, seen)
    claimed = read_claims(tool)
    if not claimed:
        raise ConfigInvalid(
            "The server declares no annotations for this tool.",
            remedy="Enter the annotations of the tool yourself.",
        )
    facts = {name: claimed.get(name, getattr(tool, name)) for name in HINTS}
    if facts["read_only"]:
        facts["destructive"] = False
    return confirm_annotations(tool=tool, actor=actor, **facts)


def lock_as_shown(tool: Tool, seen: str) -> Tool:
    """Lock the tool for the transaction. Raises Conflict if ``seen`` is given and is not
    ``fingerprint_behaviour`` the tool any more."""
    rows = Tool.offers.select_for_update(of=("self",)).select_related("pinned", "server")
    tool = rows.get(pk=tool.pk)
    if seen and seen != fingerprint_behaviour(tool):
        raise Conflict(
            "The tool was changed after you opened it: it has another definition or other confirmed annotations now.",
            remedy="Review the tool again, then confirm what it does.",
        )
    return tool
