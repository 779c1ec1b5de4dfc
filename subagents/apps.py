from __future__ import annotations

from django.apps import AppConfig


class SubagentsConfig(AppConfig):
    name = "subagents"
    verbose_name = "Expert tools"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from mcpregistry.calls.engine import add_source
        from mcpregistry.models.guards import watch
        from mcpregistry.services.snapshots import add_section
        from subagents.models import ExpertTool
        from subagents.runs.served import SECTION, expert_source
        from subagents.services.offering import offered

        watch(ExpertTool, frozenset({"created_at"}))
        watch(ExpertTool.users.through)
        watch(ExpertTool.endpoints.through)
        add_section(SECTION, offered)
        add_source(expert_source)
