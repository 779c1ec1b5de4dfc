"""Whether a server seems to remember between calls what was done with it: such servers are best
shared by session.

It goes by the names of tools that do not claim to only read: what acts on a page, a shell, a
transaction, or opens and closes something. A guess, shown and proposed to people, decided by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What is done to something that an earlier call has left open, and what is left open.
_ACTS = frozenset(
    [
        "click",
        "navigate",
        "hover",
        "scroll",
        "drag",
        "fill",
        "press",
        "type",
        "goto",
        "back",
        "forward",
        "open",
        "close",
        "start",
        "stop",
        "begin",
        "commit",
        "rollback",
        "connect",
        "disconnect",
        "login",
        "logout",
        "attach",
        "detach",
        "resume",
        "select",
        "switch",
        "activate",
        "write",
        "send",
        "exec",
        "execute",
        "run",
        "eval",
        "evaluate",
        "step",
        "set",
        "use",
    ]
)
_PLACES = frozenset(
    [
        "browser",
        "page",
        "tab",
        "tabs",
        "window",
        "frame",
        "element",
        "session",
        "sessions",
        "terminal",
        "shell",
        "bash",
        "repl",
        "console",
        "kernel",
        "notebook",
        "transaction",
        "cursor",
        "connection",
        "debugger",
        "breakpoint",
        "context",
        "workspace",
        "cwd",
        "directory",
        "process",
        "container",
        "database",
        "db",
    ]
)
# need no place in the name
_ALONE = frozenset({"navigate", "click", "hover", "commit", "rollback", "cd", "chdir"})
ENOUGH = 2  # tools: one alone may mean something else


def list_acting_names(tools: Iterable[tuple[str, bool]]) -> list[str]:
    """Of (name, whether it claims to only read) the names that act on what earlier calls have left,
    sorted; none where they are too few to say so.
    """
    found = sorted(name for name, reads in tools if not reads and _is_acting_name(name))
    return found if len(found) >= ENOUGH else []


def _is_acting_name(name: str) -> bool:
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)}
    return bool(words & _ALONE) or bool(words & _ACTS and words & _PLACES)
