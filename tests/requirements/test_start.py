"""What a process does before anybody asks it for anything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.management.commands.up import Command
from mcpregistry.db import db_call
from mcpregistry.models import Server
from mcpregistry.services.exchange.importing import import_file
from tests.calls.conftest import add_server, tool
from tests.domain.formats.samples import sample
from tests.externals import ROOT
from tests.waiting import HANG_LIMIT, until


async def test_a_starting_process_connects_eager_servers_and_no_others(
    site: Callable[..., Any], live_db: None
):
    def prepare() -> Server:
        add_server("slow", tool("count"))
        return add_server("echo", tool("echo"), connect_mode="eager")

    eager = await db_call(prepare)
    here = await site()
    await until(
        lambda: (
            eager.pk in here.engine.pool.list_states()
            and here.engine.pool.list_states()[eager.pk].pid is not None
        )
    )
    assert set(here.engine.pool.list_states()) == {eager.pk}


@pytest.mark.parametrize(("words", "host"), [([], "127.0.0.1"), (["--host", "0.0.0.0"], "0.0.0.0")])
def test_the_site_listens_on_this_machine_only_unless_told_otherwise(words: list[str], host: str):
    assert Command().create_parser("manage.py", "up").parse_args(words).host == host


@pytest.mark.exhaustive
@pytest.mark.e2e
def test_a_process_that_starts_later_finds_the_configuration_as_it_was(site_env: dict[str, str]):
    file = sample("mcp-servers/mcp-servers.json")
    assert import_file(raw=file, path="mcp-servers.json", actor="test").saved
    words = [sys.executable, "manage.py", "exportconfig", "--format", "mcp-servers"]
    done = subprocess.run(
        words, cwd=ROOT, env=site_env, capture_output=True, text=True, timeout=HANG_LIMIT
    )
    assert json.loads(done.stdout) == json.loads(file), done.stderr
