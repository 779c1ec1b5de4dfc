"""Callers who wait have a row with a lease each; a counter never heard of a process that died.

The counter stays one release: processes of the release before go on counting in it (``services/approvals/seats.py``).
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mcpregistry", "0010_refusals")]

    operations = [
        migrations.AlterField(
            "approvalrequest",
            "holders",
            models.IntegerField(
                default=1, editable=False, help_text="Counted for processes of the release before; see ApprovalSeat."
            ),
        ),
        migrations.CreateModel(
            name="ApprovalSeat",
            fields=[
                ("caller", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("process", models.CharField(help_text="Where the caller waits, named as the call's writer.", max_length=100)),
                ("lease_until", models.DateTimeField(db_index=True, help_text="By the database's clock.")),
                ("doubted", models.BooleanField(db_default=False, default=False, help_text="Its lease was over once already.")),
                (
                    "request",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="seats", to="mcpregistry.approvalrequest"
                    ),
                ),
            ],
        ),
    ]
