"""One version: what pyproject.toml says is what hosts and servers are told."""

from __future__ import annotations

import tomllib

from mcpregistry.domain.version import VERSION
from tests.architecture.test_source import sources
from tests.externals import ROOT


def test_the_package_and_the_code_say_the_same_version():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_no_other_place_says_it():
    said = [path.name for path in sources() if f'"{VERSION}"' in path.read_text()]
    assert said == ["version.py"]
