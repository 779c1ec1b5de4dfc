"""Work on foreign text inside a write transaction, counted in every test.

Definitions, schemas and registry entries come from servers that may be hostile. A transaction that
scans, checks or compiles one keeps all other writes waiting on SQLite, so it is done before.
``watch`` wraps the functions that do such work; ``offences`` is what they were caught at.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from django.db import connections

offences: list[str] = []
# The schemas of an expert tool are the operator's own, and work on them is bounded. A generated
# site is made in one transaction.
_ALLOWED = (
    "subagents/services/runs.py",
    "subagents/services/experts.py",
    "tests/fakes/generated.py",
)


def watch() -> None:
    """Watch for the rest of the process."""
    from mcpregistry.domain.definitions.scanner import Scanner
    from mcpregistry.domain.schema import validation
    from mcpregistry.services.definitions import observe
    from mcpregistry.services.registry import sync

    for owner, name in (
        (Scanner, "scan"),
        (validation, "_find_failing_validator"),
        (validation, "_compile"),
        (observe, "read_definitions"),
        (sync, "read"),
    ):
        setattr(owner, name, _watched(getattr(owner, name)))


def in_transaction() -> bool:
    """Whether this thread is in a transaction of the product, not only in that of its test."""
    blocks = connections["default"].atomic_blocks
    return any(not getattr(block, "_from_testcase", False) for block in blocks)


def _watched(work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if in_transaction():
            callers = [
                f"{frame.filename}:{frame.lineno}"
                for frame in traceback.extract_stack(limit=12)[:-1]
            ]
            if not any(allowed in caller for allowed in _ALLOWED for caller in callers):
                offences.append(
                    f"{work.__qualname__} ran inside a transaction:\n" + "\n".join(callers)
                )
        return work(*args, **kwargs)

    return watched
