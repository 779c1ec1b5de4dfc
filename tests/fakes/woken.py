"""What workers would have been asked to do; no broker is needed to see that they were asked."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from mcpregistry.services import approvals, health, notifications, wakeups

_WAKING: tuple[ModuleType, ...] = (approvals, health, notifications, wakeups)

Sent = list[tuple[str, tuple[Any, ...]]]


def listened_to(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Fills as tasks are asked for: ``("refresh_server", (7,))``."""
    sent: Sent = []

    def wake(task: str, *ids: Any) -> bool:
        sent.append((task, ids))
        return True

    for module in _WAKING:
        monkeypatch.setattr(module, "wake", wake)
    return sent
