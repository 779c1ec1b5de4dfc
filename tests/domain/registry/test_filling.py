"""What people enter becomes arguments, environment, headers and address, and nothing else than
that."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.registry.fill_options import Launch, fill_install_option
from tests.domain.registry.test_ways import of, package

PACKAGE = package(
    packageArguments=[
        {"type": "positional", "valueHint": "dir", "isRequired": True},
        {"type": "named", "name": "--zone", "default": "UTC", "choices": ["UTC", "CET"]},
        {"type": "named", "name": "--fixed", "value": "as it is; {not asked}"},
        {"type": "named", "name": "--verbose", "format": "boolean"},
        {"type": "named", "name": "--left-out"},
    ],
    environmentVariables=[
        {"name": "DB", "value": "pg://{host}/x", "variables": {"host": {"isRequired": True}}},
        {"name": "OPTIONAL", "value": "a {b}", "variables": {"b": {}}},
        {"name": "MODE", "value": "plain"},
    ],
)
REMOTE = {
    "type": "streamable-http",
    "url": "https://{tenant}.example.com/mcp/{space}?q={q}",
    "variables": {"tenant": {"isRequired": True}, "q": {"default": "1"}},
    "headers": [
        {
            "name": "Authorization",
            "value": "Bearer {token}",
            "variables": {"token": {"isSecret": True}},
        }
    ],
}
PARTS = {"address tenant": "eu", "address space": "s"}


def launch(way: dict[str, Any], **given: str) -> Launch:
    [read] = of(**({"remotes": [way]} if "url" in way else {"packages": [way]}))
    assert not read.problem
    return fill_install_option(read, given)


def test_a_package_gets_its_words_and_variables() -> None:
    made = launch(
        PACKAGE,
        **{"argument dir": "/a b; rm", "environment DB: host": "h", "argument --verbose": "true"},
    )
    assert made.arguments == [
        "/a b; rm",
        "--zone",
        "UTC",
        "--fixed",
        "as it is; {not asked}",
        "--verbose",
    ]
    assert made.env == {"DB": "pg://h/x", "MODE": "plain"}


def test_a_remote_gets_its_address_and_headers() -> None:
    made = launch(REMOTE, **PARTS, **{"header Authorization: token": "${cred:x}"})
    assert (made.url, made.headers) == (
        "https://eu.example.com/mcp/s?q=1",
        {"Authorization": "Bearer ${cred:x}"},
    )
    assert launch(REMOTE, **PARTS).headers == {}


@pytest.mark.attack
@pytest.mark.parametrize("host", ["evil.example/#", "a.b", "a@b", "", "x:1", "${cred:x}"])
def test_no_value_moves_the_address_to_another_host(host: str) -> None:
    with pytest.raises(ConfigInvalid):
        launch(REMOTE, **PARTS | {"address tenant": host})


@pytest.mark.attack
def test_a_value_in_a_path_stays_one_part_of_it() -> None:
    with pytest.raises(ConfigInvalid, match="would change the path"):
        launch(REMOTE, **PARTS | {"address space": ".."})
    assert (
        launch(REMOTE, **PARTS | {"address space": "../x?y#z"}).url
        == "https://eu.example.com/mcp/..%2Fx%3Fy%23z?q=1"
    )
    assert (
        launch(REMOTE, **PARTS | {"address space": "${cred:x}"}).url
        == "https://eu.example.com/mcp/${cred:x}?q=1"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "settings are required: argument dir, environment DB: host"),
        (
            {"argument dir": "d", "environment DB: host": "h", "environment X": "y"},
            "no setting named environment X",
        ),
        (
            {"argument dir": "d", "environment DB: host": "h", "argument --zone": "PST"},
            "not one of its choices",
        ),
    ],
)
def test_what_is_missing_or_odd_is_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        launch(PACKAGE, **given)
