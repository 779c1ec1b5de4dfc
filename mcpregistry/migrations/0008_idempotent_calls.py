"""A use of an Idempotency-Key names its call, so that the call's record can answer for a process that died."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mcpregistry", "0007_figures")]

    operations = [
        migrations.AddField(
            "keptanswer",
            "call_id",
            models.CharField(blank=True, db_default="", default="", help_text="Of the call that it makes.", max_length=32),
        )
    ]
