"""What registries list, as the sub-agent finds it and proposes it."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.models import RegistryEntry, RegistrySource
from subagents.domain.maintenance import Kind
from tests.subagents.maintenance.conftest import ask, ended


def listed(name: str, version: str = "1.0.0", **fields: Any) -> RegistryEntry:
    """An entry of a registry that the site has read."""
    source = RegistrySource.objects.get_or_create(slug="official", base_url="https://registry.example")[0]
    fields = {
        "is_latest": True,
        "status": "active",
        "kinds": "pypi",
        "document": "{}",
        "seen_at": timezone.now(),
    } | fields
    return RegistryEntry.objects.create(source=source, name=name, version=version, **fields)


async def test_a_search_finds_what_registries_list_and_have_not_taken_back(manager: Any) -> None:
    best = await db_call(listed, "io.example/git", description="History of repositories")
    await db_call(listed, "io.example/git", "0.9.0", is_latest=False)
    await db_call(listed, "io.example/other", description="Something like git")
    await db_call(listed, "io.example/git-evil", status="deleted")
    await db_call(listed, "io.example/clock")
    done = await ended(await manager(), await db_call(ask, Kind.SEARCH, query="git", limit=5))
    assert done.result["registry_entries"][0] == {
        "name": "io.example/git", "version": "1.0.0", "registry": "official", "description": "History of repositories",
        "kinds": ["pypi"], "status": "active", "id": best.pk,
    }  # fmt: skip
    assert [each["name"] for each in done.result["registry_entries"]] == ["io.example/git", "io.example/other"]
