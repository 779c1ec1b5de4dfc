"""Entries of the audit log name the key that signed them; those of before have none."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('mcpregistry', '0016_secret_scope'),
    ]

    operations = [
        migrations.AddField(
            model_name='auditentry',
            name='key_id',
            field=models.CharField(blank=True, db_default='', default='', help_text='The key that signed it; empty: a process of before the chains were keyed.', max_length=100, verbose_name='key'),
        ),
    ]
