"""Sites that hold calls, and one call with what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Invocation, PolicyRule
from mcpregistry.services.approvals import votes
from tests.fakes.journals import noted
from tests.fakes.stage import (
    MODERN,
    Stage,
    Web,
    folder,
    fresh,
    in_order,
    listed,
    outside,
    seen_outside,
    web,
)

LEGACY = "2025-11-25"
ERAS = [LEGACY, MODERN]
# the long one outlasts every wait of a test
LONG_HOLD = "3600"
SHORT_HOLD = "0.3"


@pytest.fixture(scope="module")
def journal() -> Path:
    return folder() / "journal"


@pytest.fixture(scope="module")
def token(stage: Stage, journal: Path) -> str:
    """ "ask" is held; "mine" is held and its requester may confirm; "typed" is held and has an
    output schema."""
    stage.endpoint()
    typed = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [*listed("ask", "mine", "anyway"), *listed("typed", outputSchema=typed)]
    server = stage.fake("echo", tools, FAKE_JOURNAL=str(journal))
    for tool in server.tools.all():
        PolicyRule.objects.create(
            name=tool.name,
            outcome="ask",
            tool=tool,
            requester_may_confirm=tool.name == "mine",
            run_if_caller_left=tool.name == "anyway",
        )
    stage.agent("other", server)
    return stage.agent("local", server)


@pytest.fixture(scope="module")
def site(stage: Stage, token: str) -> Iterator[Web]:
    with web(stage.env | {"SLIPSNISSE_HOLD": LONG_HOLD}) as running:
        running.wait_known(token)
        yield running


@pytest.fixture(scope="module")
def brisk(stage: Stage, token: str) -> Iterator[Web]:
    """A site that waits for a moment only."""
    with web(stage.env | {"SLIPSNISSE_HOLD": SHORT_HOLD}) as running:
        running.wait_known(token)
        yield running


@pytest.fixture(scope="module")
def approver(token: str) -> User:
    user = User.objects.create(username="ann", first_name="Ann", last_name="Lee", password="!")
    user.groups.add(Group.objects.get(name="approver"))
    return user


class Case:
    """One call with arguments of its own, and what became of it."""

    def __init__(self, approver: User, journal: Path) -> None:
        self.approver = approver
        self.journal = journal
        self.arguments = {"mark": fresh("case")}

    def _request(self) -> ApprovalRequest | None:
        rows = ApprovalRequest.objects.select_related("call").filter(
            call__arguments__contains=self.arguments["mark"]
        )
        return in_order(rows, "call_id").last()

    async def request(self) -> ApprovalRequest:
        return await seen_outside(self._request)

    async def until(self, *states: InvocationState) -> ApprovalRequest:
        def look() -> ApprovalRequest | None:
            found = self._request()
            return found if found and found.call.state in states else None

        return await seen_outside(look)

    async def approve(self, **more: Any) -> None:
        request = await self.request()
        await outside(
            votes.vote, request_id=request.pk, user=self.approver, approve=True, via="web", **more
        )

    async def reject(self, reason: str) -> None:
        request = await self.request()
        await outside(
            votes.vote,
            request_id=request.pk,
            user=self.approver,
            approve=False,
            reason=reason,
            via="web",
        )

    def sent(self) -> list[dict[str, Any]]:
        return [
            m
            for m in noted(self.journal)
            if m.get("method") == "tools/call" and self.arguments["mark"] in json.dumps(m)
        ]

    async def calls(self) -> list[Invocation]:
        rows = Invocation.objects.filter(arguments__contains=self.arguments["mark"])
        return await outside(lambda: list(in_order(rows)))


@pytest.fixture
def case(approver: User, journal: Path) -> Case:
    return Case(approver, journal)


def words(result: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in result["content"] if part["type"] == "text")


def is_pending(result: dict[str, Any]) -> bool:
    return (result.get("structuredContent") or {}).get(
        "status"
    ) == "pending" or "PENDING APPROVAL" in words(result)
