"""The site's own entries: named by its host, and such as any reader of registries takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from mcpregistry.domain.registry.entries import read
from mcpregistry.domain.registry.install_options import read_install_options
from mcpregistry.domain.registry.publishing import Published, build_namespace, build_registry_entry

AT = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://tools.example.com:8443", "com.example.tools"),
        ("http://localhost:8000", "local.localhost"),
        ("http://127.0.0.1:8000", "local.127-0-0-1"),
        ("http://[::1]:8000", "local.1"),
        ("", "local"),
    ],
)
def test_the_namespace_is_the_host_backwards(url: str, found: str) -> None:
    assert build_namespace(url) == found


def test_an_entry_is_read_as_those_of_others_and_asks_for_a_token() -> None:
    made = build_registry_entry(Published("lab", "T" * 300, 7, AT, AT), "https://tools.example.com")
    entry = read(made)
    assert (entry.name, entry.version, entry.status, entry.updated_at) == (
        "com.example.tools/lab",
        "1.7.0",
        "active",
        AT,
    )
    assert len(made["server"]["description"]) <= 100
    [way] = read_install_options(json.dumps(made["server"]))
    assert (way.identifier, way.transport, way.problem) == (
        "https://tools.example.com/mcp/lab",
        "http",
        "",
    )
    assert [(each.key, each.secret, each.required) for each in way.inputs] == [
        ("header Authorization: token", True, True)
    ]
