"""A site for a whole module: starting a web process costs more than most tests here.

Tests of such a module make agents and endpoints of their own and change nothing that others use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from mcpregistry.models import guards
from tests.conftest import child_env
from tests.fakes.stage import Stage, Web, web


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage]:
    """An empty site whose rows live as long as the module's tests."""
    with django_db_blocker.unblock():
        try:
            yield Stage(child_env())
        finally:
            guards.drop_guards()
            call_command("flush", verbosity=0, interactive=False)
            guards.install_guards()


@pytest.fixture(scope="module")
def site(stage: Stage) -> Iterator[Web]:
    """A web process that serves the module's rows."""
    with web(stage.env) as running:
        yield running
