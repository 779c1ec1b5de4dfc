"""How much work an untrusted schema can make of checking a value: counted before anything is
checked.

A validator visits the same place of a value once for every way that a schema leads there. Branches
that lead twice to the same place (``anyOf`` of two references) double the visits with every step,
so a schema of one kilobyte can keep a process busy for years. ``count_visits`` is an upper bound of
how often the places along one path of a value are visited. A place is in an object or in an array,
never both, so ways through them are counted apart: a recursive "any JSON" schema stays cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

MAX_LEVELS = 64
LIMIT = 10**9  # counted no further
_MAX_CHAIN = 100  # branches and references in a row that do not go deeper into the value

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_MAPS = {"properties", "patternProperties", "dependentSchemas", "dependencies"}
_PLACES = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "if", "then", "else"), "same"),
    **dict.fromkeys(("dependentSchemas", "dependencies", *_REFERENCES), "same"),
    "properties": "properties",
    **dict.fromkeys(("patternProperties", "additionalProperties"), "in_object"),
    **dict.fromkeys(("propertyNames", "unevaluatedProperties"), "in_object"),
    **dict.fromkeys(("prefixItems", "items"), "elements"),
    **dict.fromkeys(("additionalItems", "contains", "unevaluatedItems"), "in_array"),
}


class TooTangled(ValueError):
    """The schema refers outside itself, in a circle that never gets deeper, or in too long a
    chain."""


@dataclass(eq=False, slots=True)
class _Node:
    """One subschema: what else looks at the same place, and what looks at the places inside."""

    same: list[_Node] = field(default_factory=list)
    properties: list[_Node] = field(default_factory=list)  # of these one at a time
    in_object: list[_Node] = field(default_factory=list)  # of these perhaps all
    elements: list[_Node] = field(default_factory=list)
    in_array: list[_Node] = field(default_factory=list)
    times: int = 1
    length: int = 0  # of the longest chain from here; 0: not known yet, -1: being looked at
    object_visits: int = 1
    array_visits: int = 1
    visits: int = 1  # on the level below


def count_visits(schema: Mapping[str, Any]) -> list[int]:
    """An upper bound of visits for each depth of the value, from 0.

    The list ends where nothing changes any more, at 64 levels, or at ``LIMIT``. Raises
    ``TooTangled``.
    """
    graph = _Graph(schema)
    found: list[int] = []
    while len(found) <= MAX_LEVELS:
        changed = graph.next_level()
        found.append(graph.root.visits)
        if not changed or found[-1] >= LIMIT:
            break
    return found


class _Graph:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._document = schema
        self._anchors = _collect_anchors(schema)
        self._nodes: dict[int, _Node] = {}
        self._waiting: list[tuple[_Node, Mapping[str, Any]]] = []
        self.root = self._add_node(schema)
        while self._waiting:
            self._fill(*self._waiting.pop())
        self._order: list[_Node] = []
        for node in self._nodes.values():
            self._arrange(node)

    def next_level(self) -> bool:
        """Count one level deeper. Returns whether any count changed."""
        for node in self._order:
            own = max((inner.visits for inner in node.properties), default=0)
            inside = own + sum(inner.visits for inner in node.in_object)
            around = 1 + sum(other.object_visits for other in node.same)
            node.object_visits = min(LIMIT, node.times * around + inside)
            own = max((inner.visits for inner in node.elements), default=0)
            inside = own + sum(inner.visits for inner in node.in_array)
            around = 1 + sum(other.array_visits for other in node.same)
            node.array_visits = min(LIMIT, node.times * around + inside)
        before = [node.visits for node in self._order]
        for node in self._order:
            node.visits = max(node.object_visits, node.array_visits)
        return before != [node.visits for node in self._order]

    def _add_node(self, schema: Mapping[str, Any]) -> _Node:
        found = self._nodes.get(id(schema))
        if found is None:
            found = _Node()
            self._nodes[id(schema)] = found
            self._waiting.append((found, schema))
        return found

    def _fill(self, node: _Node, schema: Mapping[str, Any]) -> None:
        for word, part in schema.items():
            place = _PLACES.get(word)
            if place is not None:
                into: list[_Node] = getattr(node, place)
                into += [
                    self._add_node(inner)
                    for inner in self._iterate_parts(word, part)
                    if isinstance(inner, Mapping)
                ]
        # These look at everything beside them once more.
        node.times = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1

    def _iterate_parts(self, word: str, part: Any) -> Iterable[object]:
        if word in _REFERENCES:
            return self._find_targets(part)
        if word in _MAPS:
            return part.values() if isinstance(part, Mapping) else ()
        return part if isinstance(part, list) else (part,)

    def _arrange(self, start: _Node) -> None:
        """Put nodes behind those that they need. Raises TooTangled for circles and long chains."""
        waiting = [start]
        while waiting:
            node = waiting[-1]
            if node.length > 0:
                waiting.pop()
            elif node.length == 0:
                node.length = -1
                if any(other.length < 0 for other in node.same):
                    raise TooTangled("it refers to itself in a circle")
                waiting += [other for other in node.same if other.length == 0]
            else:
                node.length = 1 + max((other.length for other in node.same), default=0)
                if node.length > _MAX_CHAIN:
                    raise TooTangled("its chain of references is too long")
                self._order.append(node)
                waiting.pop()

    def _find_targets(self, reference: object) -> list[Any]:
        if not isinstance(reference, str):
            return []
        if not reference.startswith("#"):
            raise TooTangled(f"it refers to another document ({reference[:100]})")
        name = unquote(reference[1:])
        return (
            [_resolve_pointer(self._document, name)]
            if not name or name[0] == "/"
            else self._anchors.get(name, [])
        )


def _collect_anchors(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Named places. Raises TooTangled for a document within the document: there "#" means another
    one."""
    found: dict[str, list[Any]] = {}
    identity = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(word), str):
                    found.setdefault(node[word], []).append(node)
            if node is not schema and "$ref" not in node and isinstance(node.get(identity), str):
                raise TooTangled(f"it contains another document ({node[identity][:100]})")
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def _resolve_pointer(document: Any, pointer: str) -> Any:
    """RFC 6901; None where there is nothing, which the validator will refuse."""
    for written in pointer.split("/")[1:]:
        step = written.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(step)
        else:
            inside = (
                isinstance(document, list)
                and step.isascii()
                and step.isdigit()
                and int(step) < len(document)
            )
            document = document[int(step)] if inside else None
    return document
