"""Who gets in at ``/mcp/<endpoint>``, and what strangers and careless hosts are told."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.utils import timezone

from mcpregistry.models import Agent, Token
from mcpregistry.services.access import tokens
from tests.fakes.stage import (
    ACTOR,
    MODERN,
    Stage,
    Web,
    envelope,
    fresh,
    listed,
    outside,
    seen_outside,
)
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
LEGACY = "2025-11-25"


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web) -> str:
    stage.endpoint()
    stage.endpoint("second")
    stage.endpoint("closed", enabled=False)
    headered = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }
    echo = stage.fake("echo", [*listed("echo"), *listed("pid", inputSchema=headered)])
    stage.fake("echo", listed("hidden"), slug="ungranted")
    token = stage.agent("local", echo, stage.fake("slow", listed("count")))
    site.wait_known(token)
    return token


def body(method: str = "tools/list", request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        "params": {"_meta": envelope(), **params},
    }


def headers(method: str = "tools/list", **more: str) -> dict[str, str]:
    return {"mcp-protocol-version": MODERN, "mcp-method": method} | more


def opening(version: str = LEGACY) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


STRANGERS = {
    "no token": ({}, 401),
    "an unknown token": ({"authorization": "Bearer slp_nobody"}, 401),
    "another scheme": ({"authorization": "Basic TOKEN"}, 401),
    "an empty token": ({"authorization": "Bearer"}, 401),
    "a page of another site": (
        {"authorization": "Bearer TOKEN", "origin": "https://evil.example"},
        403,
    ),
    "an opaque origin": ({"authorization": "Bearer TOKEN", "origin": "null"}, 403),
    "another name of this machine": (
        {"authorization": "Bearer TOKEN", "host": "evil.example:8000"},
        400,
    ),
    "a name that rebinds to us": (
        {"authorization": "Bearer TOKEN", "host": "127.0.0.1.evil.example"},
        400,
    ),
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_strangers_are_refused_whatever_the_method(site, token, stranger, method):
    given, status = STRANGERS[stranger]
    given = {name: value.replace("TOKEN", token) for name, value in given.items()}
    async with site.raw() as http:
        answer = await http.request(method, site.url(), headers=headers() | given, json=body())
    assert answer.status_code == status
    assert "echo" not in answer.text
    challenge = answer.headers.get("www-authenticate", "")
    assert bool(challenge) == (status == 401)
    assert ("invalid_token" in challenge) == (stranger == "an unknown token")


@pytest.mark.attack
@pytest.mark.parametrize(
    "doubled",
    [
        [("authorization", "Bearer TOKEN"), ("authorization", "Bearer TOKEN")],
        [("authorization", "Bearer TOKEN"), ("authorization", "Bearer slp_other")],
        [("origin", "http://127.0.0.1:8000"), ("origin", "https://evil.example")],
        [("origin", "http://127.0.0.1:8000"), ("origin", "http://127.0.0.1:8000")],
    ],
)
async def test_doubled_identity_headers_are_refused(site, token, doubled):
    async with site.raw() as http:
        given = [
            *headers().items(),
            *((name, value.replace("TOKEN", token)) for name, value in doubled),
        ]
        if doubled[0][0] == "origin":
            given.append(("authorization", f"Bearer {token}"))
        answer = await http.post(site.url(), headers=given, json=body())
    assert answer.status_code in {401, 403}


@pytest.mark.attack
@pytest.mark.parametrize("name", ["mcp-method", "mcp-protocol-version", "mcp-name"])
async def test_doubled_routing_headers_are_refused(site, token, name):
    given = [*headers("tools/call", **{"mcp-name": "echo__echo"}).items()]
    given.append((name, dict(given)[name]))
    async with site.raw(token) as http:
        answer = await http.post(
            site.url(), headers=given, json=body("tools/call", name="echo__echo")
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


async def test_the_sites_own_pages_may_call(site, token):
    async with site.raw(token, origin=OWN) as http:
        assert (await http.post(site.url(), headers=headers(), json=body())).status_code == 200


OWN = "http://127.0.0.1:8000"


async def test_a_page_that_may_ask_is_told_so_before_it_has_a_token(site):
    sent = [
        "authorization",
        "content-type",
        "mcp-protocol-version",
        "mcp-session-id",
        "last-event-id",
        "mcp-method",
    ]
    asked = {
        "origin": OWN,
        "access-control-request-method": "POST",
        "access-control-request-headers": ",".join(
            [*sent, "mcp-name", "mcp-param-region", "cookie"]
        ),
    }
    async with site.raw() as http:
        answer = await http.options(site.url(), headers=asked)
        refused = await http.options(site.url(), headers=asked | {"origin": "https://evil.example"})
        curious = await http.options(site.url(), headers={"origin": OWN})
    found = {
        name: value for name, value in answer.headers.items() if name.startswith("access-control")
    }
    allowed = found["access-control-allow-headers"].lower().split(", ")
    assert answer.status_code == 200
    assert "Origin" in answer.headers["vary"].split(", ")
    assert found["access-control-allow-origin"] == OWN
    assert {"POST", "GET", "DELETE"} < set(found["access-control-allow-methods"].split(", "))
    assert {
        *sent,
        "mcp-name",
        "mcp-param-region",
        "slipsnisse-conversation",
        "slipsnisse-session",
    } <= set(allowed)
    assert "cookie" not in allowed
    assert "access-control-allow-credentials" not in found
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]
    assert curious.status_code == 401, "no preflight: it needs a token like all others"


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_page_that_may_ask_may_read_the_answers_good_and_bad(site, token, era):
    request, given = (opening(), {}) if era == LEGACY else (body(), headers())
    async with site.raw(token, origin=OWN) as http:
        good = await http.post(site.url(), headers=given, json=request)
        bad = await http.post(
            site.url(), headers=given | {"authorization": "Bearer slp_no"}, json=request
        )
        without = await http.post(site.url(), headers=given | {"origin": ""}, json=request)
    assert (good.status_code, bad.status_code, without.status_code) == (200, 401, 403)
    for answer in (good, bad):
        assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (
            OWN,
            "Origin",
        )
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert {"mcp-session-id", "www-authenticate"} <= set(exposed.split(", "))
    assert "access-control-allow-origin" not in without.headers


@pytest.mark.parametrize(
    "endpoint", ["nowhere", "closed", "default/more", "", "..%2fdefault", "second/../default"]
)
async def test_an_endpoint_that_is_absent_or_switched_off_is_not_found(site, token, endpoint):
    async with site.raw(token) as http:
        answer = await http.post(
            f"http://{site.address}/mcp/{endpoint}", headers=headers(), json=body()
        )
    # A client may resolve the dots itself; then it asks for what it may see.
    assert answer.status_code == (200 if endpoint.startswith("second") else 404)


async def test_strangers_do_not_learn_which_endpoints_exist(site, token):
    async with site.raw("slp_unknown") as http:
        answers = [
            await http.post(site.url(name), headers=headers(), json=body())
            for name in ("default", "nowhere")
        ]
    assert answers[0].content == answers[1].content
    assert [answer.status_code for answer in answers] == [401, 401]


@pytest.mark.attack
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_an_ungranted_tool_and_an_absent_one_get_the_same_bytes(site, token, era):
    names = ["ungranted__hidden", "ungranted__absent"]
    async with site.raw(token) as http:
        session = {}
        if era == LEGACY:
            session = {
                "mcp-session-id": (await http.post(site.url(), json=opening())).headers[
                    "mcp-session-id"
                ]
            }
        answers = []
        for name in names:
            given = headers("tools/call", **{"mcp-name": name}, **session) | {
                "mcp-protocol-version": era
            }
            answer = await http.post(
                site.url(), headers=given, json=body("tools/call", name=name, arguments={"a": 1})
            )
            answers.append(answer.content.replace(name.encode(), b"NAME"))
    assert answers[0] == answers[1]
    assert b"Unknown tool: NAME" in answers[0]


@pytest.mark.attack
@pytest.mark.parametrize(
    "wrong",
    [
        {"mcp-method": "tools/call"},
        {"mcp-method": "ping"},
        {"mcp-protocol-version": "2099-01-01"},
    ],
)
async def test_headers_that_contradict_a_list_request_are_refused(site, token, wrong):
    async with site.raw(token) as http:
        answer = await http.post(site.url(), headers=headers() | wrong, json=body())
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in {-32020, -32022}


@pytest.mark.parametrize("method", ["tools/list", "initialize"])
async def test_a_version_that_nobody_serves_is_named_as_the_reason_also_without_an_envelope(
    site, token, method
):
    async with site.raw(token) as http:
        given = headers(method) | {"mcp-protocol-version": "1999-01-01"}
        answer = await http.post(
            site.url(),
            headers=given,
            json={"jsonrpc": "2.0", "id": 7, "method": method, "params": {}},
        )
    error = answer.json()["error"]
    assert (answer.status_code, answer.json()["id"], error["code"]) == (400, 7, -32022)
    assert (error["data"]["requested"], MODERN in error["data"]["supported"]) == (
        "1999-01-01",
        True,
    )


def test_whitespace_around_a_header_is_no_part_of_its_value(site, token):
    """RFC 9110, 5.5; some proxies add it, and httpx refuses to."""
    given = {
        "mcp-name": " \techo__echo \t",
        "mcp-method": "tools/call ",
        "mcp-protocol-version": f"{MODERN} ",
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    request = body("tools/call", name="echo__echo", arguments={"a": 1})
    address = urlsplit(site.url())
    door = HTTPConnection(address.hostname, address.port, timeout=HANG_LIMIT)
    door.request("POST", address.path, json.dumps(request), given)
    answer = door.getresponse()
    text = answer.read().decode()
    door.close()
    assert answer.status == 200, text
    assert '"error"' not in text


@pytest.mark.attack
@pytest.mark.parametrize(
    "wrong", [{"mcp-name": "echo__pid"}, {"mcp-name": ""}, {"mcp-method": "tools/list"}, {}]
)
async def test_headers_that_contradict_a_call_are_refused_and_nothing_runs(
    site, stage, token, wrong
):
    mark = fresh("mark")
    async with site.raw(token) as http:
        request = body("tools/call", name="echo__echo", arguments={"mark": mark})
        answer = await http.post(site.url(), headers=headers("tools/call") | wrong, json=request)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    assert not await outside(stage.calls, arguments__contains=mark)


@pytest.mark.attack
async def test_param_headers_must_equal_the_arguments_of_the_tool_as_this_caller_sees_it(
    site, token
):
    async with site.raw(token) as http:

        async def call(**given: str) -> tuple[int, Any]:
            request = body("tools/call", name="echo__pid", arguments={"region": "north"})
            named = headers("tools/call", **{"mcp-name": "echo__pid"})
            answer = await http.post(site.url(), headers=named | given, json=request)
            return answer.status_code, answer.json().get("error", {}).get("code")

        assert await call(**{"mcp-param-region": "north"}) == (200, None)
        assert await call(**{"mcp-param-region": "south"}) == (400, -32020)
        assert await call() == (400, -32020)


@pytest.mark.attack
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_body_over_4_mib_is_refused(site, token, era):
    async with site.raw(token) as http:
        request = body("tools/call", name="echo__echo", arguments={"x": "x" * (4 * 1024 * 1024)})
        given = headers("tools/call", **{"mcp-name": "echo__echo"}) | {"mcp-protocol-version": era}
        assert (await http.post(site.url(), headers=given, json=request)).status_code == 413

        async def chunks():
            for _ in range(80):
                yield b" " * 65536

        assert (await http.post(site.url(), headers=given, content=chunks())).status_code == 413


@pytest.mark.attack
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1}',
        b'{"id":' + b"9" * 9999,
    ],
)
async def test_bodies_that_are_no_request_get_an_error_and_harm_nobody(site, token, era, raw):
    async with site.raw(token) as http:
        answer = await http.post(
            site.url(), headers=headers() | {"mcp-protocol-version": era}, content=raw
        )
        assert 400 <= answer.status_code < 500
        assert "Traceback" not in answer.text
        assert (await http.post(site.url(), headers=headers(), json=body())).status_code == 200


ODD_IDS = [b"null", b"1.5", b"true", b"[]", b"{}"]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("odd", ODD_IDS)
async def test_a_request_with_an_id_that_is_none_is_refused_instead_of_kept_waiting(
    site, token, era, odd
):
    async with site.raw(token) as http:
        raw = b'{"jsonrpc":"2.0","id":%s,"method":"tools/list","params":{}}' % odd
        answer = await http.post(site.url(), headers={"mcp-protocol-version": era}, content=raw)
        assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (
            400,
            None,
            -32600,
        )


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [("no/such", {}, (404, -32601)), ("tools/list", {"cursor": "0.1"}, (400, -32602))],
)
async def test_errors_of_requests_have_the_status_of_the_specification(
    site, token, method, params, expected
):
    async with site.raw(token) as http:
        answer = await http.post(site.url(), headers=headers(method), json=body(method, **params))
    assert (answer.status_code, answer.json()["error"]["code"]) == expected


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"7", -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', -32700),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":%s}}'
            % (b"[" * 500 + b"]" * 500),
            -32700,
        ),
    ],
)
async def test_what_is_no_message_is_answered_as_json_rpc_says(site, token, raw, code):
    async with site.raw(token) as http:
        answer = await http.post(site.url(), content=raw)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert "pydantic" not in answer.text


async def test_an_id_that_is_in_use_is_refused_and_the_first_request_keeps_its_answer(
    site, stage, token, tmp_path
):
    """The SDK alone lets the first one wait for ever; ``more`` is for it, since the lanes know
    nothing of that."""
    async with site.raw(token) as http:
        opened = await http.post(site.url(), json=opening())
        session = {
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": LEGACY,
        }
        await http.post(
            site.url(),
            headers=session,
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
        )

        async def call(mark: str, **until: str) -> Any:
            params = {
                "name": "slow__count",
                "arguments": {"steps": 2, "mark": mark} | until,
                "more": 1,
            }
            message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
            return await http.post(site.url(), headers=session, json=message)

        mark = fresh("mark")
        first = asyncio.create_task(call(mark, until=str(tmp_path / "done")))
        await seen_outside(lambda: stage.calls(arguments__contains=mark))
        second = await call("second")
        assert (second.status_code, second.json()["id"], second.json()["error"]["code"]) == (
            400,
            7,
            -32600,
        )
        (tmp_path / "done").touch()
        assert "2 steps" in (await first).text
        assert "2 steps" in (await call("third")).text, "answered: the id is free again"


async def test_a_wrong_type_and_a_large_body_are_refused_in_json(site, token):
    async with site.raw(token) as http:
        wrong = await http.post(site.url(), headers={"content-type": "text/plain"}, content=b"{}")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32600)
        large = await http.post(site.url(), content=b" " * (5 * 1024 * 1024))
        assert (large.status_code, large.json()["error"]["code"]) == (413, -32600)


async def test_a_host_that_wants_to_read_on_gets_a_stream(site, token):
    """Nothing is kept for it to read on from, and it lives: a fresh stream instead of an error of
    ours."""
    async with site.raw(token) as http:
        opened = await http.post(site.url(), json=opening())
        session = {
            "mcp-session-id": opened.headers["mcp-session-id"],
            "mcp-protocol-version": LEGACY,
        }
        await http.post(
            site.url(),
            headers=session,
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
        )
        given = session | {"accept": "text/event-stream", "last-event-id": "abc"}
        async with http.stream("GET", site.url(), headers=given) as stream:
            assert (stream.status_code, stream.headers["content-type"]) == (
                200,
                "text/event-stream",
            )


async def test_a_legacy_session_belongs_to_its_agent_and_endpoint(site, stage, token):
    other = await outside(stage.agent, fresh("other"))
    await outside(site.wait_known, other)
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with site.raw() as http:

        async def ask(who: str, endpoint: str, **given: str) -> Any:
            given = {"authorization": f"Bearer {who}", "mcp-protocol-version": LEGACY} | given
            return await http.post(site.url(endpoint), headers=given, json=request)

        opened = await http.post(
            site.url(), headers={"authorization": f"Bearer {token}"}, json=opening()
        )
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await http.post(
            site.url(), headers=session | {"authorization": f"Bearer {token}"}, json=note
        )
        assert (await ask(token, "default", **session)).status_code == 200
        assert (await ask(other, "default", **session)).status_code == 404
        assert (await ask(token, "second", **session)).status_code == 404
        assert (await ask(token, "default", **{"mcp-session-id": "guessed"})).status_code == 404
        assert (await ask(token, "default", **session)).status_code == 200


async def test_a_host_that_never_sends_a_version_header_is_served(site, token):
    """As Gemini CLI does: 2025-06-18 in the handshake, no header afterwards."""
    async with site.raw(token) as http:
        opened = await http.post(site.url(), json=opening("2025-06-18"))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        await http.post(
            site.url(),
            headers=session,
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
        )
        answer = await http.post(
            site.url(), headers=session, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        )
    message = (
        answer.json()
        if "json" in answer.headers["content-type"]
        else json.loads(answer.text.split("data: ")[1])
    )
    assert [tool["name"] for tool in message["result"]["tools"]] == [
        "echo__echo",
        "echo__pid",
        "slow__count",
    ]


async def test_a_host_that_shakes_hands_with_a_forgotten_session_gets_a_new_one(site, token):
    async with site.raw(token) as http:
        opened = await http.post(
            site.url(), headers={"mcp-session-id": "long-gone"}, json=opening()
        )
        assert opened.status_code == 200
        assert opened.headers["mcp-session-id"] != "long-gone"
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        stale = await http.post(site.url(), headers={"mcp-session-id": "long-gone"}, json=request)
        assert stale.status_code == 404


async def test_a_media_type_in_capital_letters_is_the_same(site, token):
    async with site.raw(token) as http:
        opened = await http.post(
            site.url(), headers={"content-type": "Application/JSON; Charset=UTF-8"}, json=opening()
        )
        assert opened.status_code == 200


TWICE = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo__echo","arguments":{"q":"1","q":"2"}%s}}'


@pytest.mark.attack
async def test_a_key_that_stands_twice_is_refused_in_both_versions(site, stage, token):
    async with site.raw(token) as http:
        opened = await http.post(site.url(), json=opening())
        older = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": LEGACY}
        modern = headers("tools/call", **{"mcp-name": "echo__echo"})
        for given, more in (
            (older, b""),
            (modern, b',"_meta":%s' % json.dumps(envelope()).encode()),
        ):
            answer = await http.post(site.url(), headers=given, content=TWICE % more)
            assert (answer.status_code, answer.json()["error"]["code"], answer.json()["id"]) == (
                400,
                -32600,
                1,
            )
            assert "'q' appears twice" in answer.text


HALVES = rb'"params":{"name":"echo__echo","arguments":{"x":"cut \ud83d"},"_meta":%s}}'


async def test_half_a_character_in_arguments_is_replaced(site, token):
    raw = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call",' + HALVES % json.dumps(envelope()).encode()
    )
    given = headers("tools/call", **{"mcp-name": "echo__echo"})
    async with site.raw(token) as http:
        answer = await http.post(site.url(), headers=given, content=raw)
    assert (answer.status_code, answer.json()["id"]) == (200, 1)
    seen = json.loads(answer.json()["result"]["content"][0]["text"])
    assert seen["arguments"] == {"x": "cut \N{REPLACEMENT CHARACTER}"}


async def test_an_older_host_may_send_the_newer_headers(site, token):
    async with site.raw(token) as http:
        opened = await http.post(site.url(), json=opening())
        given = headers("tools/call", **{"mcp-name": "echo__echo"}) | {
            "mcp-protocol-version": LEGACY
        }
        given["mcp-session-id"] = opened.headers["mcp-session-id"]
        await http.post(
            site.url(),
            headers=given,
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
        )
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "echo__echo"},
        }
        answer = await http.post(site.url(), headers=given, json=request)
    assert answer.status_code == 200
    assert "structuredContent" in answer.text


ENDS = {
    "the token is revoked": lambda token: tokens.revoke_token(token=token, actor=ACTOR),
    "the token expires": lambda token: Token.objects.filter(pk=token.pk).update(
        expires_at=timezone.now() + timedelta(seconds=0.1)
    ),
    "the agent is disabled": lambda token: Agent.objects.filter(pk=token.agent_id).update(
        enabled=False
    ),
    "the agent is deleted": lambda token: token.agent.delete(),
}


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("end", ENDS)
async def test_access_ends_when(site, stage, token, end):
    slug = fresh("agent")
    raw = await outside(stage.agent, slug)
    await outside(site.wait_known, raw)
    async with site.raw(raw) as http:
        await outside(lambda: ENDS[end](stage.token(slug)))

        async def ended() -> int:
            # 503: on a busy machine it may not know for a moment whether anything has changed.
            status = (await http.post(site.url(), headers=headers(), json=body())).status_code
            return 0 if status in (200, 503) else status

        assert await until(ended) == 401
