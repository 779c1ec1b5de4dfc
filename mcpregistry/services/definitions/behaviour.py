"""What a tool does (reads only, destroys, reaches out): what its server claims, and what a person has confirmed of it."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Tool
from mcpregistry.services.records import audit

HINTS = {"read_only": "readOnlyHint", "destructive": "destructiveHint", "open_world": "openWorldHint"}


def claims(tool: Tool) -> dict[str, bool]:
    """What the server claims in the approved definition (MCP tool annotations), by our names; often nothing."""
    given = tool.pinned.data.get("annotations") if tool.pinned else None
    said = given if isinstance(given, dict) else {}
    return {name: said[hint] for name, hint in HINTS.items() if isinstance(said.get(hint), bool)}


@transaction.atomic
def confirm_annotations(
    *, tool: Tool, actor: str, read_only: bool | None, destructive: bool | None, open_world: bool | None
) -> Tool:
    """Vouch for what a tool does; None: nothing is known, so the worst is assumed. Raises ConfigInvalid."""
    if read_only and destructive:
        raise ConfigInvalid("A tool that only reads destroys nothing.", remedy="Choose one of the two.")
    tool = Tool.offers.select_for_update(of=("self",)).get(pk=tool.pk)
    tool.read_only, tool.destructive, tool.open_world = read_only, destructive, open_world
    tool.save(update_fields=[*HINTS])
    facts = {name: getattr(tool, name) for name in HINTS}
    audit.record(kind="tool.confirmed", actor=actor, subject=f"tool:{tool}", **facts)
    return tool


def confirm_claims(*, tool: Tool, actor: str) -> Tool:
    """Confirm all that the server claims; what it is silent about stays as it is. Raises ConfigInvalid."""
    claimed = claims(tool)
    if not claimed:
        raise ConfigInvalid("The server claims nothing about this tool.", remedy="Say yourself what the tool does.")
    facts = {name: claimed.get(name, getattr(tool, name)) for name in HINTS}
    if facts["read_only"]:
        facts["destructive"] = False
    return confirm_annotations(tool=tool, actor=actor, **facts)
