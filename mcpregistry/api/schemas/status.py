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
    servers_unavailable: int = Field(
        description="Active servers that failed several times in a row."
    )
    tools: int = Field(description="Tools that servers offer, approved or not.")
    definitions_waiting: int = Field(description="New or changed tools that wait for a decision.")
    calls_open: int = Field(description="Calls that are held, ready or sent, and have not ended.")
    tests_queued: int
    changes: str = Field(
        description="How the answering process learns of changes: ok (immediately), polling (it checks every "
        "second), blind (not at all, so it makes no calls), unknown."
    )
    processes: list[str] = Field(description="Processes that hold connections to servers.")
