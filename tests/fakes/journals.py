"""What a fake server has noted of the messages that it received, while it may be noting the
next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def noted(journal: Path) -> list[dict[str, Any]]:
    """Its whole lines. The last one may be half of one: a server is just writing it."""
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def called(journal: Path) -> list[dict[str, Any]]:
    """The parameters of every ``tools/call`` among them."""
    return [
        message["params"] for message in noted(journal) if message.get("method") == "tools/call"
    ]


def cancelled(journal: Path, mark: str) -> bool:
    """The server was told to cancel the call that carried the mark."""
    lines = noted(journal)
    ids = {m["id"] for m in lines if m.get("method") == "tools/call" and mark in json.dumps(m)}
    return any(
        m["params"]["requestId"] in ids
        for m in lines
        if m.get("method") == "notifications/cancelled"
    )
