"""Records of archived entries of the audit log: what is in a file and no longer in the database."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('mcpregistry', '0021_sandbox'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditArchive',
            fields=[
                ('number', models.BigIntegerField(primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('writer', models.CharField(max_length=64)),
                ('from_seq', models.BigIntegerField()),
                ('to_seq', models.BigIntegerField()),
                ('head', models.CharField(help_text='The hash of the last of them.', max_length=64)),
                ('head_key', models.CharField(blank=True, help_text='The key that signed the last of them.', max_length=100)),
                ('file', models.CharField(max_length=200)),
                ('digest', models.CharField(help_text='The SHA-256 of the file.', max_length=64)),
                ('prev', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
                ('key_id', models.CharField(max_length=100, verbose_name='key')),
            ],
            options={
                'verbose_name': 'archived entries',
                'verbose_name_plural': 'archived entries',
                'ordering': ['-number'],
                'constraints': [models.UniqueConstraint(fields=('writer', 'to_seq'), name='one_archive_per_entry')],
            },
        ),
    ]
