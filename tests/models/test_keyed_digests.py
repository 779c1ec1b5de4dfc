"""Hashes of what may hold a short secret cannot be guessed by somebody who only reads the
database."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.models import Server
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.exchange.project_files import read_project
from subagents.models import Provider

pytestmark = pytest.mark.attack


def with_other_key(settings: Any, make: Any) -> tuple[str, str]:
    """What is made with the key of the site, and with another one."""
    here = make()
    settings.SECRET_KEY = "another"
    return here, make()


def test_purposes_and_parts_have_hashes_of_their_own() -> None:
    made = [
        compute_keyed_digest(*words)
        for words in (("a", "b", "c"), ("a", "bc"), ("b", "b", "c"), ("a", "b", "d"))
    ]
    assert all(one != other for one, other in itertools.combinations(made, 2))
    assert compute_keyed_digest("a", "b") == compute_keyed_digest("a", "b")


def test_hash_of_a_project_file_needs_the_key_of_the_site(settings: Any, tmp_path: Path) -> None:
    servers = {"shop": {"command": "true", "env": {"PIN": "4711"}}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    reading = read_project(tmp_path, {})
    assert reading is not None
    assert reading.content != hash_parts(
        "project file", str(tmp_path), str(reading.path), encode_lossy_json(reading.entries)
    )

    def content() -> str:
        again = read_project(tmp_path, {})
        assert again is not None
        return again.content

    here, elsewhere = with_other_key(settings, content)
    assert here != elsewhere


@pytest.mark.parametrize(
    "make",
    [
        lambda: Server(slug="s", env={"PIN": "4711"}).launch_hash(),
        lambda: Provider(slug="p").destination_hash(),
    ],
    ids=["launch", "destination"],
)
def test_hash_of_what_holds_secrets_needs_the_key_of_the_site(settings: Any, make: Any) -> None:
    here, elsewhere = with_other_key(settings, make)
    assert here != elsewhere
