"""Conditions of policy rules: CEL (https://cel.dev) over the facts of one call.

A condition is compiled once, which refuses what can never work (syntax, unknown names, unknown
functions) with the place where it breaks, and what could take long (nested loops). Evaluating it
costs well under a microsecond; handing the facts to CEL costs more, so only those that a condition
names are handed over, and of ``args`` only the arguments that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid

LONGEST = 4_000  # characters of one condition
DEEPEST_LOOP = 2  # loops (all, exists, map, filter…) inside each other
# elements that the loops of one condition may visit; about a tenth of a second
MOST_STEPS = 200_000

# What a condition may look at. ``args`` holds whatever the tool takes.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "tool": ("kind", "name", "risk", "read_only", "destructive", "open_world", "idempotent"),
    "server": ("slug", "title", "transport"),
    "agent": ("slug",),
    "call": ("endpoint", "origin", "host", "expert", "time", "hour", "minute", "weekday"),
}
VARIABLES = ("args", *FIELDS)
_FUNCTIONS = frozenset(
    {
        "size",
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "type",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "dyn",
        "timestamp",
        "duration",
        "getFullYear",
        "getMonth",
        "getDayOfYear",
        "getDayOfMonth",
        "getDate",
        "getDayOfWeek",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    }
)
_TYPES = frozenset(
    {"int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type"}
)

# The texts and comments of a condition. CEL does not hand out its tokens, so these are found here,
# and CEL itself confirms that each text is exactly one text (``_blank_texts``).
_TEXT = re.compile(
    # A raw text has no escapes: in r"\" the backslash is a character, and the quote behind it ends
    # the text.
    r'[bB]?[rR][bB]?(?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n]*"|\'[^\'\n]*\')|'
    r'[bB]?("""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*'
)
_LOOP = re.compile(r"\.\s*(?:all|exists_one|existsOne|exists|map|filter)\s*\($")
_BOUND = re.compile(
    r"\.\s*(?:all|exists_one|existsOne|exists|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,"
)
_FIELD = re.compile(r"(?<![\w.])(tool|server|agent|call)\s*\.\s*([A-Za-z_]\w*)(?!\w*\s*\()")
_ARGUMENT = re.compile(r"(?<![\w.])args\b(?:\s*\.\s*([A-Za-z_]\w*)(?!\w*\s*\())?")
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")


class ConditionInvalid(ConfigInvalid):
    """A condition that cannot be used; ``line`` and ``column`` (from 1) say where it breaks."""

    def __init__(self, problem: str, *, line: int = 1, column: int = 1) -> None:
        self.line = line
        self.column = column
        place = f"line {line}, column {column}" if line > 1 else f"column {column}"
        super().__init__(
            f"The condition is not valid at {place}: {problem}.",
            remedy='Correct the condition, for example has(args.amount) && args.amount > 100 || tool.risk == "high".',
        )


class ConditionFailed(Exception):
    """A condition gave no answer for a call. Its text says why, without any value of the call."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``arguments`` are the only arguments read; None: all of them. ``loops`` is how deep they
    nest. ``fields`` are the other values that it reads, for example ``server.slug``.
    """

    source: str
    program: Any
    variables: frozenset[str]
    arguments: frozenset[str] | None
    fields: frozenset[str]
    loops: int = 0
    weight: int = 1  # by how much the text itself lengthens what its loops visit

    def is_true(self, context: Any, arguments: Mapping[str, Any]) -> bool:
        """The answer for one call.

        Raises ``ConditionFailed`` when there is none, or when finding it would take long.
        """
        if (
            self.loops
            and (_measure_longest_container(arguments) + self.weight) ** self.loops * self.weight
            > MOST_STEPS
        ):
            raise ConditionFailed("the arguments are too large for its loops")
        try:
            answer = self.program.execute(context)
        except Exception as error:  # noqa: BLE001 - whatever CEL raises is no answer
            raise ConditionFailed(self._without_values(error)) from None
        if answer is not True and answer is not False:
            raise ConditionFailed(
                f"it returns a value of the type {type(answer).__name__} instead of true or false"
            )
        return answer

    def _without_values(self, error: Exception) -> str:
        """CEL's messages quote values of the call in places; the words of the condition itself may
        be told."""
        if isinstance(error, KeyError) and str(error.args[0]) in self.source:
            return f"it uses '{error.args[0]}', which the call does not have (check it with has(…) first)"
        if isinstance(error, KeyError):
            return "it uses something that the call does not have"
        if isinstance(error, TypeError):
            return "it compares or combines values of different types"
        return f"CEL could not evaluate it ({type(error).__name__})"


def compile_condition(source: str) -> Condition:
    """A condition ready to be asked. Raises ``ConditionInvalid`` with the place where it breaks."""
    if len(source) > LONGEST:
        raise ConditionInvalid(f"it is longer than {LONGEST:,} characters", column=LONGEST + 1)
    program = _parse_condition(source)
    blank = _blank_texts(source)
    _refuse_unknown(program, source, blank)
    loops = _measure_loop_depth(source, blank)
    used = frozenset(program.variables()) & frozenset(VARIABLES)
    arguments = _list_read_arguments(blank)
    if "args" in used and not arguments:
        arguments = None  # CEL reads arguments where no name of one was found
    weight = 1 + blank.count("+") + blank.count(",")
    return Condition(
        source, program, used, arguments, _list_read_fields(used, blank), loops, weight
    )


def join_conditions(conditions: Iterable[Condition]) -> Any:
    """One CEL program over several conditions that is false exactly when all are false.

    ``Rules`` asks it first: a whole block of conditions costs one evaluation. On any other answer
    they are asked one by one.
    """
    return _load_cel().compile(
        " || ".join(f"({_close_comment(condition.source)})" for condition in conditions)
    )


def build_context(facts: Mapping[str, Any]) -> Any:
    """The facts as CEL takes them.

    Raises ``ConditionFailed`` for a value that CEL has none for, such as a lone surrogate.
    """
    try:
        return _load_cel().Context(dict(facts))
    except Exception:  # noqa: BLE001 - its text quotes the value
        raise ConditionFailed("CEL cannot represent the arguments") from None


def describe_moment(now: float) -> dict[str, Any]:
    """The parts of ``call`` that depend on the clock, in UTC; Monday is 1."""
    at = datetime.fromtimestamp(now, UTC)
    return {"time": at, "hour": at.hour, "minute": at.minute, "weekday": at.isoweekday()}


@cache
def _load_cel() -> Any:
    """The engine alone: the package's own ``__init__`` loads a command line first, half a second of
    it."""
    package = find_spec("cel")
    found = (
        PathFinder.find_spec("cel.cel", list(package.submodule_search_locations or ()))
        if package
        else None
    )
    if found is None or found.loader is None:
        raise ConfigInvalid(
            "Conditions cannot be evaluated, because CEL is not installed.",
            remedy="Install the Python package common-expression-language.",
        )
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _parse_condition(source: str) -> Any:
    try:
        return _load_cel().compile(source)
    except Exception as error:  # noqa: BLE001 - it raises what it likes
        place = _PLACE.search(str(error))
        if place is None:
            raise ConditionInvalid("it is nested too deeply or cannot be read") from None
        problem = (
            place[3]
            .partition(" expecting {")[0]
            .replace("Syntax error: ", "")
            .replace("'<EOF>'", "its end")
        )
        raise ConditionInvalid(problem, line=int(place[1]), column=int(place[2])) from None


def _blank_texts(source: str) -> str:
    """The condition with spaces in place of its texts and comments, so that only names and
    operators are left.

    Raises ConditionInvalid unless CEL reads what was found as the same number of texts.
    """
    found = [match for match in _TEXT.finditer(source) if not match[0].startswith("//")]
    if found and not _are_texts([match[0] for match in found]):
        wrong = next((match for match in found if not _are_texts([match[0]])), found[0])
        raise _make_condition_error(
            source,
            wrong.start(),
            "this text cannot be read; write it in another way, for example without the letter r before it",
        )
    return _TEXT.sub(lambda match: " " * len(match[0]), source)


def _are_texts(words: list[str]) -> bool:
    """Whether CEL reads each word as one text, and as nothing else."""
    try:
        values = _load_cel().compile(f"[{', '.join(words)}]").execute({})
    except Exception:  # noqa: BLE001 - whatever CEL raises, it does not read them as texts
        return False
    return len(values) == len(words) and all(isinstance(value, str | bytes) for value in values)


def _refuse_unknown(program: Any, source: str, blank: str) -> None:
    bound = set(_BOUND.findall(blank))
    for name in program.variables():
        if name not in VARIABLES and name not in bound and name not in _TYPES:
            known = ", ".join(VARIABLES)
            raise _make_condition_error(
                source,
                _count_word(blank, name),
                f"'{name}' is not a known name; use one of {known}",
            )
    for name in program.functions():
        if name[0] not in "_@!-" and name not in _FUNCTIONS:
            raise _make_condition_error(
                source, _count_word(blank, name), f"there is no function '{name}'"
            )
    for found in _FIELD.finditer(blank):
        if found[1] not in bound and found[2] not in FIELDS[found[1]]:
            fields = ", ".join(FIELDS[found[1]])
            raise _make_condition_error(
                source,
                found.start(2),
                f"'{found[1]}' has no field '{found[2]}'; its fields are {fields}",
            )


def _count_word(blank: str, name: str) -> int:
    found = re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", blank)
    return found.start() if found else 0


def _make_condition_error(source: str, offset: int, problem: str) -> ConditionInvalid:
    before = source[:offset]
    return ConditionInvalid(
        problem, line=before.count("\n") + 1, column=offset - (before.rfind("\n") + 1) + 1
    )


def _measure_loop_depth(source: str, blank: str) -> int:
    """How deep loops nest. Raises ConditionInvalid for more than DEEPEST_LOOP."""
    open_ = []
    deepest = 0
    for offset, letter in enumerate(blank):
        if letter == "(":
            open_.append(_LOOP.search(blank, max(0, offset - 40), offset + 1) is not None)
            if sum(open_) > DEEPEST_LOOP:
                raise _make_condition_error(
                    source, offset, f"loops are nested more than {DEEPEST_LOOP} levels deep"
                )
            deepest = max(deepest, sum(open_))
        elif letter == ")" and open_:
            open_.pop()
    return deepest


def _list_read_arguments(blank: str) -> frozenset[str] | None:
    names = [found[1] for found in _ARGUMENT.finditer(blank)]
    return None if any(name is None for name in names) else frozenset(names)


def _list_read_fields(used: frozenset[str], blank: str) -> frozenset[str]:
    """The fields that are read. Of a variable that stands anywhere without a field's name, as in
    ``server["slug"]``, all."""
    found: set[str] = set()
    for variable, fields in FIELDS.items():
        named = [match[2] for match in _FIELD.finditer(blank) if match[1] == variable]
        places = len(re.findall(rf"(?<![\w.]){variable}\b", blank))
        if variable in used or places:
            found |= {
                f"{variable}.{name}"
                for name in (named if named and places == len(named) else fields)
            }
    return frozenset(found)


def _close_comment(source: str) -> str:
    return f"{source}\n" if "//" in source else source  # a comment must not swallow the bracket


def _measure_longest_container(value: Any) -> int:
    """The length of the longest list or object anywhere inside."""
    return max((len(each) for each in _iterate_containers(value)), default=0)


def _iterate_containers(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, Mapping | list | tuple):
            yield each
            stack.extend(each.values() if isinstance(each, Mapping) else each)
