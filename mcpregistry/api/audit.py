"""The audit log: who changed or called what, and the proof that it is complete."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Query

from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Text, When
from mcpregistry.api.schemas.records import AuditOut, Verification, audit_out
from mcpregistry.queries.audit import filter_entries
from mcpregistry.services.records import verification

router = PermissionRouter(tags=["audit"])


@router.get("/audit", response=Page[AuditOut])
def list_audit(
    request: HttpRequest,
    *,
    kind: Annotated[
        Text | None, Query(max_length=40, description="For example `server.confirmed`.")
    ] = None,
    actor: Annotated[
        Text | None, Query(max_length=150, description="For example `user:ann`.")
    ] = None,
    subject: Annotated[
        Text | None, Query(max_length=200, description="For example `server:git`.")
    ] = None,
    since: Annotated[When | None, Query()] = None,
    until: Annotated[When | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditOut]:
    """Entries of the audit log, newest first."""
    rows = filter_entries(kind=kind, actor=actor, subject=subject, since=since, until=until)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=audit_out)


@router.get("/audit/verification", response=Verification)
def verify(request: HttpRequest) -> Verification:
    """The result of the last verification. The scheduler verifies every ten minutes; `manage.py
    audit verify` does so now."""
    report = verification.load_last_report()
    if report is None:
        return Verification(
            verified_at=None, intact=None, full=False, entries=0, chains=0, problems=[], notes=[]
        )
    return Verification(
        verified_at=report.at,
        intact=not report.problems,
        full=report.full,
        entries=report.entries,
        chains=report.chains,
        problems=[*report.problems],
        notes=[*report.notes],
    )
