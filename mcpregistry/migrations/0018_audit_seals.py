"""Seals of the audit log. The first holds what every chain had come to before its entries were signed."""

from django.db import migrations, models
from django.utils import timezone

from mcpregistry.services.records import seals


def seal_what_is_there(apps, schema_editor):
    """From now on nothing of it can be written anew without the key."""
    entry, seal = apps.get_model("mcpregistry", "AuditEntry"), apps.get_model("mcpregistry", "AuditSeal")
    seals.seal(timezone.now(), entries=entry, seals=seal)


class Migration(migrations.Migration):

    dependencies = [
        ('mcpregistry', '0017_audit_keys'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditSeal',
            fields=[
                ('number', models.BigIntegerField(primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('upto', models.BigIntegerField(help_text='The newest entry that it has looked at.')),
                ('body', models.TextField()),
                ('prev', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=100, verbose_name='key')),
            ],
            options={
                'ordering': ['-number'],
            },
        ),
        migrations.CreateModel(
            name='AuditVerification',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('full', models.BooleanField(help_text='Everything was read, not only what is new.')),
                ('intact', models.BooleanField()),
                ('entries', models.BigIntegerField(help_text='How many entries were looked at.')),
                ('chains', models.BigIntegerField()),
                ('problems', models.JSONField(default=list)),
                ('notes', models.JSONField(default=list)),
                ('seconds', models.FloatField()),
                ('state', models.TextField()),
                ('hash', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=100, verbose_name='key')),
            ],
        ),
        migrations.RunPython(seal_what_is_there, migrations.RunPython.noop),
    ]
