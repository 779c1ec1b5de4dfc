"""What workers would have been asked to do; no broker is needed to see that they were asked."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from mcpregistry.admin import audit
from mcpregistry.services.approvals import votes
from mcpregistry.services.configuration import dispatch
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import checks

_WAKING: tuple[ModuleType, ...] = (votes, checks, outbox, dispatch, audit)

Sent = list[tuple[str, tuple[Any, ...]]]


def listened_to(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Fills as tasks are asked for: ``("refresh_server", (7,))``."""
    sent: Sent = []

    def wake(task: str, *ids: Any) -> bool:
        sent.append((task, ids))
        return True

    for module in _WAKING:
        monkeypatch.setattr(module, "wake_worker", wake)
    return sent
