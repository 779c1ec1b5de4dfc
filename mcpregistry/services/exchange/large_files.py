"""Large files of hosts, such as ``~/.claude.json`` with its histories: only the parts that can hold
servers are read on.

They are parsed in a process of their own, which is bounded in memory and time, so that the web
process stays free. That process runs this module, so the module imports nothing of ours.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

MAX_BYTES = 50 * 1024 * 1024
_SMALL = 1024 * 1024
_MEMORY = 2 * 1024 * 1024 * 1024
_SECONDS = 60
_ROOTS = (
    "mcpServers",
    "servers",
    "inputs",
    "mcp",
    "mcp_servers",
    "context_servers",
    "amp.mcpServers",
    "mcps",
    "$schema",
)
_OF_A_PROJECT = ("mcpServers", "disabledMcpServers")


def reduce_large_file(raw: bytes, file: str) -> bytes:
    """The file, or of a large one of JSON the parts that can hold servers. Raises
    ``FileInvalid``."""
    if len(raw) <= _SMALL:
        return raw
    from mcpregistry.domain.formats.notes import FileInvalid

    if len(raw) > MAX_BYTES:
        raise FileInvalid(
            file, "The file is larger than 50 MiB.", remedy="Split the file into several files."
        )
    if not raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise FileInvalid(
            file,
            "The file is larger than 1 MiB and is not JSON.",
            remedy="Copy the part with the servers to a new file, and import that file.",
        )
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", str(Path(__file__))],
            input=raw,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FileInvalid(
            file,
            "Reading the file took too long.",
            remedy="Copy the part with the servers to a new file, and import that file.",
        ) from None
    if done.returncode:
        sentence = (
            done.stderr.decode("utf-8", "replace").strip()[:200] if done.returncode == 1 else ""
        )
        raise FileInvalid(
            file,
            sentence or "The file is too large to be read.",
            remedy="Correct the file. Or copy the part with the servers to a new file, and import that file.",
        )
    return done.stdout


def select_server_parts(data: Any) -> dict[str, Any]:
    """What of the root can hold servers."""
    found = {key: data[key] for key in _ROOTS if key in data} if isinstance(data, dict) else {}
    projects = data.get("projects") if isinstance(data, dict) else None
    if isinstance(projects, dict):
        found["projects"] = {
            path: {key: project[key] for key in _OF_A_PROJECT if key in project}
            for path, project in projects.items()
            if isinstance(project, dict) and project.get("mcpServers")
        }
    return found


def main() -> int:
    """Read the file from standard input and write its parts. Errors name a place and no value."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        sys.stdout.write(
            json.dumps(select_server_parts(json.loads(sys.stdin.buffer.read().decode("utf-8-sig"))))
        )
    except json.JSONDecodeError as error:
        sys.stderr.write(f"Line {error.lineno}, column {error.colno}: {error.msg}.")
        return 1
    except UnicodeDecodeError as error:
        sys.stderr.write(f"Byte {error.start} is not UTF-8.")
        return 1
    except (ValueError, RecursionError, MemoryError):
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
