"""How long known hosts wait for a call, and which questions they survive.

Measured with the hosts' own programs on 2026-11-21 (default settings, a tool that only sleeps, and
one that reports progress every 10 s). A host is known by the ``clientInfo.name`` that it sends,
matched by its beginning, the longest match first. An unknown host gets the limit that is the most
frequent, the TypeScript SDK's, until it shows a shorter one (``calls/approvals/host_patience.py``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLimits:
    """``silent``: seconds after which the host gives up on a call that says nothing.

    ``progress_extends``: progress messages start that clock anew. ``url_questions``: it survives a
    URL-mode elicitation when it says that it can.
    """

    silent: float
    progress_extends: bool
    url_questions: bool
    note: str


UNKNOWN = HostLimits(
    60, False, True, "the default of the TypeScript SDK; progress extends it only in some hosts"
)

# A Python program that says neither its name nor a progress token. The OpenAI Agents SDK is one.
NAMELESS_SDK = "mcp"
NAMELESS = HostLimits(
    5, False, True, "openai-agents gives up after 5 s unless it is configured otherwise"
)

TABLE: dict[str, HostLimits] = {
    # The program on a terminal moves the call to the background after 120 s, where it stays open.
    "claude-code": HostLimits(
        300, True, True, "over HTTP; over stdio, no limit was seen within 620 s"
    ),
    "codex-mcp-client": HostLimits(300, False, True, "gave up at 300 s despite progress"),
    "gemini-cli-mcp-client": HostLimits(600, False, True, "gave up at 600 s despite progress"),
    "opencode": HostLimits(60, True, True, "a call of 330 s with progress succeeded"),
    "copilot": HostLimits(
        180, True, False, "fails on a URL elicitation although it declares support"
    ),
    "github-copilot": HostLimits(
        60, False, False, "not measured; related to a host that fails on URL elicitation"
    ),
    "qwen-cli-mcp-client": HostLimits(
        300, False, True, "without progress; whether progress extends it was not measured"
    ),
    "google-adk": HostLimits(
        5, False, True, "its default over stdio according to its source code; 300 s over HTTP"
    ),
}


def is_known(name: str) -> bool:
    """Whether the table has a row for the host that calls itself ``name``."""
    return _find_host_row(name) is not None


def find_host_limits(name: str, *, progress: bool = True) -> HostLimits:
    """The limits of the host that calls itself ``name``; ``progress``: it asked for progress of
    this very call."""
    if row := _find_host_row(name):
        return TABLE[row]
    said = name.strip().lower()
    if said == NAMELESS_SDK and not progress:
        return NAMELESS
    return HostLimits(UNKNOWN.silent, False, False, UNKNOWN.note) if "copilot" in said else UNKNOWN


def _find_host_row(name: str) -> str | None:
    said = name.strip().lower()
    return max((prefix for prefix in TABLE if said.startswith(prefix)), key=len, default=None)
