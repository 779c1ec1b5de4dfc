"""Rows that are put in again are those that were made, and nothing else."""

from __future__ import annotations

import pytest

from mcpregistry.models import Agent
from subagents.models import Provider
from tests.fakes.remembered import remembered
from tests.origin import Origin

pytestmark = [pytest.mark.usefixtures("live_db"), pytest.mark.one_database]


def slugs() -> tuple[list[str], list[str]]:
    """Of agents and providers."""
    agents, providers = (
        model.objects.values_list("slug", flat=True) for model in (Agent, Provider)
    )
    return [*agents], [*providers]


def test_ignored_tables_may_have_rows_and_keep_theirs(django_db_setup: Origin) -> None:
    made = []

    def make() -> None:
        made.append(Agent.objects.create(slug="made"))

    for provider in ("first", "second"):
        Provider.objects.create(slug=provider, kind="scripted")
        remembered("ignored tables", make, ignored="subagents_")
        assert slugs() == (["made"], [provider])
        django_db_setup.restore()
    assert len(made) == 1


def test_rows_are_made_again_where_other_tables_have_rows(django_db_setup: Origin) -> None:
    made = []
    for _ in range(2):
        Provider.objects.create(slug="there", kind="scripted")
        remembered("other tables", lambda: made.append("once more"))
        django_db_setup.restore()
    assert len(made) == 2
