"""Addresses of this site are recognized in each spelling that a browser understands, and no others
are."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.own_site import OwnSite

LOCAL = OwnSite.at(["127.0.0.1", "localhost", "[::1]", "*"], ["http://127.0.0.1:8000"])
PUBLIC = OwnSite.at(
    ["tools.example.org", ".tools.example.com"],
    ["https://tools.example.org", "http://127.0.0.1:8000"],
)


@pytest.mark.attack
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "any.localhost",
        "127.9.9.9",
        "me:secret@127.0.0.1",
        "%31%32%37.0.0.1",
        "①27.0.0.1",
    ],
)
def test_local_site_is_recognized(host: str):
    assert LOCAL.has(f"http://{host}:8000/approvals/1/")
    assert not LOCAL.has(f"http://{host}:9000/callback"), "another program of this machine"


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "https://tools.example.org/",
        "https://TOOLS.example.org:443/admin/",
        "https://tools.example.org.",
        "https://a.tools.example.com/",
        "https://tools.example.org\\@other.example/",
        "https://tools.exam%70le.org/",
        "http://localhost:8000/",
        "https://",
        "https://[",
        "https://h:99999999/",
    ],
)
def test_public_site_is_recognized(url: str):
    assert PUBLIC.has(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/",
        "https://tools.example.org.evil.example/",
        "https://tools.example.org:8443/",
        "https://tools.example.org@other.example/",
        "https://nottools.example.com/",
        "https://203.0.113.7/",
        "https://[2001:db8::1]/",
    ],
)
def test_other_sites_are_not(url: str):
    assert not PUBLIC.has(url)
