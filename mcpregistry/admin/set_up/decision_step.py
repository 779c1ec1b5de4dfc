"""What the step of the definitions shows of each tool and of the proposed rules, and what a person
chose of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from mcpregistry.admin.annotations_page import WORDS
from mcpregistry.domain.definitions.definition import INSTRUCTIONS, strip_instructions
from mcpregistry.domain.definitions.findings import VERSION, ScanFinding, Severity
from mcpregistry.domain.host_definitions import MemberChange, compare_members
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.models import Definition, PolicyRule, Server, Tool
from mcpregistry.services.definitions.behaviour import HINTS
from mcpregistry.services.servers import server_setup

_DESTROYING = 2  # the number of the proposed rule that may deny instead of ask


@dataclass(frozen=True, slots=True)
class WaitingTool:
    """One tool that waits. ``calm``: the scanner has read it and raised no alarm, so approving it
    is proposed.

    ``repairs``: what hosts get in another form than the server's.
    """

    tool: Tool
    definition: Definition
    data: dict[str, Any]
    findings: list[ScanFinding]
    claims: list[str]
    calm: bool
    repairs: list[MemberChange]


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposed rule. ``unanswered``: why nobody could answer what it asks yet; ``deniable``: it
    may deny instead."""

    number: int
    rule: PolicyRule
    unanswered: str
    deniable: bool


def entries_of(tools: Iterable[Tool]) -> list[WaitingTool]:
    """A row for each tool that waits."""
    return [_entry(tool, tool.latest) for tool in tools if tool.latest]


def _entry(tool: Tool, definition: Definition) -> WaitingTool:
    data = definition.data
    findings = [each for each in definition.findings if each.where != f"/{INSTRUCTIONS}"]
    calm = definition.scanner == VERSION and definition.severity < Severity.ALARM
    own = strip_instructions(data)
    return WaitingTool(
        tool, definition, own, findings, _claims(data), calm, compare_members(tool.kind, own)
    )


def _claims(data: dict[str, Any]) -> list[str]:
    """What the server says the tool does, in our words."""
    said = data.get("annotations")
    given = said if isinstance(said, dict) else {}
    return [
        WORDS[name][0].lower() if given[hint] else f"not {WORDS[name][0].lower()}"
        for name, hint in HINTS.items()
        if isinstance(given.get(hint), bool)
    ]


def instructions_of(tools: Iterable[Tool]) -> str:
    """What the server tells every model that uses it."""
    return next(
        (
            str(tool.latest.data[INSTRUCTIONS])
            for tool in tools
            if tool.latest and INSTRUCTIONS in tool.latest.data
        ),
        "",
    )


def rules_of(request: HttpRequest, server: Server) -> list[Proposed]:
    """The proposed rules, for whoever may make some."""
    if not _may_rule(request):
        return []
    return [
        Proposed(
            number,
            rule,
            server_setup.explain_unanswerable(rule) if rule.outcome == RuleOutcome.ASK else "",
            number == _DESTROYING,
        )
        for number, rule in enumerate(server_setup.list_proposed_rules(server))
    ]


def _may_rule(request: HttpRequest) -> bool:
    return bool(request.user.has_perm("mcpregistry.add_policyrule"))


def choose_rules(request: HttpRequest, server: Server) -> list[PolicyRule]:
    """Those that were left ticked; what may destroy is denied instead of asked about where the
    person said so."""
    chosen = []
    for number, rule in enumerate(
        server_setup.make_possible_rules(server) if _may_rule(request) else ()
    ):
        if str(number) in request.POST.getlist("rule"):
            if number == _DESTROYING and request.POST.get("destroying") == RuleOutcome.DENY:
                rule.outcome = RuleOutcome.DENY.value
                rule.name = f"{server.slug}: destroying is denied"
            chosen.append(rule)
    return chosen


def numbers(request: HttpRequest, name: str) -> list[int]:
    """The ids that were ticked under this name."""
    return [
        int(text)
        for text in request.POST.getlist(name)
        if text.isascii() and text.isdecimal() and len(text) < 19
    ]
