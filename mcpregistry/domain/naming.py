"""Names under which tools are shown to hosts.

A name is built once per catalogue and looked up in an exact map; it is never split again, because
splitting is ambiguous in every style (``a`` + ``b__c`` equals ``a__b`` + ``c``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_NAME = 64  # what OpenAI-family models and most hosts take; the MCP limit is 128
# Gemini CLI cuts at 63 characters including "mcp_<our name>_": beyond this some host shortens names.
UNSHORTENED = 55

_FORMS = {
    "double": "{server}__{tool}",
    "single": "{server}_{tool}",
    "mcp_single": "mcp_{server}_{tool}",
    "mcp_double": "mcp__{server}__{tool}",
    "plain": "{tool}",
}
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def exposed_names(pairs: Iterable[tuple[str, str]], style: str) -> dict[tuple[str, str], str]:
    """Map every (server slug, tool name) to its exposed name: legal, at most 64 characters, unique.

    A name that is too long, empty or wanted by more than one pair gets a stable suffix made from
    the pair alone, so that it does not depend on which other tools there are.
    """
    wanted = {
        pair: _ILLEGAL.sub("_", _FORMS[style].format(server=pair[0], tool=pair[1])) for pair in sorted(set(pairs))
    }
    counts: dict[str, int] = {}
    for name in wanted.values():
        counts[name] = counts.get(name, 0) + 1
    return {
        pair: name if name and len(name) <= MAX_NAME and counts[name] == 1 else _suffixed(name, pair)
        for pair, name in wanted.items()
    }


def _suffixed(name: str, pair: tuple[str, str]) -> str:
    raw = "\0".join(pair).encode("utf-8", "surrogatepass")
    return f"{name[:55]}_{hashlib.sha256(raw).hexdigest()[:8]}"


def described(description: str, *, server: str, style: str) -> str:
    """The description as an endpoint shows it."""
    prefix = {"bracket": f"[{server}] ", "mcp_bracket": f"[MCP:{server}] "}.get(style, "")
    return prefix + description
