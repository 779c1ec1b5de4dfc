"""What is configured, as immutable values: the parts that a ``Snapshot`` consists of, and that a
policy may look at.

Times are seconds since the epoch. Nothing in them is secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcpregistry.domain.budgets import name_endpoint_payer
from mcpregistry.domain.offer_kinds import TOOL, build_arguments_schema, spell_offer_key


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server as the hot path needs it; times in seconds. ``available`` is false after repeated
    failed checks."""

    id: int
    slug: str
    title: str
    revision: int
    transport: str
    connect_mode: str
    request_timeout: float
    max_message_bytes: int
    available: bool
    shared_by: str = "everybody"
    questions: frozenset[str] = frozenset()  # the kinds that it may ask the host's user
    sampling_expert: str = ""  # the expert tool whose model answers in the host's place
    mcp_apps: bool = True
    features: frozenset[str] = frozenset()  # what it has besides lists (``domain.offer_kinds``)
    only_on: str = ""  # the only endpoint that lists it; empty: every endpoint can


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool, or a prompt (``kind``), with its approved definition (``data``: the fields that a
    model can see).

    ``read_only`` to ``open_world`` are what an approver has confirmed of its behaviour; None:
    nothing. Sources other than downstream servers give their tools negative ids, so that no rule
    about a tool means them.
    """

    id: int
    server_id: int
    name: str
    definition_hash: str
    data: Mapping[str, Any]
    idempotent: bool
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None
    energy: float = 0.0  # of one call, as an operator estimates it
    instructions: str = ""  # what its server tells every model, as it was approved with this tool
    cost: int = 0  # of one call, in hundred-millionths of a US dollar, as an operator estimates it
    kind: str = TOOL
    # its server's resources that are switched off: it makes none of them readable
    never: frozenset[str] = frozenset()
    ruled: Mapping[str, int] = field(
        default_factory=dict
    )  # its server's fixed resources that a rule is about: their keys, by URI

    own_name: str = ""  # what an operator calls it towards hosts; empty: as its server does
    own_description: str = ""  # what hosts are shown in place of the approved text; empty: that

    @property
    def key(self) -> str:
        """Its name with its kind, as records have it."""
        return spell_offer_key(self.kind, self.name)

    @property
    def arguments_schema(self) -> Mapping[str, Any]:
        """What the arguments of a call must fit."""
        return build_arguments_schema(self.kind, self.data)


@dataclass(frozen=True, slots=True)
class GrantSpec:
    """A grant of one server, or of one tool or prompt; ``pins`` are the arguments that must have
    these values.

    ``kind``: of a server all that is of this kind; empty: everything.
    """

    server_id: int | None
    tool_id: int | None
    pins: Mapping[str, Any]
    expires_at: float | None
    kind: str = TOOL
    uri: str = ""  # of resources only those whose URI is like this; * stands for anything


class Grants(tuple[GrantSpec, ...]):
    """Somebody's grants, of which there may be thousands: those about one tool are found without
    looking at the others."""

    @cached_property
    def _by_subject(self) -> Mapping[tuple[int | None, int | None], list[GrantSpec]]:
        found: dict[tuple[int | None, int | None], list[GrantSpec]] = {}
        for grant in self:
            subject = (
                (None, grant.tool_id) if grant.tool_id is not None else (grant.server_id, None)
            )
            found.setdefault(subject, []).append(grant)
        return found

    def about(self, tool: ToolSpec) -> Iterable[GrantSpec]:
        """Those of this tool, and those of its server."""
        by = self._by_subject
        return (*by.get((None, tool.id), ()), *by.get((tool.server_id, None), ()))


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An enabled agent with its grants. ``calls_per_minute`` None: no limit; ``hold_seconds`` None:
    as its hosts bear.

    ``energy_pool``: the key of the pool that its calls are charged to; None: they cost nothing.
    ``budgets``: what the budgets count that it has (``domain.budgets.Unit``); whoever has none asks
    no book.
    """

    id: int
    slug: str
    capabilities: frozenset[str]
    calls_per_minute: int | None
    grants: tuple[GrantSpec, ...]
    hold_seconds: int | None = None
    energy_pool: int | None = None
    budgets: frozenset[str] = frozenset()

    @property
    def payer(self) -> str:
        """Its name among those who pay."""
        return self.slug


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """Whose token it is and when it ends; the snapshot keys it by the token's SHA-256."""

    agent: str
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """The configuration file of a directory, as it is reported to hosts (``models.ProjectFile``).
    ``content``: its hash.

    ``summary``: a line for each server, without secrets. ``is_confirmed``: a person has confirmed
    exactly this content.
    """

    id: int
    directory: str
    path: str
    agent: str
    content: str
    summary: tuple[str, ...]
    problem: str
    is_confirmed: bool
    is_served: bool


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """An enabled endpoint. ``lists_only``: a tool needs a grant of the endpoint as well as one of
    the agent.

    ``budgets``: as those of an agent; they bear what comes by this endpoint.
    """

    slug: str
    title: str
    instructions: str
    naming_style: str
    description_style: str
    lists_only: bool
    hide_unavailable: bool
    grants: tuple[GrantSpec, ...]
    hold_seconds: int | None = None
    maintenance_tools: bool = False
    tell_energy: bool = False
    instructions_limit: int = 0  # characters of the servers' together
    budgets: frozenset[str] = frozenset()
    projects: tuple[ProjectSpec, ...] = ()  # the files of directories whose servers it lists

    @property
    def payer(self) -> str:
        """Its name among those who pay."""
        return name_endpoint_payer(self.slug)


# What runs of expert tools see: everything that their agent is granted. No host can ask for it by
# name.
RUNS = EndpointSpec(
    slug="(runs)",
    title="Runs of expert tools",
    instructions="",
    naming_style="double",
    description_style="none",
    lists_only=False,
    hide_unavailable=False,
    grants=(),
)


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    """Which endpoint and agent ``runmcp --cwd`` uses below a directory."""

    directory: str
    endpoint: str
    agent: str


@dataclass(frozen=True, slots=True)
class PermitSpec:
    """An approval given ahead. How many uses are left is asked of the database when it is used."""

    id: int
    definition_hash: str
    server_revision: int
    pins: Mapping[str, Any]
    expires_at: float
