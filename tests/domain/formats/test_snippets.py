"""The entry that points each host at an endpoint of ours."""

from __future__ import annotations

import pytest

from mcpregistry.domain.formats import FORMATS
from mcpregistry.domain.formats.snippets import CLIENTS, over_http, over_stdio

LAUNCH = ["/opt/s/.venv/bin/python", "/opt/s/manage.py", "runmcp", "--endpoint", "default"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stdio_entry_starts_runmcp(client: str) -> None:
    document = FORMATS[client].read(over_stdio(client, LAUNCH), "x.json")
    assert [server.command for server in document.servers] == [tuple(LAUNCH)]


@pytest.mark.parametrize(
    ("client", "bearer"),
    [
        ("claude-code", "Bearer ${SLIPSNISSE_TOKEN}"),
        ("cursor", "Bearer ${env:SLIPSNISSE_TOKEN}"),
        ("vscode", "Bearer ${env:SLIPSNISSE_TOKEN}"),
        ("opencode", "Bearer {env:SLIPSNISSE_TOKEN}"),
    ],
)
def test_an_http_entry_names_the_address_and_the_hosts_own_placeholder(client: str, bearer: str) -> None:
    data = over_http(client, "http://127.0.0.1:8000/mcp/default")
    (root,) = (data[key] for key in ("mcpServers", "servers", "mcp") if key in data)
    assert root["slipsnisse"]["url"] == "http://127.0.0.1:8000/mcp/default"
    assert root["slipsnisse"]["headers"] == {"Authorization": bearer}


def test_claude_desktop_has_no_http_entry() -> None:
    with pytest.raises(ValueError, match="cannot say"):
        over_http("claude-desktop", "http://127.0.0.1:8000/mcp/default")
