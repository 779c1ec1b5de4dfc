"""A site for a whole module: starting a web process costs more than most tests here.

Tests of such a module make agents and endpoints of their own and change nothing that others use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import launcher
from tests.conftest import child_env
from tests.fakes.stage import Stage, Web, folder, web
from tests.origin import Origin
from tests.waiting import HANG_LIMIT


@pytest.fixture(autouse=True)
def _patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's client takes us for a server of the older era after ten seconds, which a busy
    machine may need to start."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", HANG_LIMIT)


@pytest.fixture(scope="module")
def stage(django_db_setup: Origin, django_db_blocker: Any) -> Iterator[Stage]:
    """An empty site whose rows live as long as the module's tests."""
    with django_db_blocker.unblock():
        try:
            yield Stage(child_env())
        finally:
            django_db_setup.restore()


@pytest.fixture(scope="module")
def site(stage: Stage) -> Iterator[Web]:
    """A web process that serves the module's rows."""
    with web(stage.env) as running:
        yield running


@pytest.fixture(scope="module")
def launched(stage: Stage) -> Iterator[launcher.Launcher]:
    """For hosts that are programs: a command line in place of ``runmcp``'s, which costs a tenth of
    its start."""
    with launcher.launching(stage.env, folder()) as running:
        yield running
