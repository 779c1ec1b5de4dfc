"""How far a running test of a server is, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcpregistry.domain.text.display import show_invisible_characters


@dataclass(frozen=True, slots=True)
class ServerTestStep:
    """One step: what it does; done, running or waiting; its milliseconds once it is done."""

    text: str
    state: str
    milliseconds: float | None = None


def list_progress_steps(
    transport: str, call_tool: str, timings: Mapping[str, float]
) -> list[ServerTestStep]:
    """All steps of a test in their order; the first that has no time yet is the running one."""
    texts = {
        "connect": "Start the server and connect" if transport == "stdio" else "Connect",
        "list": "List its tools, prompts and resources",
    }
    if call_tool:
        texts["call"] = f"Call {show_invisible_characters(call_tool, 100)}"
    done = [
        ServerTestStep(text, "done", timings[name])
        for name, text in texts.items()
        if name in timings
    ]
    rest = [text for name, text in texts.items() if name not in timings]
    return [
        *done,
        *(ServerTestStep(text, "waiting" if at else "running") for at, text in enumerate(rest)),
    ]
