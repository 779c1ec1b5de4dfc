"""The catalogue as the conversation that a request names may see it; every face asks here before it
lists or calls."""

from __future__ import annotations

import structlog
from django.db import Error

from mcpregistry.calls.catalog import Catalogue
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.services.conversations import conversation_scope

log = structlog.get_logger(__name__)


async def narrow_to_conversation(catalogue: Catalogue, conversation: str) -> Catalogue:
    """The catalogue narrowed as this conversation of its agent says; itself where none is named.

    Raises NotFound for a conversation that is not the agent's, Conflict for one that has ended,
    Busy when the database does not say.
    """
    if not conversation:
        return catalogue
    try:
        servers = await db_call(
            conversation_scope.enter_conversation, conversation, catalogue.agent.slug
        )
    except Error:
        log.exception("conversation.not_looked_up")
        raise QueueFullError(
            "The conversation could not be read, so nothing was done.",
            remedy=error_texts.TRY_AGAIN_SOON,
        ) from None
    return _narrow_catalogue(catalogue, servers)


def narrow_to_conversation_sync(catalogue: Catalogue, conversation: str) -> Catalogue:
    """The same in a thread that may ask the database."""
    return (
        _narrow_catalogue(
            catalogue, conversation_scope.enter_conversation(conversation, catalogue.agent.slug)
        )
        if conversation
        else catalogue
    )


def _narrow_catalogue(catalogue: Catalogue, servers: frozenset[str]) -> Catalogue:
    return catalogue.narrow_to_servers(servers) if servers else catalogue
