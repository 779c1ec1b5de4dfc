from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

if TYPE_CHECKING:
    from mcpregistry.services.exchange_sections import Section


class SubagentsConfig(AppConfig):
    name = "subagents"
    verbose_name = "Expert tools"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from mcpregistry.calls.engine import add_source
        from mcpregistry.models.guards import watch
        from mcpregistry.services import definitions, tasks
        from mcpregistry.services.exchange_sections import add_section as add_to_files
        from mcpregistry.services.snapshots import add_section
        from subagents.models import ExpertTool
        from subagents.runs.served import SECTION, expert_source
        from subagents.services.experts import grant_awaited
        from subagents.services.offering import offered
        from subagents.services.runs import task_withdrawn

        tasks.withdrawn.connect(task_withdrawn)
        definitions.offered.connect(grant_awaited)
        post_migrate.connect(_after_migrate, sender=self)
        watch(ExpertTool, frozenset({"created_at"}))
        watch(ExpertTool.users.through)
        watch(ExpertTool.endpoints.through)
        add_section(SECTION, offered)
        add_source(expert_source)
        add_to_files(_files)


def _files() -> Section:
    from subagents.services.exchange import ExpertFiles  # brings YAML along, which runmcp can do without

    return ExpertFiles()


def _after_migrate(**_: Any) -> None:
    """Our permissions are made after the registry's, so its roles have not got them yet."""
    from mcpregistry.services.roles import install_roles

    install_roles()
