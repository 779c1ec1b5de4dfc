"""The values that travel through the pipeline. Nothing in them changes once made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from mcpregistry.calls.catalog import Catalogue, CatalogueEntry
from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import Decision
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.budgets.spending import Remark
from mcpregistry.services.energy.reservations import Charged

# progress, total or None, message or None; called on the event loop, must not block
OnProgress = Callable[[float, float | None, str | None], None]
# a line, see ``domain.calls.loglines.read_log_line``; must not block
OnLog = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question to the person at the host about the held request with this id.

    With ``url`` the person is sent to that page, else asked to tick ``confirm``.
    """

    request: str
    message: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class HostReply:
    """What a host answered to the Prompt of ``request``, ``seconds`` after it was asked."""

    request: str
    action: str  # accept, decline or cancel
    confirmed: bool
    seconds: float
    url: bool = False


@dataclass(frozen=True, slots=True)
class CallHost:
    """What the calling program can bear, as it said with this very request.

    ``ask`` puts a question to it and waits for the answer (older era). In the modern era a question
    is our answer to the call (``mrtr``), and the repeated call brings the ``reply``. ``hold``:
    seconds that the caller itself is ready to wait; None when it did not say. ``said``: its own
    words for those who decide, who are shown them as not to be trusted. ``forwarding``: what of the
    host goes on to the server. ``left`` is set when its connection is gone, where being gone does
    not cancel the call by itself.
    """

    name: str = ""
    version: str = ""
    transport: str = ""  # stdio, http, rest or run
    tasks: bool = False
    elicit: frozenset[str] = frozenset()  # form, url
    progress: bool = False
    ask: Callable[[Prompt], Awaitable[HostReply]] | None = None
    mrtr: bool = False
    reply: HostReply | None = None
    hold: float | None = None
    said: str = ""
    forwarding: Forwarding = NOTHING
    left: asyncio.Event | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    def set_log_level(self, level: str) -> CallHost:
        """The same, for a host that wants log lines from this level on."""
        return (
            replace(self, forwarding=replace(self.forwarding, log_level=level)) if level else self
        )

    def drop_tasks(self) -> CallHost:
        """For what no task can be made of."""
        return replace(self, tasks=False, forwarding=self.forwarding.drop_tasks())


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What a face hands in. ``meta`` is the host's ``_meta`` as far as it may go downstream.

    ``requester`` is the person who asked, or started the run that asks: they may not approve it.
    """

    catalogue: Catalogue
    name: str
    arguments: Mapping[str, Any]
    origin: str
    host_name: str = ""
    request_id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    host: CallHost = field(default_factory=CallHost)
    expert: str = ""  # the expert tool whose run makes the call
    requester: Requester = NOBODY
    conversation: str = ""  # its id; ``catalogue`` is narrowed to what it may see
    # what has led to this call of a run: their budgets bear it too
    behind: tuple[AgentSpec | EndpointSpec, ...] = ()
    session: str = ""  # of the host, or of the run, as far as servers are shared by that
    # for a caller that must find the record again whatever happens; unique, 32 hex digits
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that found its tool and was decided on; ``arguments_json`` are the bytes to be
    sent."""

    id: str
    request: CallRequest
    entry: CatalogueEntry
    arguments_json: str
    binding: str
    decision: Decision
    received_at: datetime
    started: float  # monotonic seconds
    permit: int = 0  # the key of the permit of which it has taken a use
    remarks: tuple[Remark, ...] = ()  # what its caller is told beside the answer, of its budgets
    fence: int = 0  # rises with the claim of a held call; its end must name the same


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """A call and what, if anything, speaks against it; nothing of it is recorded yet."""

    call: Call
    refusal: SlipsnisseError | None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended. ``result`` is the server's own result object, or None when there was
    none."""

    invocation_id: str
    state: InvocationState
    result: dict[str, Any] | None = None
    error_code: str = ""
    message: str = ""
    remedy: str = ""
    duration_ms: float = 0.0
    # with the state pending or ready: the call is held, and this is its handle
    ticket: HeldCallTicket | None = None
    # with the state pending: ask the person at the host this, then call again
    prompt: Prompt | None = None
    # with the state dispatched: the server made a task of it, and this is our handle for that
    task_id: str = ""
    # the end could not be recorded yet: until it is, the record says that the call is out
    late: bool = False
    rpc_code: int = 0  # of the server's JSON-RPC error, if that was its answer
    rpc_data: Any = None
    warning: str = ""  # what is odd about the result, which is passed on all the same
    # the call is still out, and its ``result`` asks the host: how the waiting call is found again
    live: str = ""
    energy: Charged | None = None  # where the endpoint tells it: what the books have of the call
