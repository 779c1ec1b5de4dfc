"""A host that is a web page, in a real browser: it keeps the rules of CORS that no other client
knows."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.stage import Stage, Web, listed, web
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.web, pytest.mark.one_database]

# Speaks to a server as a page does; leaves what it has learnt in the title.
PAGE = b"""<!doctype html><title>at work</title><script>
const [url, token] = location.hash.slice(1).split(",");
let last = 0;
const ask = (method, params, headers = {}) => fetch(url, {
  method: "POST",
  headers: {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "Authorization": `Bearer ${token}`, ...headers},
  body: JSON.stringify({jsonrpc: "2.0", id: method.startsWith("notifications/") ? undefined : ++last, method, params}),
});
(async () => {
  const info = {name: "page", version: "1"};
  const opened = await ask("initialize", {protocolVersion: "2025-11-25", capabilities: {}, clientInfo: info});
  if (!opened.ok) return `refused with ${opened.status}, ${opened.headers.get("WWW-Authenticate")}`;
  const session = {"Mcp-Session-Id": opened.headers.get("Mcp-Session-Id"), "MCP-Protocol-Version": "2025-11-25"};
  await ask("notifications/initialized", {}, session);
  const called = await ask("tools/call", {name: "echo__echo", arguments: {mark: "of a page"}}, session);
  const text = await called.text();
  await fetch(url, {method: "DELETE", headers: {"Authorization": `Bearer ${token}`, ...session}});
  return text.includes("of a page") ? "served" : `no answer: ${text}`;
})().then(said => document.title = said, error => document.title = `kept out: ${error.message}`);
</script>"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    """Where the page lies; the same machine under another name is another origin."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def site(stage: Stage, origin: str) -> Iterator[Web]:
    with web(stage.env | {"SLIPSNISSE_ORIGINS": origin}) as running:
        yield running


@pytest.mark.exhaustive
def test_a_page_of_a_listed_origin_is_served_and_reads_why_it_is_refused_others_are_kept_out(
    stage, site, origin, browser
):
    stage.endpoint()
    token = stage.agent("local", stage.fake("echo", listed("echo")))
    site.wait_known(token)

    def said(where: str, secret: str) -> str:
        page = browser.new_page()
        page.goto(f"{where}/#{site.url()},{secret}")
        try:
            return eventually(lambda: page.title() if page.title() != "at work" else "")
        finally:
            page.close()

    assert said(origin, token) == "served"
    assert said(origin, "slp_nobody").startswith("refused with 401, Bearer realm")
    assert said(origin.replace("127.0.0.1", "localhost"), token).startswith("kept out")
