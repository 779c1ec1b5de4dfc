"""Conditions: what is refused and where it breaks, what is read, and that nothing takes long."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.policy import conditions
from mcpregistry.domain.policy.conditions import (
    LONGEST,
    ConditionFailed,
    ConditionInvalid,
    build_context,
    compile_condition,
    describe_moment,
    join_conditions,
)
from tests.domain.growth import FACTOR, grows_at_most
from tests.waiting import HANG_LIMIT


def holds(source: str, **facts: Any) -> bool:
    condition = compile_condition(source)
    arguments = facts.get("args", {})
    return condition.is_true(build_context({"args": {}, **facts}), arguments)


@pytest.mark.parametrize(
    ("source", "line", "column", "says"),
    [
        ("args.amount >", 1, 14, "its end"),
        ("args.amount > 1 &&\n  foo bar", 2, 7, "extraneous input 'bar'"),
        ("'abc", 1, 1, "token recognition"),
        ("args..b", 1, 6, "no viable"),
        ("size(args", 1, 10, "missing ')'"),
        ("1 + * 2", 1, 5, "extraneous"),
        ("args.x == 1 || amount > 2", 1, 16, "'amount' is not a known name"),
        ("true &&\n  amount > 2", 2, 3, "'amount' is not a known name"),
        ('tool.rsk == "high"', 1, 6, "'tool' has no field 'rsk'"),
        ("call.origin == 'http' && call.our > 3", 1, 31, "'call' has no field 'our'"),
        ("args.name.lower() == 'x'", 1, 11, "no function 'lower'"),
        (
            "args.l.exists(a, args.l.exists(b, args.l.exists(c, a == c)))",
            1,
            48,
            "more than 2 levels",
        ),
        ("x" * (LONGEST + 1), 1, LONGEST + 1, "longer than"),
        ("é🙂 == 1", 1, 1, "token recognition"),
    ],
)
def test_what_is_broken_is_refused_with_its_place(source: str, line: int, column: int, says: str):
    with pytest.raises(ConditionInvalid) as caught:
        compile_condition(source)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert says in caught.value.message
    assert f"column {column}" in caught.value.message


@pytest.mark.attack
@pytest.mark.parametrize(
    "nested",
    [
        lambda depth: "(" * depth + "1" + ")" * depth,
        lambda depth: "[" * depth + "]" * depth,
        lambda depth: "{1:" * (depth // 2) + "1" + "}" * (depth // 2),
        lambda depth: "true?" * (depth // 3) + "true" + ":false" * (depth // 4),
    ],
    ids=["parens", "lists", "maps", "choices"],
)
def test_deep_nesting_is_refused_quickly(nested: Callable[[int], str]):
    def refused(depth: int) -> None:
        with pytest.raises(ConditionInvalid):
            compile_condition(nested(depth))

    refused(1_900)
    assert grows_at_most(refused, 1_900 // FACTOR)


@pytest.mark.attack
@pytest.mark.parametrize(
    "source",
    ["!" * 3990 + "true", "1+" * 1990 + "1 == 0", "-" * 3990 + "1 == 1", "true||" * 600 + "false"],
)
def test_long_chains_neither_crash_nor_take_long(source: str):
    """In a process of its own: a stack that overflows in compiled code takes the whole process
    along."""
    program = (
        "import sys, threading; from mcpregistry.domain.policy.conditions import *\n"
        "c = compile_condition(sys.argv[1])\n"
        "t = threading.Thread(target=lambda: print(c.is_true(build_context({'args': {}}), {}))); t.start(); t.join()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, source], capture_output=True, text=True, timeout=HANG_LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("True", "False")


@pytest.mark.attack
def test_loops_over_huge_arguments_give_no_answer_quickly():
    condition = compile_condition("args.l.all(x, args.l.all(y, x != y))")
    arguments = {"l": list(range(50_000))}  # it would take many minutes
    with pytest.raises(ConditionFailed, match="too large"):
        condition.is_true(build_context({"args": arguments}), arguments)


@pytest.mark.attack
def test_loops_that_are_allowed_end_soon():
    condition = compile_condition("args.l.all(x, args.l.all(y, x + y >= 0))")

    def loop(count: int) -> None:
        arguments = {"l": list(range(count))}
        assert condition.is_true(build_context({"args": arguments}), arguments)

    assert grows_at_most(loop, 200 // FACTOR, most=3.0 * FACTOR**2), (
        "one loop in another, and no more than that"
    )


@pytest.mark.attack
def test_regular_expressions_are_linear():
    def match(length: int) -> None:
        assert not holds("args.x.matches('^(a+)+$')", args={"x": "a" * length + "b"})

    assert grows_at_most(match, 20_000)


@pytest.mark.parametrize(
    ("source", "facts", "expected"),
    [
        ("args.amount > 100", {"args": {"amount": 101}}, True),
        ("args.amount > 100.5", {"args": {"amount": 101}}, True),
        ("args.amount > 100", {"args": {"amount": 2**70}}, True),
        ("has(args.amount) && args.amount > 100", {"args": {}}, False),
        (
            "args.path.startsWith('/srv/') && !args.path.contains('..')",
            {"args": {"path": "/srv/a"}},
            True,
        ),
        ("args['odd name'] == 'x'", {"args": {"odd name": "x"}}, True),
        ("args.tags.exists(t, t == 'prod')", {"args": {"tags": ["a", "prod"]}}, True),
        ("args.exists(k, k.startsWith('force'))", {"args": {"force_push": True}}, True),
        ("args.x == null", {"args": {"x": None}}, True),
        ("args.x == 1", {"args": {"x": True}}, False),
        ('tool.risk == "high" // a comment', {"tool": {"risk": "high"}}, True),
        ("call.weekday <= 5 && call.hour >= 9", {"call": describe_moment(1_700_000_000)}, True),
        (
            "call.time > timestamp('2023-11-14T00:00:00Z')",
            {"call": describe_moment(1_700_000_000)},
            True,
        ),
    ],
)
def test_what_conditions_say(source: str, facts: dict[str, Any], expected: bool):
    assert holds(source, **facts) is expected


@pytest.mark.parametrize(
    ("source", "args", "says"),
    [
        ("args.amount > 100", {}, "uses 'amount', which the call does not have"),
        ("args.amount > 100", {"amount": "hunter2"}, "different types"),
        ("args[args.key] == 1", {"key": "hunter2"}, "uses something"),
        ("args.amount", {"amount": 3}, "returns a value of the type int"),
        ("args.a / args.b == 1", {"a": 1, "b": 0}, "could not evaluate"),
        ("args.x.matches(args.pattern)", {"x": "hunter2", "pattern": "("}, "could not evaluate"),
    ],
)
def test_no_answer_says_why_and_no_value_of_the_call(source: str, args: dict[str, Any], says: str):
    with pytest.raises(ConditionFailed, match=says) as caught:
        holds(source, args=args)
    assert "hunter2" not in str(caught.value)


def test_what_cel_cannot_hold_is_no_answer():
    with pytest.raises(ConditionFailed):
        build_context({"args": {"x": "\ud800"}})


def test_only_what_a_condition_names_is_read():
    assert compile_condition("true").variables == frozenset()
    condition = compile_condition('has(args.a) && args . b == "args.c tool" // args.d')
    assert (condition.variables, condition.arguments) == ({"args"}, {"a", "b"})
    assert compile_condition("args.size() > 3").arguments is None
    assert compile_condition("args.a == 1 && size(args) > 3").arguments is None
    assert compile_condition("args['a'] == 1").arguments is None
    assert compile_condition('tool.name == "x" && call.hour > 3').variables == {"tool", "call"}


def test_a_block_is_false_exactly_when_all_are():
    conditions = [
        compile_condition(s)
        for s in ("args.a > 1 // first", "args.b > 1", "args.a == 1 && args.b == 2")
    ]
    program = join_conditions(conditions)
    for a in range(3):
        for b in range(3):
            context = build_context({"args": {"a": a, "b": b}})
            assert program.execute(context) is any(c.is_true(context, {}) for c in conditions)


def test_compiling_loads_no_command_line():
    """The package's own ``__init__`` would load one, half a second of it."""
    program = (
        "import sys; from mcpregistry.domain.policy.conditions import compile_condition; assert 'cel' not in sys.modules;"
        "compile_condition('true'); assert 'typer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_LIMIT)


@pytest.mark.attack
@pytest.mark.parametrize(
    "text",
    [
        'r"C:\\"',
        "R'C:\\'",
        'br"C:\\"',
        'r"""C:\\"""',
        "r'''C:\\'''",
        '"C:\\\\"',
        "'C:\\\\'",
        '"""C:\\\\"""',
    ],
)
def test_text_that_ends_in_a_backslash_hides_nothing_behind_it(text: str):
    value = f"args.path == {text}" if not text.startswith("b") else f"bytes(args.path) == {text}"
    quote = text.strip("brR")[0]
    condition = compile_condition(f"{value} || has(args.force) && args.force == {quote}yes{quote}")
    assert condition.arguments == {"path", "force"}


@pytest.mark.attack
@pytest.mark.parametrize("found", [r'r"C:\\" \|\| args.b == "', '"a" \\+ args.b', '"a", args.b'])
def test_text_that_cel_reads_otherwise_is_refused(found: str, monkeypatch: pytest.MonkeyPatch):
    """Names inside of a text are not looked at, so CEL itself has to read it as one text."""
    monkeypatch.setattr(conditions, "_TEXT", re.compile(found))
    with pytest.raises(ConditionInvalid, match="this text cannot be read"):
        compile_condition(
            'args.a in [r"C:\\" || args.b == "", "a" + args.b, "a", args.b]'.replace("\\\\", "\\")
        )
