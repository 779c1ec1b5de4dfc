"""Policy rules, compiled: which of them fit a call, and what follows.

Of the rules that fit, those with the highest priority decide, and of these the most restrictive
outcome counts. A condition that gives no answer can only make the outcome stricter: the decision is
at least to ask. Which rules concern an agent, endpoint and tool is worked out once, together with
every condition that looks at nothing else; only the rest is asked anew for each call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mcpregistry.domain.policy.conditions import (
    Condition,
    ConditionFailed,
    ConditionInvalid,
    build_context,
    compile_condition,
    describe_moment,
    join_conditions,
)
from mcpregistry.domain.policy.decision import (
    DEFAULT_TERMS,
    Decision,
    PolicyQuestion,
    RuleOutcome,
    Terms,
)
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts

_BLOCK = 64  # conditions asked at once; a block that is false is done with
_REMEMBERED = 10_000  # (agent, endpoint, tool) whose rules are kept worked out
_NOT_DECIDING = frozenset({"name", "group", "refusal_seconds"})  # of a rule's fields
_FIXED = frozenset({"tool", "server", "agent"})  # what does not change from call to call


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One enabled rule. Scopes that are None (or empty) fit everything."""

    id: int
    name: str
    priority: int
    outcome: RuleOutcome
    condition: str = ""
    agent_id: int | None = None
    endpoint: str | None = None
    server_id: int | None = None
    tool_id: int | None = None
    expert: str = ""
    group_id: int | None = None
    group: str = ""
    quorum: int = 1
    decide_seconds: int = 900
    execute_seconds: int = 600
    requester_may_confirm: bool = False
    run_if_caller_left: bool = False
    refusal_seconds: int = 300

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every field but names and ``refusal_seconds``: it changes with any edit that
        could change a decision."""
        facts = {key: value for key, value in asdict(self).items() if key not in _NOT_DECIDING}
        return hash_parts("rule", encode_lossy_json(facts))

    @property
    def scope(self) -> tuple[Any, ...]:
        return self.agent_id, self.endpoint, self.server_id, self.tool_id, self.expert

    @property
    def terms(self) -> Terms:
        return Terms(
            self.id,
            self.name,
            self.fingerprint,
            self.group_id,
            self.group,
            self.quorum,
            self.decide_seconds,
            self.execute_seconds,
            self.requester_may_confirm,
            self.run_if_caller_left,
            self.refusal_seconds,
        )


class Fit(StrEnum):
    """How one rule relates to one call, in the words that "Why?" pages show."""

    FITS = "fits"
    NOT = "condition is false"
    FAILED = "condition gives no answer"
    ELSEWHERE = "is about something else"


class RuleVerdict(NamedTuple):
    """What one rule says about one call, and why."""

    rule: RuleSpec
    fit: Fit
    why: str = ""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """``broken`` says why a condition cannot be used at all; such a rule fails whenever it is
    asked."""

    spec: RuleSpec
    condition: Condition | None
    broken: str = ""

    @property
    def fixed(self) -> bool:
        return self.condition is None or self.condition.variables <= _FIXED

    @property
    def blockable(self) -> bool:
        """Has a condition that must be asked for each call, and that is sure to be quick."""
        return self.condition is not None and not self.fixed and not self.condition.loops

    def is_in_scope(self, question: PolicyQuestion) -> bool:
        """Whether the rule's scopes (agent, endpoint, server, tool, expert tool) all fit; its
        condition is not asked."""
        spec = self.spec
        return (
            (spec.agent_id is None or spec.agent_id == question.agent.id)
            and (spec.endpoint is None or spec.endpoint == question.endpoint.slug)
            and (spec.server_id is None or spec.server_id == question.server.id)
            and (
                spec.tool_id is None
                or spec.tool_id == question.tool.id
                or question.is_rule_relevant(spec.tool_id, spec.outcome)
            )
            and (not spec.expert or spec.expert == question.expert)
        )

    def evaluate_rule(self, context: Any, arguments: Mapping[str, Any]) -> RuleVerdict:
        """Ask the condition. ``context`` is CEL's, or the ``ConditionFailed`` that making it
        raised."""
        if self.broken:
            return RuleVerdict(self.spec, Fit.FAILED, self.broken)
        if self.condition is None:
            return RuleVerdict(self.spec, Fit.FITS)
        try:
            if isinstance(context, ConditionFailed):
                raise context
            return RuleVerdict(
                self.spec, Fit.FITS if self.condition.is_true(context, arguments) else Fit.NOT
            )
        except ConditionFailed as error:
            return RuleVerdict(self.spec, Fit.FAILED, str(error))


class _Block(NamedTuple):
    top: int
    rules: tuple[CompiledRule, ...]
    program: Any


@dataclass(frozen=True, slots=True)
class _Concerned:
    """The rules about one agent, endpoint and tool. ``said`` holds the verdicts that no call can
    change."""

    question: PolicyQuestion
    rules: tuple[CompiledRule, ...]
    blocks: tuple[_Block, ...]
    said: Mapping[int, RuleVerdict]
    facts: Mapping[str, Any]
    variables: frozenset[str]
    arguments: frozenset[str] | None

    def is_about(self, question: PolicyQuestion) -> bool:
        mine = self.question
        return (
            mine.agent is question.agent
            and mine.server is question.server
            and mine.tool is question.tool
        )

    def context(self, question: PolicyQuestion) -> Any:
        """The facts of this call as CEL takes them, or the ConditionFailed that they cause."""
        facts = {name: self.facts[name] for name in self.variables & _FIXED}
        if "args" in self.variables:
            given = question.arguments
            facts["args"] = (
                given
                if self.arguments is None
                else {name: given[name] for name in self.arguments if name in given}
            )
        if "call" in self.variables:
            facts["call"] = _build_call_facts(question)
        return _build_context(facts)


@dataclass(slots=True)
class _BestMatch:
    """What fits one call so far: only rules of the highest priority that fits, ``best``."""

    context: Any
    arguments: Mapping[str, Any]
    said: Mapping[int, RuleVerdict]
    best: int | None = None
    fits: list[RuleSpec] = field(default_factory=list)
    failed: list[RuleVerdict] = field(default_factory=list)

    def may_take(self, priority: int) -> bool:
        return self.best is None or priority >= self.best

    def take(self, rules: Iterable[CompiledRule]) -> None:
        """``rules`` come with descending priority."""
        for rule in rules:
            if not self.may_take(rule.spec.priority):
                break
            verdict = self.said.get(rule.spec.id) or rule.evaluate_rule(
                self.context, self.arguments
            )
            if verdict.fit is Fit.FAILED:
                self.failed.append(verdict)
            elif verdict.fit is Fit.FITS:
                if self.best is not None and rule.spec.priority > self.best:
                    self.fits.clear()
                self.best = rule.spec.priority
                self.fits.append(rule.spec)


class Rules:
    """A whole policy: it decides, and it explains itself. Making one compiles every condition."""

    def __init__(self, specs: Iterable[RuleSpec], default: RuleOutcome = RuleOutcome.ASK) -> None:
        self.default = default
        self.rules = tuple(_compile_rule(spec) for spec in sorted(specs, key=_make_priority_key))
        self._by_scope: dict[tuple[str, int], tuple[list[CompiledRule], list[_Block]]] = (
            defaultdict(lambda: ([], []))
        )
        together: dict[tuple[Any, ...], list[CompiledRule]] = defaultdict(list)
        for rule in self.rules:
            if rule.blockable:
                together[rule.spec.scope].append(rule)
            else:
                self._by_scope[_find_scope_index(rule.spec)][0].append(rule)
        for rules in together.values():
            self._by_scope[_find_scope_index(rules[0].spec)][1].extend(
                map(_build_block, _slice_rules(rules))
            )
        self._known: dict[tuple[Any, ...], _Concerned] = {}

    def __call__(self, question: PolicyQuestion) -> Decision:
        """The decision about one call.

        The rules about its agent, endpoint and tool are worked out once and remembered.
        """
        about = self._find_concerned_rules(question)
        found = _BestMatch(
            about.context(question) if about.variables else None, question.arguments, about.said
        )
        found.take(about.rules)
        for block in about.blocks:
            if found.may_take(block.top) and not _is_false(block, found.context):
                found.take(block.rules)
        return self._conclude_decision(
            found.fits, [v for v in found.failed if found.may_take(v.rule.priority)]
        )

    def explain(self, question: PolicyQuestion) -> tuple[RuleVerdict, ...]:
        """The verdict of every rule about one call, the highest priority first; "Why?", ``manage.py
        policy`` and replay show it.
        """
        about = self._find_concerned_rules(question)
        context: Any = about.context(question) if about.variables else None
        return tuple(
            rule.evaluate_rule(context, question.arguments)
            if rule.spec.id not in about.said and rule.is_in_scope(question)
            else about.said.get(rule.spec.id)
            or RuleVerdict(rule.spec, Fit.ELSEWHERE, _describe_elsewhere(rule.spec, question))
            for rule in self.rules
        )

    def _conclude_decision(self, fits: list[RuleSpec], failed: list[RuleVerdict]) -> Decision:
        outcome = max((spec.outcome for spec in fits), key=_rank_strictness, default=self.default)
        alerts = tuple((v.rule.id, v.rule.name, v.why) for v in failed)
        if failed and outcome is not RuleOutcome.DENY:
            asking = [v.rule for v in failed] + [
                spec for spec in fits if spec.outcome is RuleOutcome.ASK
            ]
            spec = min(asking, key=_rank_terms_strictness)
            first = failed[0]
            reason = (
                f"the condition of rule '{first.rule.name}' could not be evaluated: {first.why}"
            )
            return Decision(RuleOutcome.ASK, reason, spec.terms, spec.id, alerts)
        if not fits:
            terms = DEFAULT_TERMS if outcome is RuleOutcome.ASK else None
            return Decision(outcome, "no rule matches", terms, None, alerts)
        spec = min((spec for spec in fits if spec.outcome is outcome), key=_rank_terms_strictness)
        terms = spec.terms if outcome is RuleOutcome.ASK else None
        return Decision(outcome, f"rule '{spec.name}'", terms, spec.id, alerts)

    def _find_concerned_rules(self, question: PolicyQuestion) -> _Concerned:
        who = question.agent.slug, question.endpoint.slug, question.expert
        key = (*who, question.server.id, question.tool.id, question.row)
        known = self._known.get(key)
        if known is None or not known.is_about(question):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._select_concerned_rules(question)
            self._known[key] = known
        return known

    def _select_concerned_rules(self, question: PolicyQuestion) -> _Concerned:
        """What the rules say of this agent, endpoint and tool, whatever the arguments of a call
        will be."""
        rules, blocks = self._select_rules_in_scope(question)
        facts = _build_fixed_facts(question)
        said = _evaluate_fixed_rules(rules, facts)
        rules = [
            rule
            for rule in rules
            if rule.spec.id not in said or said[rule.spec.id].fit is not Fit.NOT
        ]
        asked = [rule for rule in rules if not rule.fixed] + [
            rule for block in blocks for rule in block.rules
        ]
        variables, arguments = _list_read_inputs(asked)
        return _Concerned(
            question,
            tuple(sorted(rules, key=lambda rule: _make_priority_key(rule.spec))),
            tuple(blocks),
            said,
            facts,
            variables,
            arguments,
        )

    def _select_rules_in_scope(
        self, question: PolicyQuestion
    ) -> tuple[list[CompiledRule], list[_Block]]:
        indexed = [
            self._by_scope[key] for key in _list_scope_indices(question) if key in self._by_scope
        ]
        rules: list[CompiledRule] = []
        blocks: list[_Block] = []
        for found, guarding in indexed:
            rules += [rule for rule in found if rule.is_in_scope(question)]
            blocks += [block for block in guarding if block.rules[0].is_in_scope(question)]
        return rules, blocks


def _evaluate_fixed_rules(
    rules: Sequence[CompiledRule], facts: Mapping[str, Any]
) -> dict[int, RuleVerdict]:
    """Verdicts, by rule, of those that read nothing of a call's arguments."""
    fixed = [rule for rule in rules if rule.fixed]
    context = _build_context(facts) if any(rule.condition for rule in fixed) else None
    return {rule.spec.id: rule.evaluate_rule(context, {}) for rule in fixed}


def _compile_rule(spec: RuleSpec) -> CompiledRule:
    """A condition that was valid when saved but is not now must not keep the others from
    counting."""
    try:
        return CompiledRule(
            spec, compile_condition(spec.condition) if spec.condition.strip() else None
        )
    except ConditionInvalid as error:
        return CompiledRule(spec, None, error.message)


def _build_context(facts: Mapping[str, Any]) -> Any:
    """The facts as CEL takes them, or the ConditionFailed that they cause."""
    try:
        return build_context(facts)
    except ConditionFailed as error:
        return error


def _slice_rules(rules: Sequence[CompiledRule]) -> Iterable[Sequence[CompiledRule]]:
    return (rules[start : start + _BLOCK] for start in range(0, len(rules), _BLOCK))


def _build_block(rules: Sequence[CompiledRule]) -> _Block:
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    return _Block(rules[0].spec.priority, tuple(rules), join_conditions(conditions))


def _is_false(block: _Block, context: Any) -> bool:
    try:
        return block.program.execute(context) is False
    except Exception:  # noqa: BLE001 - one of them gives no answer: they are asked one by one
        return False


def _list_read_inputs(
    rules: Iterable[CompiledRule],
) -> tuple[frozenset[str], frozenset[str] | None]:
    """Variables and arguments that the conditions of these rules read; None: all arguments."""
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    variables = frozenset().union(*(c.variables for c in conditions))
    if any(c.arguments is None for c in conditions):
        return variables, None
    return variables, frozenset().union(*(c.arguments or () for c in conditions))


def _find_scope_index(spec: RuleSpec) -> tuple[str, int]:
    if spec.tool_id is not None:
        return "tool", spec.tool_id
    return ("server", spec.server_id) if spec.server_id is not None else ("any", 0)


def _list_scope_indices(question: PolicyQuestion) -> tuple[tuple[str, int], ...]:
    tools = {question.tool.id, question.row or question.tool.id}
    return *(("tool", key) for key in tools), ("server", question.server.id), ("any", 0)


def _make_priority_key(spec: RuleSpec) -> tuple[int, str, int]:
    return -spec.priority, spec.name, spec.id


def _rank_strictness(outcome: RuleOutcome) -> int:
    return outcome.strictness


def _rank_terms_strictness(spec: RuleSpec) -> tuple[Any, ...]:
    """Smallest first: more people, not the requester himself, named people, less time."""
    return (
        -spec.quorum,
        spec.requester_may_confirm,
        spec.group_id is None,
        spec.decide_seconds,
        spec.name,
        spec.id,
    )


def _build_fixed_facts(question: PolicyQuestion) -> dict[str, Any]:
    """What conditions may read and what stays the same from call to call."""
    tool = question.tool
    server = question.server
    risk = assess_risk(question.tool)
    return {
        "tool": {
            "kind": tool.kind,
            "name": tool.name,
            "risk": risk.level.value,
            "read_only": risk.read_only,
            "destructive": risk.destructive,
            "open_world": risk.open_world,
            "idempotent": tool.idempotent,
        },
        "server": {"slug": server.slug, "title": server.title, "transport": server.transport},
        "agent": {"slug": question.agent.slug},
    }


def _build_call_facts(question: PolicyQuestion) -> dict[str, Any]:
    return {
        "endpoint": question.endpoint.slug,
        "origin": question.origin,
        "host": question.host,
        "expert": question.expert,
        **describe_moment(question.now),
    }


def _describe_elsewhere(spec: RuleSpec, question: PolicyQuestion) -> str:
    if spec.tool_id is not None and spec.tool_id != question.tool.id:
        return "another tool"
    if spec.server_id is not None and spec.server_id != question.server.id:
        return "another server"
    if spec.agent_id is not None and spec.agent_id != question.agent.id:
        return "another agent"
    if spec.endpoint is not None and spec.endpoint != question.endpoint.slug:
        return "another endpoint"
    return f"only runs of expert tool '{spec.expert}'"
