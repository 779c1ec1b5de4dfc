"""Arguments to try a tool with, made from its input schema: the smallest that fit, and never
anything of value.

What is made names no file outside the server's own folder, no address that exists, and no secret.
Where the schema leaves nothing that is both valid and harmless, there are none: ``Impossible`` says
why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.domain.schema import validation
from mcpregistry.domain.text.secret_names import is_secret_name

MOST_STEPS = 500
MOST_DEPTH = 12
MOST_LENGTH = 2_000
_FORMATS = {
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "PT1S",
    "email": "nobody@example.invalid",
    "idn-email": "nobody@example.invalid",
    "hostname": "example.invalid",
    "idn-hostname": "example.invalid",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.invalid/",
    "url": "https://example.invalid/",
    "iri": "https://example.invalid/",
    "uri-reference": "x",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "regex": "a",
    "json-pointer": "",
    "binary": "",
    "byte": "",
}
# For patterns: short texts of the usual kinds, the first that fits is taken.
_TEXTS = (
    "a",
    "A",
    "0",
    "1",
    "aa",
    "AA",
    "00",
    "a0",
    "A1",
    "a-a",
    "a_a",
    "a.a",
    "a/a",
    "A-1",
    "0.0.1",
    "2026-01-01",
    "2026-01",
    "00:00",
    "000",
    "0000",
    "00000",
    "000000",
    "aaa",
    "AAA",
    "EUR",
    "en",
    "en-US",
    "#000000",
    "a@example.invalid",
    "0" * 7,
    "a" * 8,
    "0" * 8,
    "0" * 32,
    "0" * 40,
    "0" * 64,
    "00000000-0000-4000-8000-000000000000",
    "https://example.invalid/",
    "+10000000",
)
_PLACE = re.compile(
    r"(?i)(^|[_.\-\s]|(?<=[a-z])(?=[A-Z]))(paths?|files?|filenames?|dir|dirs|directory|directories|folders?|cwd)$"
)
_ADDRESS = re.compile(r"(?i)(^|[_.\-\s])(ur[il]s?|endpoint|website|link)$")
_ELSEWHERE = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|file:)|(^|[\\/])\.\.([\\/]|$)|\$\{|\x00")


_TOO_COMPLEX = "the schema is too complex to generate arguments from it"


class Impossible(Exception):
    """There are no harmless arguments; the text says why, for people."""


def make_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest arguments that fit a tool's input schema. Raises ``Impossible``. Bounded,
    however the schema is."""
    made = _Maker(schema).make_value(schema, "", 0)
    if not isinstance(made, dict):
        raise Impossible("the schema does not describe an object")
    try:
        wrong = validation.list_problems(schema, made)
    except (ConfigInvalid, ArgumentsInvalid) as error:
        raise Impossible(error.message) from error
    if wrong:
        raise Impossible(f"no matching arguments could be generated: {wrong[0]}")
    return made


class _Maker:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._steps = 0

    def make_value(self, schema: object, name: str, depth: int) -> Any:
        """The smallest value for one place; ``name`` is the argument's."""
        self._steps += 1
        if self._steps > MOST_STEPS or depth > MOST_DEPTH:
            raise Impossible(_TOO_COMPLEX)
        if schema is False:
            raise Impossible(f"'{name}' allows no value")
        if not isinstance(schema, Mapping):
            return self._make_text({}, name)
        given = self._merge_schema(schema, depth)
        if name and is_secret_name(name):
            raise Impossible(f"'{name}' requires a secret")
        for choice in _iterate_schema_values(given):
            if _is_harmless(choice):
                return choice
        if "const" in given or "enum" in given:
            raise Impossible(
                f"'{name}' allows only values that refer to something outside the server's folder"
            )
        for word in ("oneOf", "anyOf"):
            if given.get(word):
                return self._make_one_of(given, word, name, depth)
        return self._make_of_type(given, name, depth)

    def _merge_schema(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """With what it refers to and what it must fit besides laid over each other, as far as that
        is plain."""
        merged = dict(schema)
        parts: list[object] = []
        if isinstance(reference := merged.pop("$ref", None), str):
            parts.append(self._resolve_reference(reference))
        if isinstance(several := merged.pop("allOf", None), list):
            parts += several
        for part in parts:
            self._steps += 1
            if self._steps > MOST_STEPS or depth > MOST_DEPTH:
                raise Impossible(_TOO_COMPLEX)
            if isinstance(part, Mapping):
                merged = _overlay_schema(self._merge_schema(part, depth + 1), merged)
        return merged

    def _resolve_reference(self, reference: str) -> object:
        node: Any = self._document
        if not reference.startswith("#"):
            raise Impossible("the schema refers to another document")
        for written in reference[1:].split("/")[1:]:
            step = written.replace("~1", "/").replace("~0", "~")
            node = node.get(step) if isinstance(node, Mapping) else None
        return node

    def _make_one_of(self, given: Mapping[str, Any], word: str, name: str, depth: int) -> Any:
        rest = {key: part for key, part in given.items() if key != word}
        why: Impossible | None = None
        for branch in given[word] if isinstance(given[word], list) else ():
            try:
                return self.make_value(
                    _overlay_schema(branch, rest) if isinstance(branch, Mapping) else rest,
                    name,
                    depth + 1,
                )
            except Impossible as error:
                why = why or error
        raise why or Impossible(f"'{name}' allows no value")

    def _make_of_type(self, given: Mapping[str, Any], name: str, depth: int) -> Any:
        match _find_type(given):
            case "object":
                return self._make_object(given, name, depth)
            case "array":
                wanted = _read_whole_number(given.get("minItems"))
                if wanted > MOST_STEPS:
                    raise Impossible(f"'{name}' requires too many items")
                first = (
                    given.get("prefixItems") if isinstance(given.get("prefixItems"), list) else []
                )
                items = [*first, *[given.get("items", {})] * wanted][:wanted]  # type: ignore[misc]
                return [self.make_value(item, name, depth + 1) for item in items]
            case "integer" | "number" as kind:
                return _make_number(given, whole=kind == "integer", name=name)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                return self._make_text(given, name)

    def _make_object(self, given: Mapping[str, Any], name: str, depth: int) -> dict[str, Any]:
        known = given.get("properties") if isinstance(given.get("properties"), Mapping) else {}
        required = given.get("required") if isinstance(given.get("required"), list) else []
        wanted = [key for key in required if isinstance(key, str)]  # type: ignore[union-attr]
        return {key: self.make_value(known.get(key, {}), key, depth + 1) for key in wanted}  # type: ignore[union-attr]

    def _make_text(self, given: Mapping[str, Any], name: str) -> str:
        for text in _iterate_texts(given, name):
            if _is_fitting_text(given, text):
                return text
        raise Impossible(f"no matching text could be generated for '{name}'")


def _iterate_schema_values(given: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the schema itself names, the most binding first."""
    if "const" in given:
        yield given["const"]
        return
    if isinstance(given.get("enum"), list):
        yield from given["enum"]
        return
    if "default" in given:
        yield given["default"]
    if isinstance(given.get("examples"), list):
        yield from given["examples"]


def _is_harmless(value: object) -> bool:
    """Whether nothing in it points out of the server's own folder; examples may name what
    exists."""
    if isinstance(value, Mapping):
        return all(_is_harmless(part) for part in value.values())
    if isinstance(value, list):
        return all(_is_harmless(part) for part in value)
    return not isinstance(value, str) or (
        len(value) <= MOST_LENGTH and not _ELSEWHERE.search(value)
    )


def _iterate_texts(given: Mapping[str, Any], name: str) -> Iterator[str]:
    least = _read_whole_number(given.get("minLength"))
    if least > MOST_LENGTH:
        raise Impossible(f"'{name}' requires more than {MOST_LENGTH:,} characters")
    if (form := given.get("format")) in _FORMATS:
        yield _FORMATS[str(form)]
    if _PLACE.search(name):
        yield "."
    if _ADDRESS.search(name):
        yield "https://example.invalid/"
    yield "a" * max(least, 1)
    yield from _TEXTS
    yield "0" * max(least, 1)
    yield ""


def _is_fitting_text(given: Mapping[str, Any], text: str) -> bool:
    rules = {"type": "string"} | {
        key: given[key] for key in ("minLength", "maxLength", "pattern") if key in given
    }
    if len(rules) == 1:
        return True
    try:
        return not validation.list_problems(rules, text)
    except (ConfigInvalid, ArgumentsInvalid):
        return False


def _make_number(given: Mapping[str, Any], *, whole: bool, name: str) -> int | float:
    """The one nearest to nought that its bounds allow."""
    step = _read_number(given, "multipleOf")
    step = step if step is not None and step > 0 else None
    low = _find_bound(given, "minimum", 1)
    high = _find_bound(given, "maximum", -1)
    start: int | float = 0
    if low is not None and low > 0:
        start = low
    elif high is not None and high < 0:
        start = high
    unit = step or 1
    near = -(-start // unit) * unit if start >= 0 else start // unit * unit
    for each in (start, near, near + unit, near - unit, start + 0.5, start - 0.5):
        value = int(each) if each == int(each) else each
        if (
            (not whole or isinstance(value, int))
            and _is_number_in_bounds(given, value)
            and (not step or value % step == 0)
        ):
            return value
    raise Impossible(f"no matching number could be generated for '{name}'")


def _find_bound(given: Mapping[str, Any], word: str, more: int) -> float | None:
    exclusive = _read_number(given, f"exclusive{word.capitalize()}")
    return exclusive + more if exclusive is not None else _read_number(given, word)


def _is_number_in_bounds(given: Mapping[str, Any], value: float) -> bool:
    least = _read_number(given, "minimum")
    most = _read_number(given, "maximum")
    above = _read_number(given, "exclusiveMinimum")
    below = _read_number(given, "exclusiveMaximum")
    return (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
        and (below is None or value < below)
    )


def _read_number(given: Mapping[str, Any], word: str) -> float | None:
    value = given.get(word)
    return (
        value
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        else None
    )


def _read_whole_number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _find_type(given: Mapping[str, Any]) -> str:
    said = given.get("type")
    if isinstance(said, list):
        said = next((kind for kind in said if kind != "null"), "null")
    if isinstance(said, str):
        return said
    if "properties" in given or "required" in given:
        return "object"
    if "items" in given:
        return "array"
    return "integer" if "minimum" in given or "maximum" in given else "string"


def _overlay_schema(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for word in ("properties", "$defs"):
        if isinstance(below.get(word), Mapping) and isinstance(above.get(word), Mapping):
            merged[word] = {**below[word], **above[word]}
    if isinstance(below.get("required"), list) and isinstance(above.get("required"), list):
        merged["required"] = [*dict.fromkeys([*below["required"], *above["required"]])]
    return merged
