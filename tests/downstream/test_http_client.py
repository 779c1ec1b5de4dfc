"""The guarded way out: where it may go, and what comes back through it."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from mcpregistry.domain.errors import (
    AuthFailed,
    ConfigInvalid,
    ConnectionFailed,
    DownstreamError,
    OutboundRefused,
    ProtocolError,
    ResourceLimit,
    TimedOut,
    ToolRefused,
)
from mcpregistry.downstream.http_client.addresses import is_allowed, is_public, parse_networks
from mcpregistry.downstream.http_client.client import Outbound, RequestAttempt
from mcpregistry.downstream.http_client.guard import get_origin
from mcpregistry.downstream.transports.eventstream import EventReader, StreamEvent
from tests.downstream.conftest import SENDING, Bench
from tests.fakes.http import Always, Echo, Hang, Raw, event, fake_http, gzip_bomb, head, json_reply
from tests.fakes.targets import http_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
MIB = 1024 * 1024

HOSTS = [
    *(
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.1",
        "2130706433",
        "017700000001",
    ),
    *("0", "0.0.0.0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]"),
    *(
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2001::1]",
        "[fec0::1]",
        "[fe80::1]",
        "[fc00::1]",
    ),
    *(
        "[ff02::1]",
        "[5f00::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
    ),
    *(
        "[::ffff:169.254.169.254]",
        "0xa9fea9fe",
        "2852039166",
        "[fd00:ec2::254]",
        "192.0.0.192",
        "198.18.0.1",
    ),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "localhost", "localhost.", "①②⑦.⓪.⓪.①"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001::1"]


def outbound(*allowed: str, **options) -> Outbound:
    target = http_target(
        "http://unused", allowed_networks=allowed, limits={"connect_timeout": HANG_LIMIT}
    )
    return Outbound(target, **options)


async def fetch(client: Outbound, url: str) -> int:
    async with (
        client,
        client.send("GET", url, headers={}, data=None, attempt=RequestAttempt()) as reply,
    ):
        return reply.status


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@pytest.mark.parametrize("host", HOSTS)
async def test_no_spelling_of_an_inner_address_is_reached(host: str):
    async with fake_http(Always(raw=head(200, content_length="0"))) as server:
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        with pytest.raises(DownstreamError) as caught:
            await fetch(outbound(), f"http://{host}:{port}/")
        assert isinstance(caught.value, OutboundRefused | ConnectionFailed)
        assert not caught.value.sent
        assert server.connections == 0


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://x/",
        "http://user:pass@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http:///path",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://[::1/",
        "//example.com/",
        "",
    ],
)
async def test_what_is_no_plain_http_url_is_refused(url: str):
    with pytest.raises(OutboundRefused):
        await fetch(outbound("0.0.0.0/0"), url)


@pytest.mark.parametrize("text", PUBLIC)
def test_ordinary_addresses_are_public(text: str):
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "::127.0.0.1",
            "64:ff9b::1",
            "64:ff9b:1::1",
            "2002::1",
            "fec0::1",
            "192.0.0.9",
            "224.0.0.1",
            "ff02::1",
        ),
        *(
            "192.88.99.1",
            "5f00::1",
            "100.64.0.1",
            "::ffff:10.0.0.1",
            "3fff::1",
            "2001:db8::1",
            "::",
        ),
    ],
)
def test_special_addresses_are_not_public_whatever_the_library_says(text: str):
    assert not is_public(ip_address(text))


def test_an_allowed_network_opens_itself_and_nothing_else():
    networks = parse_networks(("10.1.0.0/16", "fd00::/8"))
    assert is_allowed(ip_address("10.1.2.3"), networks)
    assert is_allowed(ip_address("::ffff:10.1.2.3"), networks)
    assert is_allowed(ip_address("fd00::5"), networks)
    assert not is_allowed(ip_address("10.2.0.1"), networks)
    assert not is_allowed(ip_address("127.0.0.1"), networks)
    with pytest.raises(ConfigInvalid):
        parse_networks(("ten.one",))


@pytest.mark.attack
async def test_a_name_with_one_inner_address_among_public_ones_is_refused():
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "127.0.0.1"]

    with pytest.raises(OutboundRefused):
        await fetch(outbound(resolve=resolve), "http://mixed.example/")


@pytest.mark.attack
async def test_a_name_that_turns_inward_after_its_check_is_not_followed():
    """DNS rebinding: each connection uses the addresses that were checked for it, and is checked
    again."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with fake_http(Always(raw=head(200, content_length="0"))) as server:
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        url = f"http://rebind.example:{port}/"
        client = outbound("127.0.0.1/32", resolve=resolve)
        async with client:
            async with client.send(
                "GET", url, headers={}, data=None, attempt=RequestAttempt()
            ) as reply:
                assert reply.status == 200
            with pytest.raises(OutboundRefused):
                async with client.send("GET", url, headers={}, data=None, attempt=RequestAttempt()):
                    pass
        assert server.connections == 1
        assert asked == ["rebind.example"] * 2


async def test_a_name_that_does_not_resolve_is_a_failed_connection_with_nothing_sent():
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(ConnectionFailed, match="cannot be resolved") as caught:
        await fetch(outbound(resolve=resolve), "http://nowhere.example/")
    assert not caught.value.sent


@pytest.mark.attack
async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch):
    async with (
        fake_http(Always(raw=head(200, content_length="0"))) as proxy,
        fake_http(Echo()) as server,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert await fetch(outbound("127.0.0.0/8"), server.url) == 405
        assert proxy.connections == 0


@pytest.mark.attack
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_off_the_origin_is_refused_in_handshake_and_call(bench: Make, status: int):
    async with fake_http(Echo()) as prey:
        moved = head(status, location=prey.url, content_length="0")
        async with fake_http(Always(raw=moved)) as server:
            with pytest.raises(OutboundRefused):
                await bench(http_target(server.url)).call("echo")
        async with fake_http(Raw(raw=moved)) as server:
            here = bench(http_target(server.url, headers={"Authorization": "Bearer t"}))
            with pytest.raises(OutboundRefused):
                await here.call("echo")
            await here.pool.close()
        assert prey.connections == 0


async def test_a_redirect_within_the_origin_that_keeps_the_method_is_followed(bench: Make):
    class Slash(Echo):
        async def respond(self, request, writer):
            if request.path == "/mcp":
                writer.write(head(307, location="/mcp/", content_length="0"))
                return True
            return await super().respond(request, writer)

    async with fake_http(Slash()) as server:
        here = bench(http_target(server.url))
        assert await here.call("echo")
        assert [request.path for request in server.requests].count("/mcp") == 2, (
            "once by the SDK, once by us"
        )
        assert len(server.calls()) == 1
        await here.pool.close()


def test_an_origin_is_scheme_host_and_port():
    assert get_origin("http://A.example/x") == get_origin("http://a.example:80/y")
    assert get_origin("https://a.example/") != get_origin("http://a.example/")


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=good.example -addext subjectAltName=DNS:good.example -keyout {path} -out {path}.crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


@pytest.mark.attack
@pytest.mark.parametrize(
    ("host", "trusted"), [("good.example", False), ("bad.example", True), ("good.example", True)]
)
async def test_only_a_certificate_that_is_trusted_and_names_the_host_is_accepted(
    certificate: Path, host: str, trusted: bool
):
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(10))
        writer.write(head(200, content_length="0"))
        await writer.drain()
        writer.close()

    async def resolve(name: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    tls = ssl.create_default_context(cafile=str(certificate) + ".crt") if trusted else None
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=served)
    async with server:
        url = f"https://{host}:{server.sockets[0].getsockname()[1]}/"
        client = outbound("127.0.0.0/8", resolve=resolve, tls=tls)
        if host == "good.example" and trusted:
            assert await fetch(client, url) == 200
        else:
            with pytest.raises(ConnectionFailed, match="certificate") as caught:
                await fetch(client, url)
            assert not caught.value.sent
            assert not heard


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.attack
async def test_a_gzip_bomb_costs_its_limit_not_its_size(bench: Make):
    bomb = gzip_bomb(200 * MIB)
    # whoever waits for its end waits too long
    async with fake_http(Raw(raw=bomb, pause=3_600)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        process = psutil.Process()
        before = process.memory_info().rss
        with pytest.raises(ResourceLimit) as caught:
            await here.call("echo", timeout=HANG_LIMIT)
        assert caught.value.sent
        assert process.memory_info().rss - before < 64 * MIB
        await here.pool.close()


@pytest.mark.attack
async def test_a_gzip_bomb_in_the_handshake_is_a_typed_error_too(bench: Make):
    async with fake_http(Always(raw=gzip_bomb(50 * MIB))) as server:
        with pytest.raises(ResourceLimit):
            await bench(http_target(server.url)).call("echo")


BIG = b'{"jsonrpc":"2.0","id":1000003,"result":{"x":"' + b"y" * 5 * MIB
STREAM = head(200, content_type="text/event-stream")


@pytest.mark.attack
@pytest.mark.parametrize(
    "raw",
    [
        head(200, content_type="application/json", content_length=str(len(BIG))) + BIG,
        STREAM + b"data: " + BIG,
        STREAM + (b"data: " + b"x" * 100 + b"\n") * 50_000,
    ],
)
async def test_a_body_or_an_event_beyond_the_limit_is_refused(bench: Make, raw: bytes):
    async with fake_http(Raw(raw=raw, pause=5)) as server:
        here = bench(http_target(server.url))
        with pytest.raises(ResourceLimit):
            await here.call("echo")
        await here.pool.close()


@pytest.mark.fault
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", ConnectionFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Type: appl", ConnectionFailed),
        (
            head(200, content_type="application/json", content_length="100") + b'{"jsonrpc"',
            ConnectionFailed,
        ),
        (
            head(200, content_type="application/json", transfer_encoding="chunked") + b"5\r\nab",
            ConnectionFailed,
        ),
        (STREAM, ConnectionFailed),
        (STREAM + event({"jsonrpc": "2.0", "id": "other", "result": {}}), ConnectionFailed),
        (STREAM + b"data: {\n\n", ProtocolError),
        (b"garbage\r\n\r\n", ConnectionFailed),
        (head(200, content_type="text/html", content_length="2") + b"hi", ConnectionFailed),
        (head(202, content_length="0"), ConnectionFailed),
        (head(200, content_type="application/json", content_length="2") + b"[]", ProtocolError),
        (json_reply({"jsonrpc": "2.0", "id": "f9999", "result": {"content": []}}), ProtocolError),
        (json_reply({"jsonrpc": "2.0", "id": 3, "result": {"content": []}}), ProtocolError),
        (
            head(200, content_type="application/json", content_encoding="br", content_length="1")
            + b"x",
            ProtocolError,
        ),
        (
            head(200, content_type="application/json", content_encoding="gzip", content_length="1")
            + b"x",
            ProtocolError,
        ),
        (head(500, content_length="0"), ConnectionFailed),
        (head(503, content_length="0", retry_after="1"), ConnectionFailed),
        (head(429, content_length="0"), ToolRefused),
    ],
)
async def test_a_broken_answer_is_typed_prompt_and_never_repeated(
    bench: Make, raw: bytes, kind: type
):
    async with fake_http(Raw(raw=raw)) as server:
        # whoever waits for its end hangs
        here = bench(http_target(server.url, limits={"request_timeout": 10_000.0}))
        await here.pool.connect(1)
        with pytest.raises(kind) as caught:
            await here.call("echo", b'{"n":1}')
        assert caught.value.sent
        assert len(server.calls()) == 1
        await here.pool.close()


@pytest.mark.fault
async def test_an_answer_cut_at_any_byte_is_an_error_never_a_result(bench: Make):
    whole = json_reply({"jsonrpc": "2.0", "id": 1000003, "result": {"content": []}})
    server = Raw()
    async with fake_http(server):
        here = bench(http_target(server.url, limits={"max_concurrency": 50}))
        await here.pool.connect(1)
        for cut in range(0, len(whole), 7):
            server.raw = whole[:cut]
            with pytest.raises(ConnectionFailed) as caught:
                await here.call("echo")
            assert caught.value.sent
        await here.pool.close()


async def test_a_refused_credential_in_a_call_was_not_executed(bench: Make):
    async with fake_http(Raw(raw=head(401, content_length="0"))) as server:
        here = bench(http_target(server.url))
        with pytest.raises(AuthFailed) as caught:
            await here.call("echo")
        assert not caught.value.sent
        await here.pool.close()


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_hung_http_server_is_left_at_the_deadline_and_told(bench: Make, era: str):
    async with fake_http(Hang(era=era)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        with pytest.raises(TimedOut) as caught:
            await here.call("echo", timeout=SENDING)
        assert caught.value.sent
        await asyncio.wait_for(server.gone.wait(), HANG_LIMIT)
        if era == "legacy":
            await until(
                lambda: (
                    "notifications/cancelled" in [r.message.get("method") for r in server.requests]
                )
            )
        await here.pool.close()


@pytest.mark.fault
async def test_a_server_that_accepts_and_says_nothing_ends_with_the_connect_deadline(bench: Make):
    async with fake_http(Hang(everything=True)) as server:
        here = bench(http_target(server.url, limits={"connect_timeout": 1.0}))
        with pytest.raises(TimedOut):
            await here.call("echo")


@pytest.mark.fault
async def test_a_dead_server_is_told_and_served_again_when_it_is_back(bench: Make):
    async with fake_http(Echo()) as server:
        here = bench(http_target(server.url))
        await here.call("echo")
    with pytest.raises(ConnectionFailed):
        await here.call("echo")
    await here.pool.close()


async def test_a_gzipped_answer_is_understood(bench: Make):
    import gzip

    body = gzip.compress(
        json.dumps({"jsonrpc": "2.0", "id": 1000002, "result": {"content": []}}).encode()
    )
    raw = (
        head(
            200,
            content_type="application/json",
            content_encoding="gzip",
            content_length=str(len(body)),
        )
        + body
    )
    async with fake_http(Raw(raw=raw)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        assert await here.call("echo") == {"content": []}
        await here.pool.close()


# -- event streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_are_the_same_however_they_are_cut(size: int):
    data = b": note\r\n\r\nevent: endpoint\ndata: /m\n\ndata: a\ndata:b\nid: 7\nretry: 5\n\ndata\n\nevent: x\n\ndata: end\n\n"
    reader = EventReader(100)
    seen = [
        found
        for start in range(0, len(data), size)
        for found in reader.feed(data[start : start + size])
    ]
    assert seen == [
        StreamEvent("endpoint", b"/m"),
        StreamEvent("message", b"a\nb"),
        StreamEvent("message", b"end"),
    ]
    assert (reader.last_id, reader.retry) == ("7", 0.005)


def test_an_event_without_data_tells_its_id_and_nothing_else():
    reader = EventReader(100)
    assert reader.feed(b"id: 1_1\nretry: 500\ndata:\n\n") == []
    assert (reader.last_id, reader.retry) == ("1_1", 0.5)
    assert reader.feed(b"id: half") == []
    assert (reader.make_successor().last_id, reader.make_successor().retry) == ("1_1", 0.5)


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [b"retry: " + b"9" * 5000, b"retry: -1", b"retry: 1e9", b"id: a\0b", b"id: " + b"x" * 5000],
)
def test_an_unusable_id_or_pause_is_ignored(line: bytes):
    reader = EventReader(10_000)
    assert reader.feed(line + b"\n\n") == []
    assert (reader.last_id, reader.retry) == ("", 1.0)


@pytest.mark.parametrize("data", [b"data: " + b"x" * 101, b"data: xxxxxxxxxx\n" * 20])
def test_an_event_beyond_its_limit_is_refused(data: bytes):
    with pytest.raises(ResourceLimit):
        EventReader(100).feed(data)
