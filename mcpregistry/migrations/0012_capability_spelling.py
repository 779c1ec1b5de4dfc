"""The help of an agent's capabilities shows the spelling that has one meaning; no column changes."""

from django.db import migrations, models

import mcpregistry.models.access

_HELP = (
    'What it could ever use, however much is granted: ["mcp_integration"] any server, '
    '["mcp_github::*"] one server, ["mcp_github::create_issue"] one tool.'
)


class Migration(migrations.Migration):
    dependencies = [("mcpregistry", "0011_approval_seats")]

    operations = [
        migrations.AlterField(
            model,
            "capabilities",
            models.JSONField(blank=True, default=mcpregistry.models.access.everything, help_text=_HELP),
        )
        for model in ("agent", "historicalagent")
    ]
