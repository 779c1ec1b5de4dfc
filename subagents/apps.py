from django.apps import AppConfig


class SubagentsConfig(AppConfig):
    name = "subagents"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Expert tools"
