"""Text to plain data and back, for files that people write by hand and strangers send.

JSON may hold comments and trailing commas. YAML is read by the JSON-like core rules of YAML 1.2
(``on`` and ``12:30`` are text), with no tags, no objects. Both refuse repeated keys, more than
``MAX_BYTES``, deep nesting, aliases that multiply, NaN, and text that a database cannot hold (NUL,
lone surrogates). Errors name the place, never a value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import yaml

from mcpregistry.domain.formats import toml
from mcpregistry.domain.formats.document import Json, JsonObject
from mcpregistry.domain.formats.notes import FileInvalid, make_pointer

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 10_000
_bounds: ContextVar[tuple[int, int]] = ContextVar("bounds", default=(MAX_BYTES, MAX_VALUES))

# Strings first, so that comment marks inside them are left alone.
# Atomic groups keep the scan linear, whatever a stranger sends.
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_JSON_TOKENS = re.compile(
    rf'"(?>[^"\\\n]+|\\.)*+"?|{_COMMENT}|,(?=(?>\s+|{_COMMENT})*+[}}\]])', re.DOTALL
)


def load(raw: bytes, file: str) -> JsonObject:
    """The object at the root of a JSON, YAML or TOML file. The name's ending decides which, else
    how the text looks.

    Raises ``FileInvalid`` with the place of whatever is wrong.
    """
    most = _bounds.get()[0]
    if len(raw) > most:
        raise FileInvalid(file, f"The file is larger than {most >> 20} MiB.", remedy=_SPLIT)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileInvalid(
            file,
            f"Byte {error.start} is not UTF-8.",
            remedy="Save the file with the encoding UTF-8.",
        ) from None
    data = _load(text, file)
    _check(data, file)
    if not isinstance(data, dict):
        if data is None:
            found = "empty"
        elif isinstance(data, list):
            found = "a list"
        else:
            found = "a single value"
        raise FileInvalid(
            file,
            f"The top level of the file must be an object, but it is {found}.",
            remedy=_ROOT_REMEDY,
        )
    return data


_SPLIT = "Split the file into several files."
_ROOT_REMEDY = 'Write an object that contains the servers, for example {"mcpServers": {…}}. Use JSON, YAML or TOML.'


def is_toml(raw: bytes, file: str) -> bool:
    """Whether ``load`` reads it as TOML."""
    return _is_toml(raw[:4096].decode("utf-8-sig", "replace"), file)


@contextmanager
def allow_larger_files(most_bytes: int, most_values: int) -> Iterator[None]:
    """Larger files are read inside, for what only whoever controls the machine hands in."""
    token = _bounds.set((most_bytes, most_values))
    try:
        yield
    finally:
        _bounds.reset(token)


def strip_comments(text: str) -> str:
    """JSON in place of JSON with comments and trailing commas; every place in it stays what it
    was."""
    return _JSON_TOKENS.sub(_blank_comments, text)


def is_readable_value(data: Json, *, below: int = 0) -> bool:
    """Whether a file of ours could hold this value, ``below`` levels under its root, and be read
    again."""
    for _ in range(below):
        data = [data]
    try:
        _check(data, "")
    except FileInvalid:
        return False
    return True


def dump(data: JsonObject, *, as_yaml: bool = False) -> str:
    """A file's data as text: JSON with two spaces, or YAML that both YAML 1.1 and 1.2 read
    alike."""
    if as_yaml:
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _load(text: str, file: str) -> Json:
    if _is_toml(text, file):
        return toml.load_toml(text, file)
    return _load_yaml(text, file) if _is_yaml(text, file) else _load_json(text, file)


def _is_toml(text: str, file: str) -> bool:
    if file.lower().endswith((".toml", ".yaml", ".yml", ".json", ".jsonc", ".json5")):
        return file.lower().endswith(".toml")
    return toml.is_toml(text)


def _is_yaml(text: str, file: str) -> bool:
    if file.lower().endswith((".yaml", ".yml")):
        return True
    if file.lower().endswith((".json", ".jsonc", ".json5")):
        return False
    return not text.lstrip().startswith(("{", "[", "//", "/*"))


def _check(data: Json, file: str) -> None:
    """Bounds that hold for both languages: depth, number of values, storable text, no repeated
    key."""
    for count, (path, value) in enumerate(_walk(data)):
        if count > _bounds.get()[1]:
            raise FileInvalid(
                file, f"The file contains more than {_bounds.get()[1]:,} values.", remedy=_SPLIT
            )
        if len(path) > MAX_DEPTH:
            raise _make_depth_error(file)
        if isinstance(value, _Repeated):
            at = make_pointer(*path, value.key)
            raise FileInvalid(
                file,
                "The key appears twice.",
                at=at,
                remedy="Remove or rename one of the two keys.",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise FileInvalid(
                file,
                "The number is too large.",
                at=make_pointer(*path),
                remedy="Write the number in quotes.",
            )
        if isinstance(value, str):
            texts = [value]
        elif isinstance(value, dict):
            texts = list(value)
        else:
            texts = []
        if not all(map(_is_storable, texts)):
            sentence = "The text contains a NUL character, or an incomplete Unicode character (half of a surrogate pair)."
            raise FileInvalid(
                file, sentence, at=make_pointer(*path), remedy="Remove this character."
            )


def _walk(data: Json) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    waiting: list[tuple[tuple[str | int, ...], Json]] = [((), data)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if isinstance(value, dict):
            waiting.extend(((*path, key), item) for key, item in value.items())
        elif isinstance(value, list):
            waiting.extend(((*path, index), item) for index, item in enumerate(value))


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _make_depth_error(file: str) -> FileInvalid:
    return FileInvalid(
        file,
        f"The values of the file are nested more than {MAX_DEPTH} levels deep.",
        remedy="Use fewer levels.",
    )


class _Repeated(dict[str, Any]):
    """An object whose text held ``key`` twice; found and reported with its place by ``_check``."""

    key: str


def _build_object(pairs: list[tuple[str, Json]]) -> JsonObject:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    seen: set[str] = set()
    repeated = _Repeated(data)
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


def _blank_comments(match: re.Match[str]) -> str:
    """Comments and trailing commas become spaces, so that places in error messages stay right."""
    token = match.group()
    return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _load_json(text: str, file: str) -> Json:
    try:
        return json.loads(
            strip_comments(text), object_pairs_hook=_build_object, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        where = f"Line {error.lineno}, column {error.colno}: {error.msg}."
        raise FileInvalid(
            file,
            where,
            remedy="Correct the JSON at this place. Comments and trailing commas are allowed.",
        ) from None
    except RecursionError:
        raise _make_depth_error(file) from None
    except ValueError:
        sentence = "A number in the file is NaN, infinite or too long."
        raise FileInvalid(
            file,
            sentence,
            remedy="Replace this number with a shorter, finite number, or put it in quotes.",
        ) from None


class _Loader(yaml.SafeLoader):
    """Builds YAML's nodes only, typing plain scalars by the core rules of YAML 1.2, within
    limits."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = 0
    count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.count += 1
        if self.depth > MAX_DEPTH + 1:  # the root is a node too
            raise RecursionError
        if self.count > 2 * _bounds.get()[1]:  # keys are nodes too
            raise _YamlRefused(
                problem=f"the file contains more than {_bounds.get()[1]:,} values",
                problem_mark=self.get_mark(),
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes block style, strings quoted where either YAML 1.1 or 1.2 would read something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # Single quotes would turn these line ends of YAML 1.1 into spaces.
        odd = any(char in data for char in "\r\x85\u2028\u2029\ufeff")
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)


_Dumper.add_representer(str, _Dumper.represent_str)


_CORE = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
for _name, (_pattern, _first) in _CORE.items():
    _starts = ["" if char == "\0" else char for char in _first]
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), _starts
        )


class _YamlRefused(yaml.MarkedYAMLError):
    """A construct that we do not take; ``problem`` is our own sentence."""


class _Plain:
    """YAML nodes to plain data. Counts every value, also each time an alias repeats it."""

    def __init__(self) -> None:
        self.count = 0

    def value(self, node: yaml.Node, depth: int = 0) -> Json:
        self.count += 1
        if self.count > _bounds.get()[1]:
            raise _YamlRefused(
                problem=f"with its aliases (*NAME), the file contains more than {_bounds.get()[1]:,} values",
                problem_mark=node.start_mark,
            )
        if depth > MAX_DEPTH:
            raise RecursionError
        if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
            return [self.value(item, depth + 1) for item in node.value]
        return _convert_scalar(node)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> JsonObject:
        pairs: list[tuple[str, Json]] = []
        merged: JsonObject = {}
        for key, item in node.value:
            if key.value == "<<" and key.style is None:
                merged |= self._merge(item, depth)
            elif key.tag != "tag:yaml.org,2002:str":
                raise _YamlRefused(
                    problem="a key is not text; write it in quotes", problem_mark=key.start_mark
                )
            else:
                pairs.append((key.value, self.value(item, depth + 1)))
        data = _build_object(pairs)
        for key in merged.keys() - data.keys():
            data[key] = merged[key]
        return data

    def _merge(self, node: yaml.Node, depth: int) -> JsonObject:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: JsonObject = {}
        for part in reversed(parts):  # the first one named wins
            data = self.value(part, depth + 1)
            if not isinstance(data, dict):
                raise _YamlRefused(
                    problem="<< must refer to a mapping", problem_mark=part.start_mark
                )
            merged |= data
        return merged


def _convert_scalar(node: yaml.Node) -> Json:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text = str(node.value)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and len(text) < 1000:
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if kind == "float" and "n" not in text.lower():
        return float(text)
    problem = (
        "a number is NaN, infinite or too long"
        if kind in ("int", "float")
        else "tags (!NAME) are not allowed"
    )
    raise _YamlRefused(problem=problem, problem_mark=node.start_mark)


def _load_yaml(text: str, file: str) -> Json:
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Plain().value(node)
    except RecursionError:
        raise _make_depth_error(file) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"Line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = (
            error.problem if isinstance(error, _YamlRefused) else _describe_parser_error(error)
        )
        raise FileInvalid(
            file, f"{where}{problem}.", remedy="Correct the YAML at this place."
        ) from None
    except yaml.YAMLError:
        raise FileInvalid(
            file,
            "The file is not valid YAML.",
            remedy="Check the file for control characters and tabs.",
        ) from None


def _describe_parser_error(error: yaml.MarkedYAMLError) -> str:
    """The parser's problem without anything it quotes from the file."""
    return re.sub(r"(['\"]).*\1", "…", error.problem or "the YAML is not valid", flags=re.DOTALL)
