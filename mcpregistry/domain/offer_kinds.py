"""What servers offer besides tools, and how each kind is spelled: in MCP, in references and in
records.

A prompt or a resource is offered, described, approved, granted, decided on and recorded as a tool
is. So it is a row, a definition and a call like a tool's, and this module is where the kinds
differ. A fixed resource is named by its URI, a template of resources by its URI template (RFC
6570); reading either is a call whose one argument is the URI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

TOOL = "tool"
PROMPT = "prompt"
RESOURCE = "resource"
TEMPLATE = "template"
LONGEST_URI = 2_000  # characters
# what a server may have besides lists
COMPLETIONS = "completions"
LOGGING = "logging"
SUBSCRIPTIONS = "subscriptions"


@dataclass(frozen=True, slots=True)
class OfferKind:
    """``listed`` names the list in MCP, ``call`` the method that uses one, ``capability`` what a
    server says it has, ``identity`` the key of a listed one's name, ``answer`` the key of the list
    in a result.
    """

    name: str
    listed: str
    call: str
    capability: str
    identity: str = "name"
    answer: str = "content"
    listing: str = ""

    @property
    def list_method(self) -> str:
        """The method that lists them."""
        return self.listing or f"{self.listed}/list"

    @property
    def changed(self) -> str:
        """The notification that the list has changed."""
        return f"notifications/{self.capability}/list_changed"


KINDS: Mapping[str, OfferKind] = {
    TOOL: OfferKind(TOOL, "tools", "tools/call", "tools"),
    PROMPT: OfferKind(PROMPT, "prompts", "prompts/get", "prompts", answer="messages"),
    RESOURCE: OfferKind(
        RESOURCE, "resources", "resources/read", "resources", identity="uri", answer="contents"
    ),
    TEMPLATE: OfferKind(
        TEMPLATE,
        "resourceTemplates",
        "resources/read",
        "resources",
        identity="uriTemplate",
        answer="contents",
        listing="resources/templates/list",
    ),
}
OTHERS = tuple(kind for kind in KINDS if kind != TOOL)
READ = (RESOURCE, TEMPLATE)
CHANGED = frozenset(kind.changed for kind in KINDS.values())


def spell_offer_key(kind: str, name: str) -> str:
    """The name with its kind, as records and references have it: ``prompt:review``. A tool's is its
    name alone, but for one that looks as if it had a kind, so that no server can name a tool like
    another's prompt. ``parse_offer_key`` undoes it.
    """
    if kind == TOOL and (":" not in name or name.partition(":")[0] not in KINDS):
        return name
    return f"{kind}:{name}"


def parse_offer_key(text: str) -> tuple[str, str]:
    """Kind and name of what ``spell_offer_key`` has made."""
    kind, colon, name = text.partition(":")
    return (kind, name) if colon and kind in KINDS else (TOOL, text)


def build_arguments_schema(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON Schema that the arguments of a call must fit. Those of prompts are texts, and none
    but the listed ones; that of a resource is its URI, or one that its template can make.
    """
    if kind == TOOL:
        return data.get("inputSchema") or {}
    if kind == RESOURCE:
        return _build_template_schema({"const": data.get("uri")})
    if kind == TEMPLATE:
        made = build_template_pattern(str(data.get("uriTemplate")))
        return _build_template_schema(
            {"pattern": made, "not": {"pattern": _HIDING}, "maxLength": LONGEST_URI}
        )
    named = [
        argument
        for argument in data.get("arguments") or ()
        if isinstance(argument, dict) and "name" in argument
    ]
    return {
        "type": "object",
        "properties": {str(argument["name"]): {"type": "string"} for argument in named},
        "required": [
            str(argument["name"]) for argument in named if argument.get("required") is True
        ],
        "additionalProperties": False,
    }


def _build_template_schema(said: Mapping[str, Any]) -> Mapping[str, Any]:
    uri = {"type": "string", **said}
    return {
        "type": "object",
        "properties": {"uri": uri},
        "required": ["uri"],
        "additionalProperties": False,
    }


# What lets a URI lead elsewhere than it reads, so that it would pass a grant or rule about URIs
# that it should not: a segment of one or two dots, an encoded character that needs no encoding,
# encoded twice, or a control character.
_EDGE = r"[/\\=&?#;,:]|%2[Ff]|%5[Cc]"
_HIDING = (
    rf"(?:^|{_EDGE})\.\.?(?:{_EDGE}|$)"
    r"|%(?:2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]|[01][0-9A-Fa-f]|7[Ff])"
    r"|%25(?:2[EeFf]|5[Cc])|[\x00-\x1f\x7f]"
)
_RESERVED = ":/?#[]@!$&'()*+,;="
_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_SPECIAL = re.compile(r"([.^$*+?()\[\]{}|\\])")


def is_disguised_uri(uri: str) -> bool:
    """Whether a URI may lead elsewhere than it reads."""
    return re.search(_HIDING, uri) is not None


def build_template_pattern(template: str) -> str:
    """A regular expression (of the linear kind) for the URIs that an RFC 6570 template can make: a
    plain variable makes no slash and no question mark, ``{+path}`` and ``{path*}`` make anything,
    ``{?query}`` and the like may make nothing.
    """
    parts = []
    end = 0
    for found in _EXPRESSION.finditer(template):
        parts += [_escape_literal(template[end : found.start()]), _expression_pattern(found[1])]
        end = found.end()
    return f"^{''.join(parts)}{_escape_literal(template[end:])}$"


def list_template_variables(template: str) -> list[str]:
    """The names of an RFC 6570 template's variables, in their order."""
    return [
        name
        for found in _EXPRESSION.finditer(template)
        for name in _list_expression_variables(found[1])
    ]


def expand_known_prefix(template: str, values: Mapping[str, str]) -> tuple[str, bool]:
    """How the URI begins that a template makes of these values, up to what is not known, and
    whether that is all of it."""
    parts = []
    end = 0
    for found in _EXPRESSION.finditer(template):
        parts.append(template[end : found.start()])
        names = _list_expression_variables(found[1])
        if found[1][:1] in "?&#/;." or len(names) != 1 or names[0] not in values:
            return "".join(parts), False
        parts.append(quote(values[names[0]], safe=_RESERVED if found[1][:1] == "+" else ""))
        end = found.end()
    return "".join(parts) + template[end:], True


def _list_expression_variables(expression: str) -> list[str]:
    listed = expression.lstrip("+?&#/;.")
    return [part.partition(":")[0].rstrip("*") for part in listed.split(",") if part]


def _escape_literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _expression_pattern(expression: str) -> str:
    operator = expression[:1]
    if operator in "?&#/;.":
        return ".*"
    return ".+" if operator == "+" or expression.endswith("*") else "[^/?#]+"
