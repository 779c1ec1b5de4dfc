"""Registries get tokens, packages bundles and what they offer, the site a word on searching by itself."""

import uuid

from django.db import migrations, models

from mcpregistry.migrations._operations import at_once


def name_them(apps, schema_editor):
    """Each registry gets the name under which its token is sealed."""
    for row in apps.get_model("mcpregistry", "RegistrySource").objects.filter(uid=None):
        row.uid = uuid.uuid4()
        row.save(update_fields=["uid"])


def forget_bundles(apps, schema_editor):
    """The release before knows none, and has no room for their addresses."""
    apps.get_model("mcpregistry", "Install").objects.filter(ecosystem="mcpb").delete()
    at_once(schema_editor)


class Migration(migrations.Migration):

    dependencies = [
        ('mcpregistry', '0037_limits_of_servers'),
    ]

    operations = [
        migrations.AddField(
            model_name='configuration',
            name='auto_discovery',
            field=models.BooleanField(db_default=False, default=False, help_text='For agents that ask for a server, the sub-agent searches the registries that this site reads, by name and purpose. Off: it takes only what is named exactly; people search as they like.', verbose_name='search registries unasked'),
        ),
        migrations.AddField(
            model_name='configuration',
            name='only_listed',
            field=models.BooleanField(db_default=False, default=False, help_text='A package, bundle or version that no registry which this site reads lists, or that was taken back, cannot be asked for.', verbose_name='only listed packages'),
        ),
        migrations.AddField(
            model_name='install',
            name='networks',
            field=models.JSONField(blank=True, db_default=[], default=list, help_text="Private networks in which a bundle may lie: its registry's."),
        ),
        migrations.AddField(
            model_name='install',
            name='not_offered',
            field=models.TextField(blank=True, db_default='', default='', editable=False, help_text='Why it could not be compared.'),
        ),
        migrations.AddField(
            model_name='install',
            name='offered',
            field=models.TextField(blank=True, db_default='', default='', editable=False, help_text='What it told in a sandbox, for the comparison with what its server offers now; JSON.'),
        ),
        migrations.AddField(
            model_name='registrysource',
            name='sealed_token',
            field=models.TextField(blank=True, db_default='', default='', editable=False),
        ),
        migrations.AddField(
            model_name='registrysource',
            name='uid',
            field=models.UUIDField(editable=False, null=True),
        ),
        migrations.RunPython(name_them, migrations.RunPython.noop),
        migrations.AlterField(
            model_name='registrysource',
            name='uid',
            field=models.UUIDField(default=uuid.uuid4, editable=False, null=True, unique=True),
        ),
        migrations.AlterField(
            model_name='historicalregistrysource',
            name='allowed_networks',
            field=models.JSONField(blank=True, default=list, help_text='Private networks in which it and its bundles may lie, e.g. ["10.0.0.0/8"]. Empty: none.'),
        ),
        migrations.AlterField(
            model_name='install',
            name='ecosystem',
            field=models.CharField(choices=[('npm', 'npm'), ('pypi', 'PyPI'), ('mcpb', 'bundle')], max_length=10),
        ),
        migrations.AlterField(
            model_name='install',
            name='package',
            field=models.CharField(help_text='Of a bundle its address.', max_length=500),
        ),
        migrations.AlterField(
            model_name='install',
            name='wanted',
            field=models.CharField(blank=True, help_text='One exact version. Empty: the newest. Of a bundle its SHA-256.', max_length=64, verbose_name='wanted version'),
        ),
        migrations.AlterField(
            model_name='registrysource',
            name='allowed_networks',
            field=models.JSONField(blank=True, default=list, help_text='Private networks in which it and its bundles may lie, e.g. ["10.0.0.0/8"]. Empty: none.'),
        ),
        migrations.RunPython(migrations.RunPython.noop, forget_bundles),
    ]
