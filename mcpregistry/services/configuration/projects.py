"""Read the configuration files of directories for the snapshot."""

from __future__ import annotations

from collections import defaultdict

from mcpregistry.domain.snapshot_specs import ProjectSpec
from mcpregistry.models import ProjectFile


def load_project_specs() -> dict[str, list[ProjectSpec]]:
    """Return the files of directories by the endpoint that lists their servers."""
    found: dict[str, list[ProjectSpec]] = defaultdict(list)
    for row in ProjectFile.objects.defer("sealed_entries", "sealed_confirmed_entries"):
        found[row.endpoint_slug].append(
            ProjectSpec(
                id=row.pk,
                directory=row.directory,
                path=row.path,
                agent=row.agent_slug,
                content=row.content,
                summary=tuple(map(str, row.summary)),
                problem=row.problem,
                is_confirmed=row.state in ("starting", "confirmed"),
                is_served=row.state == "confirmed",
            )
        )
    return found
