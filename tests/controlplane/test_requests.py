"""Around every request: whose site it is, who asked, what is logged, what the browser may do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane import request_guard
from controlplane.request_guard import Guarded
from tests.logs import logged


async def _ask(
    app: Any, path: str = "/somewhere", query: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], str]:
    given = {"host": "localhost:8000"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await Guarded(app)(scope, receive, send)  # type: ignore[arg-type]
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return (
        sent[0]["status"],
        answered,
        b"".join(event.get("body", b"") for event in sent[1:]).decode(),
    )


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-frame-options", b"SAMEORIGIN")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello", "more_body": False})


async def _broken(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("password=hunter2")


@pytest.mark.attack
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "a b", "127.0.0.1:80:80", "[::1"]
)
async def test_a_foreign_host_name_is_refused_for_every_path(host):
    status, _, text = await _ask(_hello, "/mcp/default", host=host)
    assert status == 400
    assert "SLIPSNISSE_HOSTS" in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:9", "LOCALHOST:1"])
async def test_own_names_pass_with_any_port(host):
    assert (await _ask(_hello, host=host))[0] == 200


async def test_probes_answer_under_any_name():
    assert (await _ask(_hello, "/healthz", host="10.0.0.7:8000"))[0] == 200


async def test_pages_may_not_be_framed_nor_load_from_elsewhere():
    _, headers, _ = await _ask(_hello)
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_header_that_the_page_set_itself_stays():
    assert (await _ask(_hello))[1]["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.attack
@pytest.mark.parametrize("path", ["/", "/admin/", "/admin/login/", "/admin/auth/user/1/change/"])
async def test_no_page_runs_inline_scripts_or_eval(path):
    policy = (await _ask(_hello, path))[1]["content-security-policy"].split("; ")
    assert "script-src 'self'" in policy
    assert not [part for part in policy if "unsafe" in part and not part.startswith("style-src ")]


async def test_a_sound_request_id_is_kept_and_a_strange_one_replaced():
    assert (await _ask(_hello, x_request_id="abc-1.2"))[1]["x-request-id"] == "abc-1.2"
    assert len((await _ask(_hello, x_request_id="x\ny"))[1]["x-request-id"]) == 32
    assert len((await _ask(_hello, x_request_id="x" * 65))[1]["x-request-id"]) == 32


async def test_the_log_holds_one_line_without_query_or_headers():
    with logged(request_guard) as logs:
        await _ask(_hello, "/a", query=b"token=hunter2", authorization="Bearer hunter2")
    assert [(entry["event"], entry["path"], entry["status"]) for entry in logs] == [
        ("GET", "/a", 200)
    ]
    assert "hunter2" not in str(logs)


async def test_an_unexpected_error_becomes_a_500_that_says_nothing_of_it():
    status, headers, text = await _ask(_broken)
    assert status == 500
    assert "hunter2" not in text
    assert headers["x-request-id"]


@pytest.mark.attack
@pytest.mark.parametrize("first", [0, 1, 3])
async def test_a_body_that_does_not_come_ends_the_request_whoever_reads_it(monkeypatch, first):
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.02)
    left = [first]
    sent = []

    async def receive() -> dict[str, Any]:
        if not left[0]:
            await asyncio.Event().wait()
        left[0] -= 1
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await Guarded(reads)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 408


async def test_whoever_has_sent_its_body_may_wait_as_long_as_it_likes(monkeypatch):
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.04)
    gone = asyncio.Event()
    events = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        if (event := next(events, None)) is not None:
            return event
        await gone.wait()
        return {"type": "http.disconnect"}

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        asyncio.get_running_loop().call_later(0.05, gone.set)
        assert (await receive())["type"] == "http.disconnect"
        await _hello(scope, receive, send)

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await Guarded(waits)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 200
