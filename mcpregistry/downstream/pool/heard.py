"""What a server says besides answers and changed lists, in a stream that is no call's."""

from __future__ import annotations

from mcp_types import LoggingMessageNotification, ResourceUpdatedNotification

from mcpregistry.downstream.pool.loglines import LogLines
from mcpregistry.downstream.pool.watching import Watched


def heard(message: object, logs: LogLines, watched: Watched | None) -> None:
    """Hand on a log line, or to ``watched`` the word that a resource has changed, which of a modern server comes in a
    stream of its own. Never raises.
    """
    if isinstance(message, LoggingMessageNotification):
        logs.hear(message.params.model_dump(by_alias=True, mode="json"))
    elif watched is not None and isinstance(message, ResourceUpdatedNotification):
        watched.updated(str(message.params.uri))
