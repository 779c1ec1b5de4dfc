import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mcpregistry", "0001_initial")]

    operations = [
        migrations.RemoveField(model_name="server", name="extra"),
        migrations.RemoveField(model_name="historicalserver", name="extra"),
        migrations.AddField(
            model_name="server", name="sealed_extra", field=models.TextField(blank=True, editable=False, default=""),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="historicalserver", name="sealed_extra",
            field=models.TextField(blank=True, editable=False, default=""), preserve_default=False,
        ),
        migrations.CreateModel(
            name="ImportedFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("family", models.CharField(max_length=40, unique=True)),
                ("path", models.TextField(blank=True, help_text="Where the last file came from.")),
                ("sealed_rest", models.TextField(blank=True, editable=False)),
                ("imported_at", models.DateTimeField(auto_now=True)),
            ],
            options={"ordering": ["family"]},
        ),
    ]
