"""``runmcp`` whose server is there only once the host's first lines were read, as when it is slow
to load.

``python -m tests.gateway.programs.runmcp LINES [ARGUMENTS]``. Forked, it is loaded at once: without
this, a test would not know whether an answer came early.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import manage
from mcpregistry.gateway.stdio import stdio_server

_serve = stdio_server.serve_stdio


def main() -> None:
    lines = int(sys.argv[1])

    async def serve(preload: Any, *args: Any, **options: Any) -> None:
        while len(preload._read) < lines:
            await asyncio.sleep(0.001)
        await _serve(preload, *args, **options)

    stdio_server.serve_stdio = serve
    sys.argv = ["manage.py", "runmcp", *sys.argv[2:]]
    manage.main()


if __name__ == "__main__":
    main()
