"""The scripted models of this process, started when first asked for: the provider kind "scripted"
needs no address."""

from __future__ import annotations

import atexit
import threading
from contextlib import ExitStack

from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.bundled_scripts import demo_script
from subagents.llm.scripted.local_server import run_server

_lock = threading.Lock()
_stack = ExitStack()
_address = ""


def resident() -> str:
    """The address of this process's scripted models, for OpenAI's dialect; starts them when first
    asked."""
    global _address  # noqa: PLW0603 - one per process is the point
    with _lock:
        if not _address:
            _address = f"{_stack.enter_context(run_server(ScriptedModels(demo_script())))}/v1"
            atexit.register(_stack.close)
        return _address
