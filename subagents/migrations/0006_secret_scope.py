"""Secrets that providers use today have these in their scope."""

from importlib import import_module

from django.db import migrations


def scope_as_it_is_used(apps, schema_editor):
    """As for servers."""
    scopes = import_module("mcpregistry.migrations.0016_secret_scope")
    for provider in apps.get_model("subagents", "Provider").objects.all():
        texts = scopes.opened(provider, "subagents.provider", "key", "headers")
        scopes.let_go(apps, texts, f"provider:{provider.slug}")


class Migration(migrations.Migration):

    dependencies = [
        ('subagents', '0005_provider_destination'),
        ('mcpregistry', '0016_secret_scope'),
    ]

    operations = [
        migrations.RunPython(scope_as_it_is_used, migrations.RunPython.noop),
    ]
