"""What an entry of a registry offers and asks for; nothing of it is ever filled in by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.domain.registry.install_options import InstallOption, read_install_options


def of(**server: Any) -> list[InstallOption]:
    return read_install_options(json.dumps(server))


def package(**changed: Any) -> dict[str, Any]:
    return {
        "registryType": "npm",
        "identifier": "@scope/pkg",
        "version": "1.2.3",
        "transport": {"type": "stdio"},
    } | changed


def test_a_package_asks_for_its_arguments_and_variables() -> None:
    [way] = of(
        packages=[
            package(
                packageArguments=[
                    {"type": "positional", "valueHint": "dir", "isRequired": True},
                    {
                        "type": "named",
                        "name": "--zone",
                        "default": "UTC",
                        "choices": ["UTC", "CET"],
                    },
                    {"type": "named", "name": "--fixed", "value": "no question"},
                ],
                environmentVariables=[
                    {"name": "API_KEY", "isRequired": True, "isSecret": True},
                    {
                        "name": "DB",
                        "value": "pg://{host}/x",
                        "isSecret": True,
                        "variables": {"host": {"isRequired": True}},
                    },
                ],
            )
        ]
    )
    assert (way.kind, way.transport, way.identifier, way.version, way.problem) == (
        "npm",
        "stdio",
        "@scope/pkg",
        "1.2.3",
        "",
    )
    told = [
        (each.place, each.name, each.required, each.secret, each.default, each.choices)
        for each in way.inputs
    ]
    assert told == [
        ("argument", "dir", True, False, "", ()),
        ("argument", "--zone", False, False, "UTC", ("UTC", "CET")),
        ("environment", "API_KEY", True, True, "", ()),
        ("environment", "DB: host", True, True, "", ()),
    ]


def test_a_remote_asks_for_the_parts_of_its_address_and_its_headers() -> None:
    [way] = of(
        remotes=[
            {
                "type": "streamable-http",
                "url": "https://{tenant}.example.com/mcp",
                "variables": {"tenant": {"isRequired": True, "choices": ["eu", "us"]}},
                "headers": [{"name": "X-API-Key", "isRequired": True, "isSecret": True}],
            }
        ]
    )
    assert (way.kind, way.transport, way.identifier) == (
        "remote",
        "http",
        "https://{tenant}.example.com/mcp",
    )
    assert [(each.place, each.name, each.secret) for each in way.inputs] == [
        ("address", "tenant", False),
        ("header", "X-API-Key", True),
    ]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"registryType": "nuget"}, "of the kind 'nuget'"),
        ({"registryType": "oci"}, "a full image name"),
        ({"registryType": "mcpb", "identifier": "https://x.example/x.mcpb"}, "lacks the SHA-256"),
        ({"transport": {"type": "streamable-http"}}, "starts a web server"),
        ({"version": "latest"}, "an exact version"),
        ({"version": ""}, "does not state an exact version"),
        ({"identifier": "--registry=http://evil.example"}, "package name"),
        ({"identifier": "../x"}, "package name"),
        ({"identifier": 3}, "does not follow the registry format"),
        ({"transport": "stdio"}, "does not follow the registry format"),
        (
            {"environmentVariables": [{"name": "A", "choices": 3}]},
            "does not follow the registry format",
        ),
        (
            {"environmentVariables": [{"name": "A", "default": "${cred:github}"}]},
            "refers to secrets or variables of this site",
        ),
        (
            {"packageArguments": [{"type": "named", "name": "--x", "value": "${HOME}"}]},
            "refers to secrets or variables of this site",
        ),
        (
            {
                "packageArguments": [
                    {"type": "named", "name": "--key", "isSecret": True, "isRequired": True}
                ]
            },
            "on its command line",
        ),
        ({"environmentVariables": [{"name": "A"}, {"name": "A"}]}, "have the same name"),
        ({"environmentVariables": [{"name": f"A{n}"} for n in range(51)]}, "more than 50 settings"),
    ],
)
def test_what_cannot_be_added_says_why(changed: dict[str, Any], why: str) -> None:
    [way] = of(packages=[package(**changed)])
    assert why in way.problem


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://a:b@example.com/",
        "https:///x",
        "http://[",
        7,
    ],
)
def test_a_remote_at_no_plain_address_is_none(url: object) -> None:
    [way] = of(remotes=[{"type": "sse", "url": url}])
    assert way.problem


def test_what_is_no_list_offers_nothing() -> None:
    assert of(packages="many", remotes=[3]) == []
    assert len(of(packages=[package()] * 50)) == 20
