"""Notifications of a server other than changed lists, from any stream of its connection."""

from __future__ import annotations

from mcp_types import (
    ElicitCompleteNotification,
    LoggingMessageNotification,
    ResourceUpdatedNotification,
)

from mcpregistry.downstream.pool.elicitation_pages import ElicitationPages
from mcpregistry.downstream.pool.log_lines import LogLines
from mcpregistry.downstream.pool.resource_subscriptions import Watched

UPDATED = "notifications/resources/updated"
COMPLETE = "notifications/elicitation/complete"


class ServerNotices:
    """Notifications of a server of the older era, on one connection. A modern server sends neither
    of them outside of a stream of its own, so ``watched`` is None for it.
    """

    def __init__(self, logs: LogLines, completions: ElicitationPages) -> None:
        self._logs = logs
        self._completions = completions
        self.watched: Watched | None = None

    def handle_notice(self, method: str, params: object) -> bool:
        """A notification as it came. Returns whether it needs nobody else. Never raises."""
        if method == COMPLETE:
            self._completions.complete(params)
            return True
        if method != UPDATED or self.watched is None:
            return False
        uri = params.get("uri") if isinstance(params, dict) else None
        if isinstance(uri, str):
            self.watched.note(uri)
        return True

    def handle_typed_notice(self, message: object) -> None:
        """One that the SDK has read."""
        if isinstance(message, LoggingMessageNotification):
            self._logs.handle_line(message.params.model_dump(by_alias=True, mode="json"))
        elif isinstance(message, ResourceUpdatedNotification | ElicitCompleteNotification):
            self.handle_notice(
                message.method, message.params.model_dump(by_alias=True, mode="json")
            )
