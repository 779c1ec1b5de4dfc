"""What expert tools and sub-agents add to the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpregistry.extensions import Extension
from mcpregistry.models.feed import Told
from mcpregistry.services.configuration.dependents import DependentKind
from subagents.call_runs import find_runs_of_call
from subagents.models import (
    EFFORT_TOPIC,
    HEADEND_TOPIC,
    MAINTENANCE_TOPIC,
    RUN_TOPIC,
    EffortAgent,
    ExpertTool,
    Headend,
    HeadendRequest,
    MaintenanceRequest,
    Run,
    ToolCall,
    Turn,
)
from subagents.services.experts import grant_awaited
from subagents.services.headends import configuring
from subagents.services.offers import SECTION, list_definitions, load_offered_experts
from subagents.services.runs import cancel_withdrawn_task, has_settled

if TYPE_CHECKING:
    from datetime import datetime

    from mcpregistry.calls.catalog import ToolSource
    from mcpregistry.calls.execution import Dispatcher
    from mcpregistry.calls.sampling import Sampler
    from mcpregistry.services.exchange.sections import ExchangeSection

# Columns of a hosted agent that its work changes, and not its configuration.
_WORK_OF_AGENTS = frozenset(
    {
        "worker",
        "fence",
        "lease_until",
        "wake_at",
        "idle_since",
        "finished_at",
        "focus",
        "awaits_level",
        "cycle_seconds",
    }
)


def make_extension() -> Extension:
    """The parts of this app. Call it when all models are loaded."""
    return Extension(
        tool_sources=(
            _make_effort_source,
            _make_expert_source,
            _make_maintenance_source,
            _make_operations_source,
        ),
        make_sampler=_make_sampler,
        sum_call_costs=_sum_call_costs,
        list_open_calls=_list_calls_of_open_runs,
        find_related_records=find_runs_of_call,
        has_steered=has_settled,
        snapshot_sections={
            SECTION: load_offered_experts,
            configuring.SECTION: configuring.load_headends,
        },
        make_file_section=_make_file_section,
        list_own_definitions=list_definitions,
        rule_inputs={ExpertTool: {"name": ("call.expert", "tool.name")}},
        dependent_kinds=(
            DependentKind(
                Headend,
                "subagents.delete_headend",
                "headend.deleted",
                lambda row: f"headend:{row.slug}",
            ),
            DependentKind(
                EffortAgent,
                "subagents.delete_effortagent",
                "effort_agent.deleted",
                lambda row: f"effort_agent:{row.expert.name}",
            ),
        ),
        watched_tables={
            ExpertTool: frozenset({"created_at"}),
            ExpertTool.users.through: frozenset(),
            ExpertTool.endpoints.through: frozenset(),
            Headend: frozenset({"created_at"}),
            EffortAgent: _WORK_OF_AGENTS,
        },
        reported_tables={
            HeadendRequest: Told(HEADEND_TOPIC, "headend_id", ("released_at",)),
            EffortAgent: Told(EFFORT_TOPIC, "id", ("enabled",)),
            Run: Told(RUN_TOPIC, "id", ("state", "cancel_requested", "finished_at")),
            Turn: Told(RUN_TOPIC, "run_id", inserted=True),
            ToolCall: Told(RUN_TOPIC, "run_id", ("state", "finished_at"), inserted=True),
            MaintenanceRequest: Told(
                MAINTENANCE_TOPIC, "id", ("state", "wish", "progress", "message"), inserted=True
            ),
        },
        handle_offered_tools=grant_awaited,
        handle_cancelled_task=cancel_withdrawn_task,
    )


# These import the engine and the MCP client, which most processes do not need.


def _make_expert_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.runs.tool_source import expert_source

    return expert_source(engine)


def _make_maintenance_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.maintenance.tools import maintenance_source

    return maintenance_source(engine)


def _make_operations_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.maintenance.model_operations import operations_source

    return operations_source(engine)


def _make_effort_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.effort.tools import effort_source

    return effort_source(engine)


def _make_sampler(engine: Any) -> Sampler:
    from subagents.runs.sampling import sampler

    return sampler(engine)


def _sum_call_costs(since: datetime, until: datetime | None) -> dict[str, int]:
    from subagents.queries import sum_costs_of_calls

    return sum_costs_of_calls(since, until)


def _list_calls_of_open_runs() -> list[datetime]:
    from subagents.queries import list_calls_of_open_runs

    return list_calls_of_open_runs()


def _make_file_section() -> ExchangeSection:
    # imports YAML, which runmcp does not need
    from subagents.services.exchange.experts import ExpertFiles

    return ExpertFiles()
