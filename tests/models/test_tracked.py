"""Validation of a configured row looks for others with the same unique values, and only if the
row's own have changed."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from mcpregistry.models import Agent

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@pytest.fixture
def agent() -> Agent:
    Agent.objects.create(slug="taken")
    Agent.objects.create(slug="own")
    return Agent.objects.get(slug="own")


def test_unchanged_unique_columns_are_not_queried(agent, django_assert_num_queries):
    agent.calls_per_minute = 3
    with django_assert_num_queries(0):
        agent.validate_unique()


def test_changed_unique_column_is_queried(agent):
    agent.slug = "taken"
    with pytest.raises(ValidationError, match="already exists"):
        agent.validate_unique()


def test_unique_column_that_is_set_to_its_own_value_is_queried(agent, django_assert_num_queries):
    """The database may hold another value by now, and another row this one."""
    agent.change(slug="own")
    with django_assert_num_queries(1):
        agent.validate_unique()


def test_new_row_and_copy_of_a_row_are_queried(agent):
    agent.pk = None
    agent._state.adding = True
    for row in (agent, Agent(slug="taken")):
        with pytest.raises(ValidationError, match="already exists"):
            row.validate_unique()
