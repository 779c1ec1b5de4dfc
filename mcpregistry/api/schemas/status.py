"""The site as a whole."""

from __future__ import annotations

from ninja import Schema
from pydantic import Field


class SiteStatus(Schema):
    """Figures of the whole site."""

    configuration_revision: int
    servers_active: int
    servers_draft: int
    servers_disabled: int
    servers_unavailable: int = Field(description="Active, but failed several times in a row.")
    tools: int = Field(description="That servers offer, approved or not.")
    definitions_waiting: int = Field(description="New or changed tools that nobody has decided on.")
    calls_open: int = Field(description="Held, ready or sent, and not ended.")
    tests_queued: int
    changes: str = Field(
        description="How the answering process learns of changes: ok (it hears them at once), polling (it asks each "
        "second), blind (it cannot, and makes no calls), unknown."
    )
    processes: list[str] = Field(description="Processes that hold connections to servers.")
