"""A draft rule on past calls: what it would have held, denied and let through.

Real calls of the last days are decided twice, by the rules as they are and with the draft, on
today's servers, tools and agents. What is gone, or whose arguments retention has erased, cannot be
judged and is counted as such.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet

from mcpregistry.db import stream_rows
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import (
    CallPolicy,
    Decision,
    PolicyQuestion,
    RuleOutcome,
    decide,
)
from mcpregistry.domain.policy.rules import Rules, RuleSpec
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Invocation, PolicyRule
from mcpregistry.services.configuration.snapshot import build_rule_spec, load_snapshot

EXAMPLES = 20
_EVERY = 500  # calls between two words on progress
_VERSION = re.compile(r" v?[0-9][^ ]*$")  # behind a host's name

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ReplayExample:
    """One past call that the draft would have decided otherwise."""

    call_id: str
    at: datetime
    agent: str
    tool: str
    arguments: str
    before: RuleOutcome
    after: RuleOutcome
    reason: str


class ReplayedChange(NamedTuple):
    """Calls of one agent to one tool that the draft would have decided otherwise, all in the same
    way."""

    agent: str
    tool: str
    before: RuleOutcome
    after: RuleOutcome


@dataclass(slots=True)
class ReplayReport:
    """``moved`` counts (outcome now, outcome with the draft); ``by_tool`` outcomes with the draft
    per tool; ``changes`` says by names whose calls go another way, and how many of them."""

    days: int
    found: int = 0
    looked_at: int = 0
    erased: int = 0
    gone: int = 0
    failed: int = 0
    moved: Counter[tuple[RuleOutcome, RuleOutcome]] = field(default_factory=Counter)
    by_tool: dict[str, Counter[RuleOutcome]] = field(default_factory=dict)
    changes: Counter[ReplayedChange] = field(default_factory=Counter)
    examples: list[ReplayExample] = field(default_factory=list)

    @property
    def judged(self) -> int:
        return sum(self.moved.values())

    @property
    def changed(self) -> int:
        return sum(count for (before, after), count in self.moved.items() if before is not after)

    @property
    def held(self) -> int:
        return self._with_draft(RuleOutcome.ASK)

    @property
    def denied(self) -> int:
        return self._with_draft(RuleOutcome.DENY)

    @property
    def allowed(self) -> int:
        return self._with_draft(RuleOutcome.ALLOW)

    def _with_draft(self, outcome: RuleOutcome) -> int:
        return sum(count for (_, after), count in self.moved.items() if after is outcome)


def replay(
    *,
    drafts: Sequence[PolicyRule],
    days: int,
    now: datetime,
    most: int | None = None,
    on_progress: OnProgress | None = None,
) -> ReplayReport:
    """Decide past calls twice, newest first: by the rules as they are, and with the drafts, which
    need not be saved.

    ``most`` bounds how many are looked at.
    """
    snapshot = load_snapshot()
    report = ReplayReport(days)
    offers = (*snapshot.tools.values(), *snapshot.others.values())
    tools = {(snapshot.servers[tool.server_id].slug, tool.key): tool for tool in offers}
    now_policy = snapshot.policy
    then_policy = Rules(_insert_drafts(snapshot.rules, drafts), snapshot.default_outcome)
    rows = _select_calls(days, now)
    report.found = rows.count()
    for row in stream_rows(rows[:most] if most else rows, 1_000):
        report.looked_at += 1
        _judge(row, _build_question(row, snapshot, tools), now_policy, then_policy, report)
        if on_progress and report.looked_at % _EVERY == 0:
            on_progress(report.looked_at, report.found)
    return report


def _insert_drafts(rules: Iterable[RuleSpec], drafts: Sequence[PolicyRule]) -> Iterator[RuleSpec]:
    """The rules that count, with the drafts in place of those that they are drafts of."""
    replaced = {draft.pk for draft in drafts if draft.pk} | {draft.name for draft in drafts}
    yield from (rule for rule in rules if rule.id not in replaced and rule.name not in replaced)
    for number, draft in enumerate(drafts, 1):
        yield replace(build_rule_spec(draft), id=draft.pk or -number)


def _select_calls(days: int, now: datetime) -> QuerySet[Invocation]:
    """Calls that got as far as being decided on."""
    since = Invocation.objects.filter(received_at__gte=now - timedelta(days=days)).exclude(
        server_slug=""
    )
    return since.exclude(state=InvocationState.DENIED, binding="").order_by("-received_at", "-id")


def _judge(
    row: Invocation,
    question: PolicyQuestion | None,
    before: CallPolicy,
    after: CallPolicy,
    report: ReplayReport,
) -> None:
    if not row.arguments:
        report.erased += 1
        return
    if question is None:
        report.gone += 1
        return
    old = decide(before, question)
    new = decide(after, question)
    report.failed += bool(new.failed)
    report.moved[old.outcome, new.outcome] += 1
    tool = f"{row.server_slug}::{row.tool_name}"
    report.by_tool.setdefault(tool, Counter())[new.outcome] += 1
    if old.outcome is not new.outcome:
        report.changes[ReplayedChange(row.agent_slug, tool, old.outcome, new.outcome)] += 1
    if old.outcome is not new.outcome and len(report.examples) < EXAMPLES:
        report.examples.append(_make_example(row, tool, old, new))


def _build_question(
    row: Invocation, snapshot: Snapshot, tools: Mapping[tuple[str, str], ToolSpec]
) -> PolicyQuestion | None:
    tool = tools.get((row.server_slug, row.tool_name))
    agent = snapshot.agents.get(row.agent_slug)
    endpoint = snapshot.find_recorded_endpoint(row.endpoint_slug)
    if tool is None or agent is None or endpoint is None or not row.arguments:
        return None
    try:
        arguments = json.loads(row.arguments)
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    server = snapshot.servers[tool.server_id]
    at = row.received_at.timestamp()
    return PolicyQuestion(
        agent, endpoint, server, tool, arguments, now=at, origin=row.origin, **_describe_caller(row)
    )


def _describe_caller(row: Invocation) -> dict[str, str]:
    """What rules could see of who called: the record keeps a host with its version, and for a run
    its expert tool."""
    if row.origin == "run":
        return {"expert": row.host_name, "host": "run"}
    return {"host": _VERSION.sub("", row.host_name)}


def _make_example(row: Invocation, tool: str, old: Decision, new: Decision) -> ReplayExample:
    shown = show_invisible_characters(row.arguments, 300)
    return ReplayExample(
        row.pk, row.received_at, row.agent_slug, tool, shown, old.outcome, new.outcome, new.reason
    )
