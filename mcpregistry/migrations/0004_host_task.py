"""The model Task is called HostTask. Its table keeps its name, so processes of both versions can run at once."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mcpregistry", "0003_tool_effort")]

    operations = [
        migrations.AlterModelTable("task", "mcpregistry_task"),
        # Renaming a model whose table is named renames only its content type.
        migrations.RenameModel("Task", "HostTask"),
        migrations.AlterField(
            "hosttask",
            "call",
            models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE, related_name="host_task", to="mcpregistry.invocation"
            ),
        ),
    ]
