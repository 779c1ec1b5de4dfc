"""The scripts that come with the product."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import yaml

from subagents.llm.scripted.script import Script, load


@lru_cache(maxsize=1)
def demo_script() -> Script:
    """The demo's script, ``demo.yaml``."""
    return load(yaml.safe_load(files(__package__).joinpath("demo.yaml").read_text()))
