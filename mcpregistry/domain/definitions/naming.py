"""Names under which tools are shown to hosts.

A name is built once per catalogue and looked up in an exact map; it is never split again, because
splitting is ambiguous in every style (``a`` + ``b__c`` equals ``a__b`` + ``c``).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from mcpregistry.domain.offer_kinds import READ

MAX_NAME = 64  # what OpenAI-family models and most hosts take; the MCP limit is 128
UNSHORTENED = 55  # beyond it some host changes names, see long_names
# Our own tools; no server's tool is ever shown under these.
OWN_NAMES = frozenset(
    {
        "mcp_approval_status",
        "mcp_request_server_addition",
        "mcp_check_subagent_status",
        "mcp_cancel_subagent_work",
        "mcp_list_available_tools",
        "mcp_workspace_status",
    }
)

_FORMS = {
    "double": "{server}__{tool}",
    "single": "{server}_{tool}",
    "mcp_single": "mcp_{server}_{tool}",
    "mcp_double": "mcp__{server}__{tool}",
    "plain": "{tool}",
}
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIX = re.compile(r"_(?:[0-9a-f]{8}|[0-9a-f]{32})\Z")


def map_exposed_names(pairs: Iterable[tuple[str, str]], style: str) -> dict[tuple[str, str], str]:
    """Map every (server slug, tool name) to its exposed name: legal, at most 64 characters, unique.

    A name that is too long, empty or wanted by more than one pair gets a stable suffix made from
    the pair alone, so that it does not depend on which other tools there are. So does a name that
    looks as if it had one: no server can choose the name that another one's tool was given. Nor one
    of our own tools' names.
    """
    wanted = {
        pair: _ILLEGAL.sub("_", _FORMS[style].format(server=pair[0], tool=pair[1]))
        for pair in set(pairs)
    }
    counts = Counter(wanted.values())
    names = {
        pair: name
        if _is_usable_name(name) and counts[name] == 1
        else _add_hash_suffix(name, pair, 8)
        for pair, name in wanted.items()
    }
    # Eight digits can be made to collide on purpose; 32 cannot.
    taken = Counter(names.values())
    return {
        pair: name if taken[name] == 1 else _add_hash_suffix(wanted[pair], pair, 32)
        for pair, name in names.items()
    }


OURS = "slipsnisse://"  # in front of the URIs that name their server


def map_exposed_uris(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Map every (server slug, URI or URI template) to the one that hosts are shown: the very same
    where one server has it, else, and for what looks as if it was ours, with the server in front.
    ``split_exposed_uri`` undoes it.
    """
    found = set(pairs)
    counts = Counter(uri for _, uri in found)
    return {
        (slug, uri): uri if counts[uri] == 1 and not uri.startswith(OURS) else f"{OURS}{slug}/{uri}"
        for slug, uri in found
    }


def map_host_names(
    kind: str, pairs: Iterable[tuple[str, str]], style: str
) -> dict[tuple[str, str], str]:
    """How hosts are shown what is of this kind: tools and prompts by name, resources and templates
    by URI."""
    return map_exposed_uris(pairs) if kind in READ else map_exposed_names(pairs, style)


def map_offer_names(
    kind: str, offers: Iterable[tuple[str, str, str]], style: str
) -> dict[tuple[str, str], str]:
    """The same by (server slug, name), where an operator's own name, the third, stands for the
    server's. One that is, or is called, as another of that server does not count: no tool ever
    takes another's name."""
    found = {(slug, name): own if kind not in READ else "" for slug, name, own in offers}
    wanted = Counter((slug, own or name) for (slug, name), own in found.items())
    shown = {
        (slug, name): own if own and wanted[slug, own] == 1 and (slug, own) not in found else name
        for (slug, name), own in found.items()
    }
    exposed = map_host_names(kind, ((slug, shown[slug, name]) for slug, name in found), style)
    return {(slug, name): exposed[slug, shown[slug, name]] for slug, name in found}


def split_exposed_uri(exposed: str) -> tuple[str, str]:
    """The server's slug, empty if it is not named, and the URI as that server knows it."""
    if not exposed.startswith(OURS):
        return "", exposed
    slug, _, uri = exposed.removeprefix(OURS).partition("/")
    return slug, uri


def _is_usable_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name not in OWN_NAMES and not _SUFFIX.search(name)


def _add_hash_suffix(name: str, pair: tuple[str, str], digits: int) -> str:
    raw = "\0".join(pair).encode("utf-8", "surrogatepass")
    return f"{name[: MAX_NAME - digits - 1]}_{hashlib.sha256(raw).hexdigest()[:digits]}"


def list_long_names(names: Iterable[str]) -> list[str]:
    """Those that some host would show its model under another name, or not at all.

    Hosts put their name for us in front. Gemini CLI (``mcp_NAME_``) replaces the middle by dots
    beyond 63 characters, Copilot CLI (``NAME-``) cuts at 64, so that two tools may become one, and
    opencode (``NAME_``) cuts nothing, so that the model's API refuses the whole request beyond 64.
    Claude Code (``mcp__NAME__``) and Codex reach their limits of 128 only later.
    """
    return [name for name in names if len(name) > UNSHORTENED]


def prefix_description(description: str, *, server: str, style: str) -> str:
    """The description as an endpoint shows it."""
    prefix = {"bracket": f"[{server}] ", "mcp_bracket": f"[MCP:{server}] "}.get(style, "")
    return prefix + description
