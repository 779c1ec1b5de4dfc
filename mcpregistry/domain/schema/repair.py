"""Make a JSON Schema that a stranger wrote one that validators of JSON Schema 2020-12 and draft-07
compile.

Hosts on the official clients, and the models behind them, refuse a whole list of tools for one
schema that they cannot compile. Where a keyword can mean one thing only, it is written as it should
be. Otherwise it is dropped, so that the schema demands less than before. That is safe in most
places; beneath ``oneOf``, ``not`` and ``if`` a schema that demands less would refuse values that
were right before, so there the whole ``oneOf``, ``not`` or ``if`` is dropped.

A schema that needs nothing of this is returned as the very same object. Source: JSON Schema
2020-12, Core and Validation; the keywords of draft-04 and OpenAPI 3.0 that are met in practice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
SYNONYMS = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "long": "integer",
    "map": "object",
    "none": "null",
    "str": "string",
    "text": "string",
}
MOST_REMARKS = 5

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ONE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_DEMANDS_MORE_IF_LESS = ("oneOf", "not", "if", "contains")
_NUMBERS = ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum")
_COUNTS = (
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "minContains",
    "maxContains",
)
_TEXTS = (
    "$id",
    "$schema",
    "$anchor",
    "$dynamicAnchor",
    "$comment",
    "title",
    "description",
    "format",
    "pattern",
)
Schema = dict[str, Any]


@dataclass(slots=True)
class Repaired:
    """A schema that can be compiled, and what was changed in it: a few short phrases, each with its
    place."""

    schema: Mapping[str, Any]
    remarks: list[str] = field(default_factory=list)


def repair_schema(schema: Mapping[str, Any]) -> Repaired:
    """Return the schema as validators accept it; the very same where nothing had to be changed."""
    work = _Work(schema)
    fixed, _ = work.repair_node(schema, "")
    return Repaired(fixed, work.remarks)


@dataclass(slots=True)
class _Work:
    """One schema. ``repair_node`` returns a subschema as it should be, and whether it demands less
    than before."""

    root: Mapping[str, Any]
    remarks: list[str] = field(default_factory=list)
    _ids: dict[str, str] | None = None
    _bases: list[Any] = field(default_factory=list)

    @property
    def _has_tuples(self) -> bool:
        """Whether the schema names a version in which ``items`` may be a list."""
        return any(
            version in str(self.root.get("$schema"))
            for version in ("draft-06", "draft-07", "2019-09")
        )

    def say(self, place: str, what: str) -> None:
        """Remember a change, if not too many are remembered."""
        if len(self.remarks) < MOST_REMARKS:
            self.remarks.append(f"{place or '/'}: {what}"[:200])

    def repair_node(self, schema: Any, place: str) -> tuple[Any, bool]:
        """Repair a subschema at this place (a JSON pointer)."""
        if isinstance(schema, bool):
            return schema, False
        if not isinstance(schema, Mapping):
            self.say(place, "not a schema; any value is accepted")
            return {}, True
        nested = bool(place) and isinstance(schema.get("$id"), str)
        if nested:
            self._bases.append(schema)
        try:
            return self._repair_keywords(schema, place)
        finally:
            if nested:
                self._bases.pop()

    def _repair_keywords(self, schema: Mapping[str, Any], place: str) -> tuple[Any, bool]:
        found: Schema = {}
        looser = False
        for word, value in schema.items():
            repair = _REPAIRS.get(word)
            if repair is None:
                found[word] = value
                continue
            kept, less = repair(self, word, value, schema, place)
            looser |= less
            if kept is not _DROPPED:
                found[word] = kept
        looser |= self._finish(found, schema, place)
        if looser:  # what is no longer described would count as unevaluated, and be refused
            found.pop("unevaluatedProperties", None)
            found.pop("unevaluatedItems", None)
        same = len(found) == len(schema) and all(
            found.get(word, _DROPPED) is value for word, value in schema.items()
        )
        return (schema, False) if same else (found, looser)

    def _finish(self, found: Schema, schema: Mapping[str, Any], place: str) -> bool:
        """Put right what several keywords say together. Returns whether the schema demands less for
        it."""
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if schema.get(exclusive) is True and bound in found:  # as draft-04 says it
                found[exclusive] = found.pop(bound)
                self.say(f"{place}/{exclusive}", "replaced true with the number")
        self._hoist_required(found, schema, place)
        if isinstance(found.get("items"), list) and not self._has_tuples:
            found.setdefault("prefixItems", found.pop("items"))
            if "additionalItems" in found:
                found["items"] = found.pop("additionalItems")
        if "draft-04" in str(found.get("$schema", "")):
            del found["$schema"]
        if place and "$id" in found:
            del found["$id"]
            self.say(f"{place}/$id", "removed; references to this inner schema are now direct")
        lost_reference = "$ref" in schema and "$ref" not in found
        patterns = schema.get("patternProperties")
        kept = found.get("patternProperties")
        lost_patterns = patterns is not None and len(kept or ()) < len(
            patterns if isinstance(patterns, Mapping) else "x"
        )
        if lost_reference or lost_patterns:
            found.pop("additionalProperties", None)
        if "nullable" in found and "type" not in found:
            del found["nullable"]
        return lost_reference

    def _hoist_required(self, found: Schema, schema: Mapping[str, Any], place: str) -> None:
        """``"required": true`` in a property means that the object needs that property."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return
        named = [
            name
            for name, said in properties.items()
            if isinstance(said, Mapping) and said.get("required") is True
        ]
        known = found.get("required", [])
        if new := [name for name in named if name not in known]:
            found["required"] = [*known, *new]
            self.say(f"{place}/required", "moved from the properties to their object")

    def rewrite_reference(self, reference: str) -> str | None:
        """Return the reference as it should be written; None where it leads nowhere that we
        know."""
        if reference.startswith("#"):
            return self._find_inner_target(reference)
        if self._ids is None:
            self._ids = {}
            _find_ids(self.root, "#", self._ids)
        document, _, fragment = reference.partition("#")
        start = self._ids.get(document)
        if start is None:
            return None
        return self._find_inner_target(f"{start}{fragment}" if fragment else start)

    def _find_inner_target(self, reference: str) -> str | None:
        name = unquote(reference[1:])
        if not name.startswith("/"):
            return reference if not name or _has_anchor(self.root, name) else None
        if self._bases:
            inner = self._bases[-1]
            if _is_resolvable(inner, name):
                if self._ids is None:
                    self._ids = {}
                    _find_ids(self.root, "#", self._ids)
                return f"{self._ids.get(inner['$id'], '#')}{reference[1:]}"
        if _is_resolvable(self.root, name):
            return reference
        for word, other in (("/definitions/", "/$defs/"), ("/$defs/", "/definitions/")):
            if name.startswith(word) and _is_resolvable(
                self.root, moved := other + name.removeprefix(word)
            ):
                return f"#{moved}"
        return None


_DROPPED = object()
_Repair = Callable[[_Work, str, Any, Mapping[str, Any], str], tuple[Any, bool]]


def _drop_value(work: _Work, word: str, place: str, why: str) -> tuple[Any, bool]:
    work.say(f"{place}/{word}", why)
    return _DROPPED, True


def _repair_map(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if not isinstance(value, Mapping):
        if value is None or value == []:  # how Go and PHP write an empty map
            return {}, False
        return _drop_value(work, word, place, "not an object; left out")
    fixed = {}
    looser = False
    for name, inner in value.items():
        if word == "patternProperties" and not _is_pattern(name):
            work.say(f"{place}/{word}", "not a valid pattern; left out")
            looser = True
            continue
        fixed[name], less = work.repair_node(inner, f"{place}/{word}/{name}")
        looser |= less
    same = len(fixed) == len(value) and all(fixed[name] is inner for name, inner in value.items())
    return (value if same else fixed), looser


def _repair_one(
    work: _Work, word: str, value: Any, schema: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if value is None:
        return _DROPPED, False
    # a tuple of draft-07, which 2020-12 calls prefixItems
    if word == "items" and isinstance(value, list):
        return _repair_list(work, word, value, schema, place)
    fixed, less = work.repair_node(value, f"{place}/{word}")
    if less and word in _DEMANDS_MORE_IF_LESS:
        return _drop_value(work, word, place, "cannot be checked; left out")
    return fixed, less


def _repair_list(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if value is None or value == []:
        return _DROPPED, False
    if not isinstance(value, list):
        return _drop_value(work, word, place, "not a list; left out")
    fixed = [
        work.repair_node(inner, f"{place}/{word}/{number}") for number, inner in enumerate(value)
    ]
    looser = any(less for _, less in fixed)
    if looser and word in _DEMANDS_MORE_IF_LESS:
        return _drop_value(work, word, place, "cannot be checked; left out")
    same = all(new is old for (new, _), old in zip(fixed, value, strict=True))
    return (value if same else [new for new, _ in fixed]), looser


def _repair_type(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if isinstance(value, str) and value in TYPES:
        return value, False
    listed = value if isinstance(value, list) else [value]
    read = [
        SYNONYMS.get(each.lower(), each.lower()) if isinstance(each, str) else "null"
        for each in listed
    ]
    known = list(dict.fromkeys(each for each in read if each in TYPES))
    if known and known == value:
        return value, False
    if len(known) < len(set(read)) or not known or value is None:
        work.say(f"{place}/{word}", "not a valid type; any type is accepted")
        return _DROPPED, value is not None
    return (known if isinstance(value, list) else known[0]), False


def _repair_required(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if value is None or isinstance(value, bool):  # of a property: its object says so instead
        return _DROPPED, False
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        return _drop_value(work, word, place, "not a list; left out")
    names = list(dict.fromkeys(each for each in listed if isinstance(each, str)))
    return (value if names == value else names), False


def _repair_enum(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if value is None or value == []:
        return _DROPPED, value is not None
    return (
        (value, False)
        if isinstance(value, list)
        else _drop_value(work, word, place, "not a list; left out")
    )


def _repair_number(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if isinstance(value, bool) or value is None:
        return _DROPPED, False
    if isinstance(value, int | float) and (word != "multipleOf" or value > 0):
        return value, False
    return _drop_value(work, word, place, "not a valid number; left out")


def _repair_count(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if value is None:
        return _DROPPED, False
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if whole and not isinstance(value, bool) and value >= 0:
        return value, False
    return _drop_value(work, word, place, "not a valid count; left out")


def _repair_text(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return _DROPPED, False
    if word == "pattern" and not _is_pattern(value):
        return _drop_value(work, word, place, "not a valid pattern; left out")
    return value, False


def _repair_switch(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    return (value, False) if isinstance(value, bool) else (_DROPPED, False)


def _repair_reference(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    target = work.rewrite_reference(value) if isinstance(value, str) else None
    if target is None:
        return _drop_value(
            work,
            word,
            place,
            f"is a reference to nothing ({str(value)[:60]}); any value is accepted",
        )
    if target != value:
        work.say(f"{place}/{word}", f"corrected to {target[:60]}")
        return target, False
    return value, False


def _repair_dependencies(
    work: _Work, word: str, value: Any, _: Mapping[str, Any], place: str
) -> tuple[Any, bool]:
    if not isinstance(value, Mapping):
        return _DROPPED, value is not None
    fixed: Schema = {}
    for name, said in value.items():
        if isinstance(said, list) and all(isinstance(each, str) for each in said):
            fixed[name] = said if len(set(said)) == len(said) else list(dict.fromkeys(said))
        elif word == "dependencies" and isinstance(said, Mapping | bool):
            fixed[name] = work.repair_node(said, f"{place}/{word}/{name}")[0]
    same = len(fixed) == len(value) and all(fixed[name] is said for name, said in value.items())
    return (value if same else fixed), not same


_REPAIRS: Mapping[str, _Repair] = {
    **dict.fromkeys(_MAPS, _repair_map),
    **dict.fromkeys(_ONE, _repair_one),
    **dict.fromkeys(_LISTS, _repair_list),
    **dict.fromkeys(_NUMBERS, _repair_number),
    **dict.fromkeys(_COUNTS, _repair_count),
    **dict.fromkeys(_TEXTS, _repair_text),
    **dict.fromkeys(
        ("uniqueItems", "deprecated", "readOnly", "writeOnly", "nullable"), _repair_switch
    ),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), _repair_reference),
    **dict.fromkeys(("dependencies", "dependentRequired"), _repair_dependencies),
    "type": _repair_type,
    "required": _repair_required,
    "enum": _repair_enum,
}


@lru_cache(maxsize=10_000)
def _is_pattern(pattern: str) -> bool:
    """Whether our validator reads it as a regular expression (ECMA-262, with look-around)."""
    try:
        jsonschema_rs.validator_for(
            {"pattern": pattern}, pattern_options=jsonschema_rs.FancyRegexOptions()
        )
    except ValueError:
        return False
    return True


def _find_ids(node: Any, place: str, found: dict[str, str]) -> None:
    """Note where each ``$id`` stands, as a reference to it."""
    waiting = [(node, place)]
    while waiting:
        inner, at = waiting.pop()
        if isinstance(inner, Mapping):
            if isinstance(inner.get("$id"), str):
                found.setdefault(inner["$id"], at)
            waiting += [
                (value, f"{at}/{_escape_pointer_token(str(name))}") for name, value in inner.items()
            ]
        elif isinstance(inner, list):
            waiting += [(value, f"{at}/{number}") for number, value in enumerate(inner)]


def _has_anchor(root: Any, name: str) -> bool:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if name in (node.get("$anchor"), node.get("$dynamicAnchor")):
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _is_resolvable(document: Any, pointer: str) -> bool:
    """Whether there is a schema at this JSON pointer (RFC 6901)."""
    for written in pointer.split("/")[1:]:
        step = written.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping) and step in document:
            document = document[step]
        elif (
            isinstance(document, list)
            and step.isascii()
            and step.isdigit()
            and int(step) < len(document)
        ):
            document = document[int(step)]
        else:
            return False
    return isinstance(document, Mapping | bool)


def _escape_pointer_token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
