"""What is known of hosts: how long they wait for a call, and which questions they can bear.

Measured with the hosts' own programs on 2026-11-21 (default settings, a tool that only sleeps, and one
that reports progress every 10 s). A host is known by the ``clientInfo.name`` it sends; names are
matched by their beginning, the longest first. Whoever is not in the table gets the shortest limit
that was seen, that of the TypeScript SDK.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """``silent``: seconds after which the host gives up on a call that says nothing.

    ``progress_extends``: progress messages start that clock anew. ``url_questions``: it survives a
    URL-mode elicitation when it says that it can.
    """

    silent: float
    progress_extends: bool
    url_questions: bool
    note: str


UNKNOWN = Limits(60, False, True, "the SDKs' own default; progress extends it only in some")

TABLE: dict[str, Limits] = {
    # The program on a terminal moves the call to the background after 120 s, where it stays open.
    "claude-code": Limits(300, True, True, "over HTTP; over stdio none was seen in 620 s"),
    "codex-mcp-client": Limits(300, False, True, "gave up at 300 s in spite of progress"),
    "gemini-cli-mcp-client": Limits(600, False, True, "gave up at 600 s in spite of progress"),
    "opencode": Limits(60, True, True, "330 s with progress went well"),
    "copilot": Limits(180, True, False, "breaks on a URL question although it declares them"),
    "github-copilot": Limits(60, False, False, "not measured; of the family that breaks on URL questions"),
    "qwen-cli-mcp-client": Limits(300, False, True, "silent; whether progress extends it was not measured"),
}


def limits_of(name: str) -> Limits:
    """The limits of the host that calls itself ``name``."""
    known = name.strip().lower()
    found = max((prefix for prefix in TABLE if known.startswith(prefix)), key=len, default=None)
    if found is not None:
        return TABLE[found]
    return Limits(UNKNOWN.silent, False, False, UNKNOWN.note) if "copilot" in known else UNKNOWN
