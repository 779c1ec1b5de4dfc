"""People decide on definitions: each text that a tool was ever offered with is approved, rejected,
or waits.

A tool serves only while what its server says now is what was approved (``Tool.offers.serving``): a
new or changed one is quarantined until somebody decides, the others of its server go on. Every
approved text stays approved until it is rejected, so a server that goes back to one of them heals
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from simple_history.utils import bulk_update_with_history

from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.definitions.definition import list_changed_fields
from mcpregistry.domain.definitions.findings import VERSION, Severity
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.offer_kinds import READ
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import Definition, Server, Tool
from mcpregistry.services.configuration.rule_inputs import check_rule_inputs
from mcpregistry.services.configuration.saving import take_current
from mcpregistry.services.records import audit

_BY_OPERATORS = ("enabled", "idempotent", "call_energy", "call_cost", "own_name", "own_description")
# by readings and by decisions
SEEN_OR_DECIDED = ("pinned", "latest", "present", "first_seen_at", "last_seen_at")


def approve(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Approve this definition: while the server says exactly this, the tool is listed and
    called."""
    (tool,) = approve_all(definitions=[definition], actor=actor, user=user)
    return tool


@transaction.atomic
def approve_all(
    *, definitions: Sequence[Definition], actor: str, user: object = None
) -> list[Tool]:
    """Approve definitions of as many tools, in a few queries however many they are. Returns their
    tools.

    Raises Conflict for a tool whose name an operator has given to another one of its server.
    """
    ids = [definition.pk for definition in definitions]
    tools = _lock_tools(definitions)
    _check_names_are_free(tools)
    before = {tool.pk: tool.pinned.data if tool.pinned else {} for tool in tools}
    Definition.objects.filter(pk__in=ids).update(
        approved=True, decided_at=timezone.now(), decided_by=user
    )
    # After the decision: what a server says now may be a text that was approved before.
    approved = set(
        Definition.objects.filter(
            pk__in=[tool.latest_id for tool in tools], approved=True
        ).values_list("pk", flat=True)
    )
    for tool, definition in zip(tools, definitions, strict=True):
        tool.pinned_id = tool.latest_id if tool.latest_id in approved else definition.pk
    bulk_update_with_history(tools, Tool, ["pinned"])
    with audit.collect_entries():
        for tool, definition in zip(tools, definitions, strict=True):
            _tell(tool, definition, before[tool.pk], actor)
    return tools


def _lock_tools(definitions: Sequence[Definition]) -> list[Tool]:
    """The tools of the definitions, in their order."""
    rows = (
        Tool.offers.select_for_update(of=("self",))
        .select_related("server", "pinned")
        .order_by("pk")
    )
    found = {tool.pk: tool for tool in rows.filter(pk__in=[each.tool_id for each in definitions])}
    return [found[definition.tool_id] for definition in definitions]


def _check_names_are_free(tools: Sequence[Tool]) -> None:
    """Hosts that know the other tool by this name would call this one in its place."""
    names = {(tool.server_id, tool.kind, tool.name) for tool in tools}
    given = Tool.offers.filter(
        server__in={server for server, *_ in names}, own_name__in={name for *_, name in names}
    )
    for other in given.select_related("server"):
        if other.own_name != other.name and (other.server_id, other.kind, other.own_name) in names:
            raise Conflict(
                f"Hosts already use the name '{other.own_name}' for another tool: {other}.",
                remedy=f"First change or clear the field “Name for hosts” of {other}.",
            )


def _tell(tool: Tool, definition: Definition, before: dict[str, Any], actor: str) -> None:
    fields = list_changed_fields(before, definition.data)
    audit.record_entry(
        kind="definition.approved",
        actor=actor,
        subject=f"tool:{tool}",
        hash=definition.hash,
        fields=fields,
        severity=definition.severity,
    )
    if before and "annotations" in fields:
        _withdraw_confirmation(tool, actor)


def _withdraw_confirmation(tool: Tool, actor: str) -> None:
    """What somebody vouched for was another claim: the worst is assumed until somebody looks
    again."""
    if (tool.read_only, tool.destructive, tool.open_world) == (None, None, None):
        return
    tool.read_only = None
    tool.destructive = None
    tool.open_world = None
    tool.save(update_fields=["read_only", "destructive", "open_world"])
    audit.record_entry(kind="tool.confirmation_withdrawn", actor=actor, subject=f"tool:{tool}")


@transaction.atomic
def reject(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Never serve this definition; if it is the one being served, the tool is withdrawn."""
    tool = _lock_tool(definition)
    _decide(definition, user, approved=False)
    if tool.pinned_id == definition.pk:
        _pin(tool, None)
    audit.record_entry(
        kind="definition.rejected", actor=actor, subject=f"tool:{tool}", hash=definition.hash
    )
    return tool


@transaction.atomic
def revert(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Reject this definition and hold to the text that was approved before it.

    We cannot make a server say something else: the tool serves again once the server offers the
    earlier text. Raises Conflict when no other text of the tool was ever approved.
    """
    tool = _lock_tool(definition)
    earlier = (
        tool.definitions.filter(approved=True)
        .exclude(pk=definition.pk)
        .order_by("-decided_at", "-pk")
        .first()
    )
    if earlier is None:
        raise Conflict(
            "This tool does not have an earlier approved definition that you can keep.",
            remedy="Reject this definition instead.",
        )
    _decide(definition, user, approved=False)
    _pin(tool, earlier.pk)
    audit.record_entry(
        kind="definition.reverted",
        actor=actor,
        subject=f"tool:{tool}",
        hash=definition.hash,
        kept=earlier.hash,
    )
    return tool


def _lock_tool(definition: Definition) -> Tool:
    return Tool.offers.select_for_update(of=("self",)).get(pk=definition.tool_id)


def _decide(definition: Definition, user: object, *, approved: bool) -> None:
    Definition.objects.filter(pk=definition.pk).update(
        approved=approved, decided_at=timezone.now(), decided_by=user
    )


def _pin(tool: Tool, definition_id: int | None) -> None:
    tool.pinned_id = definition_id
    tool.save(update_fields=["pinned"])


@transaction.atomic
def approve_waiting(*, server: Server, actor: str, user: object = None) -> int:
    """Approve the newest definition of every tool of the server that waits. Returns how many."""
    return _approve_each(server.tools.waiting(), actor, user)


def _approve_each(tools: QuerySet[Tool], actor: str, user: object) -> int:
    waiting = [tool.latest for tool in tools.select_related("latest") if tool.latest]
    return len(approve_all(definitions=waiting, actor=actor, user=user))


@transaction.atomic
def approve_clean(*, server: Server, up_to: int, actor: str, user: object = None) -> int:
    """Approve what waits and gave the scanner no alarm. Returns how many.

    ``up_to``: the newest definition (its id) that was there when the person looked.
    """
    return _approve_each(select_clean_tools(server, up_to), actor, user)


def select_clean_tools(server: Server, up_to: int) -> QuerySet[Tool]:
    """What waits of a server, was there when the person looked (``up_to``), and gave the scanner no
    alarm."""
    return server.tools.waiting().filter(
        latest__lte=up_to, latest__severity__lt=Severity.ALARM, latest__scanner=VERSION
    )


def _check_own_words(tool: Tool) -> None:
    """An operator's name and text for hosts are short and legal, and nothing else of the server is
    called so."""
    try:
        tool.clean_fields(
            exclude={field.name for field in tool._meta.fields} - {"own_name", "own_description"}
        )
    except ValidationError as error:
        raise ConfigInvalid(
            "; ".join(error.messages),
            remedy="Correct the field “Name for hosts” or “Description for hosts”.",
        ) from None
    if tool.own_name:
        others = Tool.offers.filter(server=tool.server_id, kind=tool.kind).exclude(pk=tool.pk)
        if tool.kind in READ:
            raise ConfigInvalid(
                "A resource cannot have another name for hosts, because hosts identify a resource by its URI.",
                remedy="Leave the field “Name for hosts” empty.",
            )
        if others.filter(Q(name=tool.own_name) | Q(own_name=tool.own_name)).exists():
            raise ConfigInvalid(
                f"The server {tool.server} already has a {tool.kind} with the name '{tool.own_name}'.",
                remedy="Choose another name, or leave the field “Name for hosts” empty.",
            )


@transaction.atomic
def save_tool(*, tool: Tool, actor: str, rights: Rights = deny_all_rights) -> Tool:
    """Save what an operator says of a tool: on or off, whether it may be called twice, what a call
    costs.

    Raises ConfigInvalid for an estimate below zero, and Denied as ``check_rule_inputs``.
    """
    before = take_current(tool, own=(*SEEN_OR_DECIDED, "read_only", "destructive", "open_world"))
    if min(tool.call_energy or 0, tool.call_cost or 0) < 0:
        raise ConfigInvalid(
            "The energy and cost of a call cannot be negative.",
            remedy="Enter 0 or a positive number.",
        )
    _check_own_words(tool)
    check_rule_inputs(tool, before, rights=rights)
    tool.save(update_fields=[*_BY_OPERATORS])
    facts = {
        "enabled": tool.enabled,
        "idempotent": tool.idempotent,
        "energy": tool.call_energy,
        "cost": None if tool.call_cost is None else str(tool.call_cost),
        "own_name": tool.own_name,
        "own_description": hash_parts(tool.own_description) if tool.own_description else "",
    }
    audit.record_entry(kind="tool.changed", actor=actor, subject=f"tool:{tool}", **facts)
    return tool
