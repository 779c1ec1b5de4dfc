"""How maintenance requests, messages and proposals look over REST. Names of keys are those of the
sub-agent's design (S1)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from ninja import Schema
from pydantic import Field, create_model

from mcpregistry.api.schemas.basics import Object, Slug, StrictInput, Text
from mcpregistry.api.schemas.registry import EntryChoice
from mcpregistry.api.schemas.servers import ServerChange
from mcpregistry.domain.servers.redacted_env import mask_field_secrets, mask_record_secrets
from subagents.domain.maintenance import Kind, Priority, ProposalState, State
from subagents.maintenance.plans import FIELDS, MOST_FOUND
from subagents.models import MaintenanceMessage, MaintenanceRequest, Proposal

PriorityName = Literal["low", "medium", "high"]
Reason = Annotated[Text, Field(max_length=500)]

_PROPOSABLE: dict[str, Any] = {
    name: (field.annotation, field)
    for name, field in ServerChange.model_fields.items()
    if name in FIELDS
}
ServerFields: Any = create_model(
    "ServerFields",
    __base__=StrictInput,
    __doc__="Fields of a server that can be proposed. Users enter secrets (env, headers) themselves.",
    **_PROPOSABLE,
)


class AddParams(StrictInput):
    """If ``fields`` is left out, entries of registries are proposed, and a user chooses one."""

    server: Slug
    purpose: Reason = ""
    registry_name: Annotated[
        Text, Field(max_length=200, description="Name of an entry in a registry.")
    ] = ""
    fields: ServerFields = Field(default_factory=ServerFields)


class RemoveParams(StrictInput):
    """The server, and the reason."""

    server: Slug
    reason: Reason = ""


class TestParams(StrictInput):
    """The server, and optionally one call of an approved tool that only reads."""

    server: Slug
    call_tool: Annotated[Text, Field(max_length=200)] = ""
    call_arguments: Object = Field(default_factory=dict)
    in_sandbox: bool = False


class TryParams(StrictInput):
    """The server, and optionally the agent to which the trial proposes grants."""

    server: Slug
    for_agent: Annotated[Text, Field(max_length=63)] = ""


class SearchParams(StrictInput):
    """Words in the name, description or tools of a server."""

    query: Annotated[Text, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=MOST_FOUND)] = 10


class ChangedFields(ServerFields):
    """New values of an existing server, and whether it is enabled."""

    enabled: bool | None = None


class ModifyParams(StrictInput):
    """New values by field, and the reason."""

    server: Slug
    fields: ChangedFields
    reason: Reason = ""


class _Order(StrictInput):
    """``supervisor`` is a hosted agent. While its cycles are paused, the request is paused."""

    priority: PriorityName = "medium"
    supervisor: Annotated[Text, Field(max_length=63)] = ""


class AddOrder(_Order):
    """Propose a new server."""

    type: Literal["add_server"]
    params: AddParams


class RemoveOrder(_Order):
    """Propose to delete a server."""

    type: Literal["remove_server"]
    params: RemoveParams


class TestOrder(_Order):
    """Test whether a server works."""

    type: Literal["test_server"]
    params: TestParams


class TryOrder(_Order):
    """Try a server before it is enabled. Only users can request this, because tools that claim to
    only read are called."""

    type: Literal["try_server"]
    params: TryParams


class SearchOrder(_Order):
    """Find servers."""

    type: Literal["search_servers"]
    params: SearchParams


class ModifyOrder(_Order):
    """Propose a change of a server."""

    type: Literal["modify_server"]
    params: ModifyParams


Order = Annotated[
    AddOrder | RemoveOrder | TestOrder | TryOrder | SearchOrder | ModifyOrder,
    Field(discriminator="type"),
]


class CancelOrder(StrictInput):
    """The reason, which is part of the error of the request."""

    reason: Reason = ""


class RequestOut(Schema):
    """A request with its status."""

    requestId: str
    type: Kind
    params: dict[str, Any]
    priority: PriorityName
    state: State
    substate: str = Field(description="`paused`, `cancelled` or empty.")
    progress: int = Field(ge=0, le=100)
    message: str
    energyConsumed: float
    result: dict[str, Any] | None
    error: str | None
    agent: str
    supervisor: str = Field(
        description="Hosted agent that supervises the request. While this agent does not run, the request is paused. Empty if no agent supervises it."
    )
    requestedBy: str
    timestamp: datetime
    startedAt: datetime | None
    finishedAt: datetime | None


class MaintenanceMessageOut(Schema):
    """A message of the sub-agent."""

    type: str
    requestId: str
    data: dict[str, Any]
    timestamp: datetime


class MessagesOut(Schema):
    """Messages, oldest first."""

    items: list[MaintenanceMessageOut]


class Activity(Schema):
    """``open``: number of requests that have not ended, including queued ones. ``enabled``: whether
    the sub-agent is enabled."""

    enabled: bool
    active: bool
    open: int


class PolledEnergyOut(Schema):
    """Energy in units."""

    energy: float


class ProposalApplication(StrictInput):
    """Needed only for a new server that is proposed from registries."""

    entry: EntryChoice | None = None


class ProposalOut(Schema):
    """A proposed change, and the decision on it."""

    id: int
    requestId: str
    type: Kind
    server: str
    fields: dict[str, Any]
    install: int | None = Field(
        description="Number of the package that was requested for this proposal. A server can be created from the package."
    )
    reason: str
    state: ProposalState
    decided_by: str
    decided_at: datetime | None
    created_at: datetime


def priority_of(name: PriorityName) -> Priority:
    """As the queue sorts by it."""
    return Priority[name.upper()]


def _priority(row: MaintenanceRequest) -> PriorityName:
    return cast(PriorityName, Priority(row.priority).name.lower())


def request_out(row: MaintenanceRequest) -> RequestOut:
    """The request as programs see it. A proposal shows its fields whole to people who may apply
    it."""
    return RequestOut(
        requestId=row.pk,
        type=Kind(row.kind),
        params=mask_field_secrets(row.params),
        priority=_priority(row),
        state=State(row.state),
        substate=row.substate,
        progress=row.progress,
        message=row.message,
        energyConsumed=round(row.energy_total, 3),
        result=mask_field_secrets(row.result),
        error=row.error or None,
        agent=row.agent,
        supervisor=row.supervisor,
        requestedBy=row.requested_by,
        timestamp=row.created_at,
        startedAt=row.started_at,
        finishedAt=row.finished_at,
    )


def message_out(row: MaintenanceMessage) -> MaintenanceMessageOut:
    """The message as programs see it."""
    data = {
        name: mask_field_secrets(value) if name == "result" else value
        for name, value in row.data.items()
    }
    return MaintenanceMessageOut(
        type=row.kind, requestId=row.request_id, data=data, timestamp=row.created_at
    )


def proposal_out(row: Proposal, *, whole: bool) -> ProposalOut:
    """The proposal as programs see it; not ``whole``: without what is secret in a command or an
    address."""
    return ProposalOut(
        id=row.pk,
        requestId=row.request_id,
        type=Kind(row.request.kind),
        server=row.request.server_slug,
        fields=row.fields if whole else mask_record_secrets(row.fields),
        install=row.install_id,
        reason=row.reason,
        state=ProposalState(row.state),
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        created_at=row.created_at,
    )
