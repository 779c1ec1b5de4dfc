"""The app configuration of expert tools, and where they hook into the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

if TYPE_CHECKING:
    from datetime import datetime

    from mcpregistry.calls.catalog import ToolSource
    from mcpregistry.calls.execution import Dispatcher
    from mcpregistry.calls.sampling import Sampler
    from mcpregistry.services.exchange.sections import ExchangeSection


class SubagentsConfig(AppConfig):
    """Django's configuration of the app."""

    name = "subagents"
    verbose_name = "Sub-agents"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register with the registry, which knows nothing of expert tools: source, snapshot
        section, file section, signals.
        """
        from mcpregistry.calls.source_registry import add_source, set_sampler_maker
        from mcpregistry.queries.call_tallies import add_costs
        from mcpregistry.queries.own_definitions import add_definitions
        from mcpregistry.queries.related_calls import add_finder
        from mcpregistry.services.approvals.requests import add_steering
        from mcpregistry.services.configuration.rule_inputs import add_rule_inputs
        from mcpregistry.services.configuration.snapshot import add_section
        from mcpregistry.services.definitions import observe
        from mcpregistry.services.exchange.sections import add_section as add_to_files
        from mcpregistry.services.tasks import host_tasks
        from subagents import checks  # noqa: F401  registers them
        from subagents.call_runs import find_runs_of_call
        from subagents.models import ExpertTool
        from subagents.services.experts import grant_awaited
        from subagents.services.headends import configuring
        from subagents.services.offers import SECTION, list_definitions, load_offered_experts
        from subagents.services.runs import cancel_withdrawn_task, has_settled

        add_finder(find_runs_of_call)
        add_steering(has_settled)
        host_tasks.withdrawn.connect(cancel_withdrawn_task)
        observe.offered.connect(grant_awaited)
        post_migrate.connect(_after_migrate, sender=self)
        add_source(_effort_source)
        add_section(SECTION, load_offered_experts)
        add_section(configuring.SECTION, configuring.load_headends)
        add_source(_expert_source)
        add_source(_maintenance_source)
        add_source(_operations_source)
        add_to_files(_files)
        set_sampler_maker(_sampler)
        add_costs(_costs, _open_runs)
        add_definitions(list_definitions)
        add_rule_inputs(ExpertTool, {"name": ("call.expert", "tool.name")})
        _add_dependent_kinds()
        _watch_tables()


def _add_dependent_kinds() -> None:
    """Which records are deleted along only by whoever may delete them."""
    from mcpregistry.services.configuration.dependents import DependentKind, add_dependent_kind
    from subagents.models import EffortAgent, Headend

    add_dependent_kind(
        DependentKind(
            Headend,
            "subagents.delete_headend",
            "headend.deleted",
            lambda row: f"headend:{row.slug}",
        )
    )
    add_dependent_kind(
        DependentKind(
            EffortAgent,
            "subagents.delete_effortagent",
            "effort_agent.deleted",
            lambda row: f"effort_agent:{row.expert.name}",
        )
    )


def _watch_tables() -> None:
    """Which tables change the configuration, and of which the feed tells."""
    from mcpregistry.models.feed import Told, tell
    from mcpregistry.models.guards import watch
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

    watch(ExpertTool, frozenset({"created_at"}))
    watch(ExpertTool.users.through)
    watch(ExpertTool.endpoints.through)
    watch(Headend, frozenset({"created_at"}))
    tell(HeadendRequest, Told(HEADEND_TOPIC, "headend_id", ("released_at",)))
    idle = {
        "worker",
        "fence",
        "lease_until",
        "wake_at",
        "idle_since",
        "finished_at",
        "focus",
        "awaits_level",
    }
    watch(EffortAgent, frozenset({*idle, "cycle_seconds"}))
    tell(EffortAgent, Told(EFFORT_TOPIC, "id", ("enabled",)))
    tell(Run, Told(RUN_TOPIC, "id", ("state", "cancel_requested", "finished_at")))
    tell(Turn, Told(RUN_TOPIC, "run_id", inserted=True))
    tell(ToolCall, Told(RUN_TOPIC, "run_id", ("state", "finished_at"), inserted=True))
    tell(
        MaintenanceRequest,
        Told(MAINTENANCE_TOPIC, "id", ("state", "wish", "progress", "message"), inserted=True),
    )


def _expert_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    # brings the engine and the MCP client along
    from subagents.runs.tool_source import expert_source

    return expert_source(engine)


def _maintenance_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.maintenance.tools import maintenance_source

    return maintenance_source(engine)


def _operations_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.maintenance.model_operations import operations_source

    return operations_source(engine)


def _effort_source(engine: Any) -> tuple[ToolSource, Dispatcher]:
    from subagents.effort.tools import effort_source

    return effort_source(engine)


def _sampler(engine: Any) -> Sampler:
    from subagents.runs.sampling import sampler

    return sampler(engine)


def _costs(since: datetime, until: datetime | None) -> dict[str, int]:
    from subagents.queries import sum_costs_of_calls

    return sum_costs_of_calls(since, until)


def _open_runs() -> list[datetime]:
    from subagents.queries import list_calls_of_open_runs

    return list_calls_of_open_runs()


def _files() -> ExchangeSection:
    # brings YAML along, which runmcp can do without
    from subagents.services.exchange.experts import ExpertFiles

    return ExpertFiles()


def _after_migrate(*, plan: Sequence[object] = (), **_: Any) -> None:
    """All permissions are there now: those of this app are made last."""
    from mcpregistry.services.upkeep import completeness

    completeness.finish_migration(migrated=bool(plan))
