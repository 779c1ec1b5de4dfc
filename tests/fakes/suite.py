"""A suite of a few tests in a folder of its own, for tests of the programs that run suites."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.externals import ROOT

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:django", "-p", "no:schemathesis")
PYTHONPATH = str(ROOT)  # for tests of the folder that import ours
_CONFTEST = """
from pathlib import Path
from tests import results, started, workers

def pytest_addoption(parser):
    parser.addoption("--results")
    parser.addoption("--passed", action="append", default=[])
    parser.addoption("--gate", action="store_true")
    parser.addoption("--workers", type=int)

def pytest_configure(config):
    started.install()
    if writer := results.plugin(config):
        config.pluginmanager.register(writer)
    if count := config.getoption("--workers"):
        config.pluginmanager.register(workers.Workers(config, count, lambda _: None, lambda: None))

def pytest_collection_modifyitems(config, items):
    passed = results.passed(Path(path) for path in config.getoption("--passed"))
    items[:] = [item for item in items if item.nodeid not in passed]
"""


def prepare(folder: Path) -> None:
    """What pytest needs there beside the tests."""
    (folder / "conftest.py").write_text(_CONFTEST)
