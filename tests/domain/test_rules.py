"""Rules: the highest priority that fits decides, the most restrictive outcome counts, order never
matters."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.policy.decision import DEFAULT_TERMS, PolicyQuestion, RuleOutcome, decide
from mcpregistry.domain.policy.rules import Fit, Rules, RuleSpec
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec

ALLOW = RuleOutcome.ALLOW
ASK = RuleOutcome.ASK
DENY = RuleOutcome.DENY
AGENT = AgentSpec(1, "ann", frozenset(), None, ())
ENDPOINT = EndpointSpec("default", "", "", "double", "none", False, False, ())
SERVER = ServerSpec(1, "git", "Git", 1, "stdio", "lazy", 30, 1, True)
TOOL = ToolSpec(1, 1, "commit", "hash", {}, False)
NOON = 1_700_049_600.0  # Wednesday 15 November 2023, 12:00 UTC


def question(args: dict[str, Any] | None = None, **changes: Any) -> PolicyQuestion:
    return replace(
        PolicyQuestion(AGENT, ENDPOINT, SERVER, TOOL, args or {}, now=NOON, origin="http"),
        **changes,
    )


def rule(number: int, outcome: RuleOutcome = ASK, **facts: Any) -> RuleSpec:
    return RuleSpec(
        **{"id": number, "name": f"rule {number}", "priority": 100, "outcome": outcome} | facts
    )


def outcome(
    *rules: RuleSpec, args: dict[str, Any] | None = None, default: RuleOutcome = ASK, **changes: Any
) -> RuleOutcome:
    return Rules(rules, default)(question(args, **changes)).outcome


@pytest.mark.parametrize("default", RuleOutcome)
def test_without_a_rule_the_default_decides(default: RuleOutcome):
    decision = Rules((), default)(question())
    assert (decision.outcome, decision.reason, decision.rule_id) == (
        default,
        "no rule matches",
        None,
    )
    assert decision.terms == (DEFAULT_TERMS if default is ASK else None)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule(1, ALLOW), rule(2, ASK)], ASK),
        ([rule(1, ALLOW), rule(2, ASK), rule(3, DENY)], DENY),
        ([rule(1, ALLOW, priority=101), rule(2, DENY)], ALLOW),
        ([rule(1, ALLOW), rule(2, DENY, condition="args.x == 1")], ALLOW),
        ([rule(1, ALLOW), rule(2, DENY, condition="args.x == 2")], DENY),
        ([rule(1, ALLOW, agent_id=1), rule(2, DENY, agent_id=2)], ALLOW),
        ([rule(1, ALLOW, endpoint="default"), rule(2, DENY, endpoint="other")], ALLOW),
        ([rule(1, ALLOW, server_id=1), rule(2, DENY, server_id=2)], ALLOW),
        ([rule(1, ALLOW, tool_id=1), rule(2, DENY, tool_id=2)], ALLOW),
        ([rule(1, ALLOW), rule(2, DENY, expert="research")], ALLOW),
        ([rule(1, ALLOW, condition='tool.risk == "low"')], ASK),
        (
            [
                rule(
                    1,
                    ALLOW,
                    condition='tool.risk == "high" && server.slug == "git" && agent.slug == "ann"',
                )
            ],
            ALLOW,
        ),
        ([rule(1, DENY, condition="call.hour < 9 || call.hour > 17")], ASK),
        (
            [
                rule(
                    1,
                    DENY,
                    condition='call.weekday == 3 && call.origin == "http" && call.endpoint == "default"',
                )
            ],
            DENY,
        ),
    ],
)
def test_which_rule_decides(rules: list[RuleSpec], expected: RuleOutcome):
    assert outcome(*rules, args={"x": 2}) is expected


def test_rules_for_an_expert_tools_runs():
    assert outcome(rule(1, DENY, expert="research"), default=ALLOW, expert="research") is DENY


def test_what_is_unconfirmed_counts_as_the_worst():
    asks = rule(1, ASK, condition="tool.destructive || tool.open_world")
    assert outcome(asks, default=ALLOW) is ASK
    assert (
        outcome(asks, default=ALLOW, tool=replace(TOOL, read_only=True, open_world=False)) is ALLOW
    )
    claimed = replace(TOOL, data={"annotations": {"readOnlyHint": True, "openWorldHint": False}})
    assert outcome(asks, default=ALLOW, tool=claimed) is ASK


# -- no answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["args.nope > 1", "args.x == ", "args.x", "1 / 0 == 1"])
@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        (ALLOW, [], ASK),
        (ASK, [], ASK),
        (DENY, [], ASK),
        (ALLOW, [rule(2, ALLOW)], ASK),
        (ALLOW, [rule(2, ALLOW, priority=1)], ASK),
        (ALLOW, [rule(2, DENY, priority=1)], DENY),
        (ALLOW, [rule(2, ALLOW, priority=200)], ALLOW),
        (ALLOW, [rule(2, DENY)], DENY),
    ],
)
def test_a_condition_without_an_answer_asks_at_least(
    broken: str, mine: RuleOutcome, others: list[RuleSpec], expected: RuleOutcome
):
    decision = Rules([rule(1, mine, condition=broken, quorum=2), *others], ALLOW)(
        question({"x": 5})
    )
    assert decision.outcome is expected
    if expected is ASK:
        assert decision.terms is not None
        assert (decision.terms.quorum, decision.rule_id) == (2, 1)
        assert "could not be evaluated" in decision.reason
    asked_at_all = not any(other.priority > 100 for other in others)
    assert [(number, name) for number, name, _ in decision.failed] == (
        [(1, "rule 1")] if asked_at_all else []
    )


def test_a_broken_condition_never_stops_the_others():
    assert outcome(rule(1, ALLOW, condition="((("), rule(2, DENY)) is DENY


def test_arguments_that_cel_cannot_hold_are_asked_about():
    decision = Rules([rule(1, DENY, condition="args.x == 1")], ALLOW)(question({"x": "\ud800"}))
    assert (decision.outcome, len(decision.failed)) == (ASK, 1)


# -- terms -----------------------------------------------------------------------------------------


def test_asking_rules_of_equal_rank_ask_on_the_stricter_terms():
    rules = [rule(1, quorum=1), rule(2, quorum=3), rule(3, quorum=3, requester_may_confirm=True)]
    for order in (rules, rules[::-1]):
        assert Rules(order)(question()).rule_id == 2


def test_terms_are_those_of_the_rule():
    facts = {
        "group_id": 4,
        "group": "ops",
        "quorum": 2,
        "decide_seconds": 60,
        "execute_seconds": 30,
        "requester_may_confirm": True,
        "run_if_caller_left": True,
        "refusal_seconds": 7,
    }
    terms = Rules([rule(7, **facts)])(question()).terms
    assert terms is not None
    assert {name: getattr(terms, name) for name in facts} == facts
    assert (terms.rule_id, terms.rule, terms.fingerprint) == (
        7,
        "rule 7",
        rule(7, **facts).fingerprint,
    )


OTHER: dict[str, Any] = {
    "id": 2,
    "priority": 101,
    "outcome": DENY,
    "condition": "true",
    "agent_id": 1,
    "endpoint": "e",
    "server_id": 1,
    "tool_id": 1,
    "expert": "x",
    "group_id": 1,
    "quorum": 2,
    "decide_seconds": 1,
    "execute_seconds": 1,
    "requester_may_confirm": True,
    "run_if_caller_left": True,
}


@pytest.mark.parametrize("name", [field.name for field in fields(RuleSpec)])
def test_every_field_that_matters_changes_the_fingerprint(name: str):
    before = rule(1)
    if name in ("name", "group", "refusal_seconds"):
        assert (
            replace(before, **{name: 7 if name == "refusal_seconds" else "other"}).fingerprint
            == before.fingerprint
        )
    else:
        assert replace(before, **{name: OTHER[name]}).fingerprint != before.fingerprint


# -- against a plain reading of the specification --------------------------------------------------

CONDITIONS = (
    "",
    "true",
    "false",
    "args.x > 3",
    "args.x <= 3",
    "args.nope == 1",
    'tool.risk == "high"',
    "size(args) > 0",
    "args.l.exists(e, e == args.x)",
    "call.hour == 12",
)
specs = st.builds(
    RuleSpec,
    id=st.integers(1, 10_000),
    name=st.just("r"),
    priority=st.integers(1, 4),
    outcome=st.sampled_from(RuleOutcome),
    condition=st.sampled_from(CONDITIONS),
    agent_id=st.sampled_from([None, None, 1, 2]),
    server_id=st.sampled_from([None, None, 1, 2]),
    tool_id=st.sampled_from([None, None, 1, 2]),
    quorum=st.integers(1, 3),
)


def fits(spec: RuleSpec, x: int) -> bool | None:
    if any(scope not in (None, 1) for scope in (spec.agent_id, spec.server_id, spec.tool_id)):
        return False
    return {
        "": True,
        "true": True,
        "false": False,
        "args.x > 3": x > 3,
        "args.x <= 3": x <= 3,
        "args.nope == 1": None,
        'tool.risk == "high"': True,
        "size(args) > 0": True,
        "args.l.exists(e, e == args.x)": x in (1, 5),
        "call.hour == 12": True,
    }[spec.condition]


def expected(rules: list[RuleSpec], x: int, default: RuleOutcome) -> RuleOutcome:
    best = max((r.priority for r in rules if fits(r, x)), default=None)
    decided = [r.outcome for r in rules if fits(r, x) and r.priority == best]
    failed = [r for r in rules if fits(r, x) is None and (best is None or r.priority >= best)]
    return max([*(decided or [default]), *([ASK] if failed else [])], key=lambda o: o.strictness)


@given(
    st.lists(specs, max_size=90, unique_by=lambda r: r.id),
    st.integers(0, 6),
    st.sampled_from(RuleOutcome),
    st.randoms(),
)
def test_any_rules_in_any_order_decide_as_specified(
    rules: list[RuleSpec], x: int, default: RuleOutcome, chance: random.Random
):
    asked = question({"x": x, "l": [1, 5]})
    decision = Rules(rules, default)(asked)
    assert decision.outcome is expected(rules, x, default)
    shuffled = rules[:]
    chance.shuffle(shuffled)
    again = Rules(shuffled, default)
    assert again(asked) == decision == again(asked)
    assert decide(again, asked).outcome is decision.outcome
    assert (decision.terms is not None) == (decision.outcome is ASK)


@given(st.lists(specs, max_size=90, unique_by=lambda r: r.id), st.integers(0, 6))
def test_the_explanation_says_the_same(rules: list[RuleSpec], x: int):
    policy = Rules(rules)
    said = {v.rule.id: v for v in policy.explain(question({"x": x, "l": [1, 5]}))}
    assert said.keys() == {r.id for r in rules}
    for spec in rules:
        fit = said[spec.id].fit
        assert {True: Fit.FITS, None: Fit.FAILED}.get(fits(spec, x), fit) is fit
        assert fit is not Fit.FAILED or said[spec.id].why


def test_the_explanation_says_what_a_rule_is_about():
    policy = Rules(
        [
            rule(1, agent_id=9),
            rule(2, tool_id=9),
            rule(3, server_id=9),
            rule(4, endpoint="x"),
            rule(5, expert="e"),
        ]
    )
    assert [v.why for v in policy.explain(question())] == [
        "another agent",
        "another tool",
        "another server",
        "another endpoint",
        "only runs of expert tool 'e'",
    ]


def test_what_is_remembered_about_a_tool_ends_with_its_spec():
    policy = Rules([rule(1, ALLOW, condition="tool.read_only")], DENY)
    assert policy(question()).outcome is DENY
    assert policy(question(tool=replace(TOOL, read_only=True))).outcome is ALLOW
    assert policy(question()).outcome is DENY


@pytest.mark.parametrize("kind", ["resource", "template", "tool"])
@pytest.mark.parametrize("outcome_of_row", RuleOutcome)
def test_a_resource_keeps_the_rules_of_its_own_row_however_it_is_read_and_gains_nothing_by_them(
    kind, outcome_of_row
):
    by = replace(TOOL, kind=kind, ruled={"docs://secret": 7})
    rules = Rules((rule(1, outcome_of_row, tool_id=7),), ASK if outcome_of_row is ALLOW else ALLOW)
    if outcome_of_row is ALLOW:
        expected = ASK
    elif kind == "tool":
        expected = ALLOW
    else:
        expected = outcome_of_row
    secret, other = (question({"uri": uri}, tool=by) for uri in ("docs://secret", "docs://other"))
    for _ in range(2):  # what is remembered of the one says nothing of the other
        assert rules(other).outcome is (ASK if outcome_of_row is ALLOW else ALLOW)
        assert rules(secret).outcome is expected
    assert (rules.explain(secret)[0].fit is Fit.FITS) is (
        kind != "tool" and outcome_of_row is not ALLOW
    )
