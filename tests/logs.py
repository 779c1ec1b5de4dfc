"""What a module logs, whatever became of the logging of the process before.

``structlog.testing.capture_logs`` misses a logger that was used before logging was set up anew,
which Celery does when it loads its tasks: the logger keeps the processors that it met first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import structlog
from structlog.testing import LogCapture
from structlog.typing import EventDict


@contextmanager
def logged(module: ModuleType) -> Iterator[list[EventDict]]:
    """The entries of the module's ``log``, which are written nowhere else meanwhile."""
    capture = LogCapture()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "log", structlog.wrap_logger(None, processors=[capture]))
        yield capture.entries
