"""Secrets get scopes: each stays where it is used now."""

from django.db import migrations, models

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import credentials_named, variables_named
from mcpregistry.models.sealing import unseal


def scope_as_it_is_used(apps, schema_editor):
    """Exactly the servers that name a secret today have it in their scope."""
    for server in apps.get_model("mcpregistry", "Server").objects.all():
        texts = [*server.command, server.cwd, server.url, *opened(server, "mcpregistry.server", "env", "headers")]
        let_go(apps, texts, f"server:{server.slug}")


def let_go(apps, texts, place):
    """Add ``place`` to the scope of every secret that its texts name."""
    for row in apps.get_model("mcpregistry", "Credential").objects.filter(name__in=credentials_named(texts)):
        row.scope = sorted({*row.scope, place})
        row.save(update_fields=["scope"])
    names = variables_named(texts)
    if names:
        row, _ = apps.get_model("mcpregistry", "Configuration").objects.get_or_create(id=1)
        row.variable_scope |= {name: sorted({*row.variable_scope.get(name, ()), place}) for name in names}
        row.save(update_fields=["variable_scope"])


def opened(row, label, *columns):
    """The texts in sealed columns; none of those that no longer open."""
    found = []
    for name in columns:
        sealed, place = getattr(row, f"sealed_{name}"), f"{label}:{row.uid}:sealed_{name}"
        try:
            value = unseal(sealed, place=place) if sealed else {}
        except ConfigInvalid:
            continue
        found += value.values() if isinstance(value, dict) else [value]
    return found


class Migration(migrations.Migration):

    dependencies = [
        ('mcpregistry', '0015_launch_authors'),
    ]

    operations = [
        migrations.AddField(
            model_name='configuration',
            name='variable_scope',
            field=models.JSONField(blank=True, db_default={}, default=dict, help_text='Where the variables that SLIPSNISSE_PASS_ENV lists may go, e.g. {"GITHUB_TOKEN": ["server:github"]}. One that is not named here goes nowhere.', verbose_name='scope of variables'),
        ),
        migrations.AddField(
            model_name='credential',
            name='scope',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text='Where it may go, e.g. ["server:github", "provider:openai"]. Empty: nowhere.'),
        ),
        migrations.AddField(
            model_name='historicalcredential',
            name='scope',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text='Where it may go, e.g. ["server:github", "provider:openai"]. Empty: nowhere.'),
        ),
        migrations.RunPython(scope_as_it_is_used, migrations.RunPython.noop),
    ]
