from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import child_env
from tests.origin import Origin
from tests.tasks import worker


@pytest.fixture(scope="module")
def site_worker(broker: str, django_db_setup: Origin, django_db_blocker: Any) -> Iterator[None]:
    """One worker for all tests of a module that need no say in when it starts: that takes
    seconds."""
    worker.empty_broker()
    with worker.running(child_env()):
        yield
    with django_db_blocker.unblock():
        django_db_setup.restore()  # it may have written after the last test's rows were taken away
