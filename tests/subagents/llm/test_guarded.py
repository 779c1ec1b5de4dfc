"""Whatever the kind of provider, requests go where the guarded client lets them, and nothing is
heard of other places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from mcpregistry.downstream.http_client import httpx_transport
from subagents.domain.model_errors import After, ErrorKind, ModelError
from subagents.domain.model_options import _KNOWN
from subagents.llm.client import complete, load_litellm
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from tests.subagents.kit import Heard, overhear
from tests.subagents.llm.conftest import KINDS, target

pytestmark = pytest.mark.attack

QUESTION = [{"role": "user", "content": "why?"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}
MARK = "inside-only-4c1"


class Inside:
    """A service of this machine that nobody outside may ask; it answers everything with a marked
    body."""

    def __init__(self, status: int = 403, headers: dict[str, str] | None = None) -> None:
        self.hits: list[str] = []
        inside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                inside.hits.append(self.path)
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(MARK)))
                self.end_headers()
                self.wfile.write(MARK.encode())

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def inside() -> Iterator[Inside]:
    here = Inside()
    yield here
    here.stop()


async def refusal(kind: str, base: str, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await complete(target(kind, base, "plain", **more), QUESTION, [TOOL])
    return caught.value


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0177.0.0.1", "2130706433"]
)
async def test_nothing_reaches_this_machine_unless_the_networks_say_so(
    kind: str, host: str, inside: Inside
) -> None:
    error = await refusal(kind, f"http://{host}:{inside.port}", networks=())
    assert inside.hits == []
    assert MARK not in error.message
    if host in ("127.0.0.1", "localhost"):
        assert error.kind == ErrorKind.REFUSED
        assert error.after == After.SKIP
        assert "Allowed networks" in error.message


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "10.0.0.7", "[fd00::1]", "100.64.0.1", "0.0.0.0"]
)
async def test_metadata_and_private_addresses_are_not_even_tried(address: str) -> None:
    error = await refusal("compatible", f"http://{address}/latest", networks=("127.0.0.0/8",))
    assert error.kind == ErrorKind.REFUSED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_name_that_changes_its_address_after_it_was_checked_leads_nowhere(
    kind: str, base: str, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch, inside: Inside
) -> None:
    """Rebinding: each look at the name answers otherwise. What was checked is what is connected
    to."""
    answers = [["8.8.8.8"], ["127.0.0.1"], ["127.0.0.1"]]
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    tried: list[str] = []

    def socket_for(self: Any, info: Any) -> Any:
        tried.append(info[4][0])
        raise OSError("not from a test")

    monkeypatch.setattr(httpx_transport, "resolve_name", resolve)
    monkeypatch.setattr("mcpregistry.downstream.http_client.guard.Guard.make_socket", socket_for)
    first = await refusal(kind, f"http://rebound.example:{inside.port}", networks=())
    assert (first.kind, set(tried), len(asked)) == (ErrorKind.NETWORK, {"8.8.8.8"}, 1)
    monkeypatch.undo()
    monkeypatch.setattr(httpx_transport, "resolve_name", resolve)
    second = await refusal(kind, f"http://rebound.example:{inside.port}", networks=())
    assert (second.kind, len(asked)) == (ErrorKind.REFUSED, 2)
    answers[2] = ["8.8.8.8", "127.0.0.1"]  # one good address does not excuse the other
    assert (
        await refusal(kind, f"http://rebound.example:{inside.port}", networks=())
    ).kind == ErrorKind.REFUSED
    assert inside.hits == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_is_not_followed_and_takes_no_key_along(
    kind: str, status: int, inside: Inside
) -> None:
    lure = Inside(status, {"location": f"http://localhost:{inside.port}/v1/chat/completions"})
    try:
        error = await refusal(kind, f"http://127.0.0.1:{lure.port}", networks=("127.0.0.1/32",))
    finally:
        lure.stop()
    assert (error.kind, len(lure.hits), inside.hits) == (ErrorKind.REFUSED, 1, [])
    assert "redirects to another address" in error.message
    assert MARK not in error.message


@pytest.mark.exhaustive(one_in=8)
@pytest.mark.parametrize("kind", sorted(_KNOWN))
async def test_no_option_on_the_list_sends_anything_elsewhere(
    kind: str, monkeypatch: pytest.MonkeyPatch, inside: Inside
) -> None:
    """Each with an address as its value; whatever a library makes of it, only the provider hears
    it."""
    heard: list[Heard] = overhear(monkeypatch)
    elsewhere = f"http://127.0.0.1:{inside.port}/v1"
    script = load({"plain": {"turns": [{"text": "hello"}], "repeat": True}})
    with run_server(ScriptedModels(script)) as base:
        for name in sorted(_KNOWN[kind] - {"temperature", "stop"}):
            for value in (
                elsewhere,
                {"base_url": elsewhere, "api_base": elsewhere, "api_key": "x"},
            ):
                with suppress(Exception):  # a value of the wrong type may fail as it likes
                    await complete(target(kind, base, "plain", options={name: value}), QUESTION)
    assert inside.hits == []
    assert heard, "some did arrive"
    assert {each.headers.get(b"authorization", b"x")[-9:] for each in heard} <= {b"nary-7f31", b"x"}


async def test_no_proxy_of_the_environment_and_no_way_beside(
    base: str, inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{inside.port}")
    for kind in ("openai", "anthropic", "ollama"):
        assert (await complete(target(kind, base, "plain"), QUESTION)).text == "hello"
    litellm: Any = load_litellm()
    facts = {
        "model": "openai/plain",
        "messages": QUESTION,
        "api_base": f"{base}/v1",
        "api_key": "x",
        "max_retries": 0,
    }
    with pytest.raises(Exception, match=r"(?i)connection|No way"):  # nobody has given it one
        await litellm.acompletion(**facts)
    with pytest.raises(Exception, match="guarded"):
        litellm.module_level_client.get(f"http://127.0.0.1:{inside.port}/api/show")
    assert inside.hits == []


async def test_an_answer_without_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setattr(httpx_transport, "MOST_BYTES", 10)
    error = await refusal("openai", base)
    assert (error.kind, "too large to be an answer" in error.message) == (
        ErrorKind.UNREADABLE,
        True,
    )
