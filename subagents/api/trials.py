"""Reports of trials over REST: what a server did when it was tried, and what is proposed because of
it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from pydantic import Field

from mcpregistry.api import lookup
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Page, Slug
from mcpregistry.api.v1 import api
from subagents.domain.maintenance import ProposalState
from subagents.models import TrialReport

_VIEW = OperationRule("subagents.view_trialreport")
TABLE.update({"GET /maintenance/trials": _VIEW, "GET /maintenance/trials/{trial_id}": _VIEW})
router = PermissionRouter(tags=["maintenance"])
Verdict = Literal["ok", "attention", "refuse"]


class TrialOut(Schema):
    """Summary of one trial."""

    id: int
    server: str
    requestId: str | None = Field(
        description="Request that the trial belongs to. Null if the request was deleted by retention."
    )
    verdict: Verdict
    version: str = Field(description="Version that the server reports.")
    differences: list[str] = Field(description="Differences from the previous trial, as sentences.")
    behaves_otherwise: bool
    proposal: int | None = Field(description="Number of the proposal of this trial.")
    proposal_state: ProposalState | None
    created_at: datetime


class TrialDetail(TrialOut):
    """The whole report. Times are in milliseconds, memory is in kilobytes, and null means that it
    could not be observed."""

    server_revision: int
    findings: list[dict[str, Any]]
    figures: dict[str, Any]
    starts: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    unobserved: list[str]
    proposed: Annotated[
        dict[str, Any],
        Field(
            description="Proposed rule (allow, ask or hide) for each of the `tools`, and proposed `fields` of the server."
        ),
    ]


@router.get("/maintenance/trials", response=Page[TrialOut])
def list_trials(
    request: HttpRequest,
    *,
    server: Slug | None = None,
    verdict: Verdict | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[TrialOut]:
    """List trials, newest first."""
    exact = {"server__slug": server, "verdict": verdict}
    rows = TrialReport.objects.select_related("server", "request__proposal")
    rows = rows.filter(**{key: value for key, value in exact.items() if value is not None})
    return read_page(
        rows,
        order=("-created_at", "-id"),
        limit=limit,
        cursor=cursor,
        show=lambda row: TrialOut(**_short(row)),
    )


@router.get("/maintenance/trials/{trial_id}", response=TrialDetail)
def get_trial(request: HttpRequest, trial_id: lookup.Id) -> TrialDetail:
    """Get one trial with its whole report."""
    row = lookup.one(
        TrialReport.objects.select_related("server", "request__proposal"), "trial", pk=trial_id
    )
    return TrialDetail(
        **_short(row),
        server_revision=row.server_revision,
        findings=row.findings,
        figures=row.figures,
        starts=row.starts,
        tools=row.tools,
        unobserved=row.unobserved,
        proposed=row.proposed,
    )


def _short(row: TrialReport) -> dict[str, Any]:
    proposal = getattr(row.request, "proposal", None)
    return {
        "id": row.pk,
        "server": row.server.slug,
        "requestId": row.request_id,
        "verdict": row.verdict,
        "version": row.version,
        "differences": row.differences,
        "behaves_otherwise": row.behaves_otherwise,
        "created_at": row.created_at,
        "proposal": proposal.pk if proposal else None,
        "proposal_state": proposal.state if proposal else None,
    }


api.add_router("", router)
