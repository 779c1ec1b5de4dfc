"""The ways in which an entry of a registry can become a server: a package that runs here, or an address elsewhere.

A way says what a person is asked for. Nothing of an entry is filled in or run by itself: its texts are a stranger's.
Source: the schema of server.json (``packages``, ``remotes`` and their inputs).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs.names import Ecosystem, check_name, check_version
from mcpregistry.domain.text.canonical import plain

MOST_WAYS, MOST_INPUTS = 20, 50
_VARIABLE = re.compile(r"\{([A-Za-z0-9_.-]{1,100})\}")
_TRANSPORTS = {"streamable-http": "http", "sse": "sse"}
_INSTALLED = {each.value for each in Ecosystem}


@dataclass(frozen=True, slots=True)
class Input:
    """Something that the server wants to be given. ``place``: environment, header, argument or address."""

    place: str
    name: str
    description: str
    required: bool
    secret: bool
    default: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One package or remote. ``problem``: why it cannot be added here, in a sentence; else empty.

    ``kind``: npm, pypi, remote, or what else the entry says; ``transport``: stdio, http or sse; ``identifier``: the
    package's name, or the URL.
    """

    kind: str
    transport: str
    identifier: str
    version: str
    inputs: tuple[Input, ...] = ()
    problem: str = ""


def ways(document: str) -> list[Way]:
    """What the entry offers, of its server.json as text. One that cannot be used is there with its problem."""
    server = json.loads(document)
    found = [_tried(_package, each, "registryType") for each in _dicts(server.get("packages"))]
    return (found + [_tried(_remote, each, "") for each in _dicts(server.get("remotes"))])[:MOST_WAYS]


def _tried(read: Any, raw: dict[str, Any], kind: str) -> Way:
    try:
        way: Way = read(raw)
    except ConfigInvalid as error:
        why = error.message
    except (KeyError, TypeError, ValueError, AttributeError):
        why = "It is not as the format of registries says."
    else:
        return way
    return Way(
        plain(str(raw.get(kind, "remote")), 20), "", plain(str(raw.get("identifier", raw.get("url"))), 300), "", (), why
    )


def _package(raw: dict[str, Any]) -> Way:
    kind, identifier, version = raw["registryType"], raw["identifier"], raw.get("version") or ""
    if kind not in _INSTALLED:
        raise ConfigInvalid(f"Packages of the kind '{plain(str(kind), 20)}' are not installed by this site.")
    if raw.get("transport", {}).get("type", "stdio") != "stdio":
        raise ConfigInvalid("It is started as a web server, which this site does not do.")
    check_name(Ecosystem(kind), identifier)
    if not version or not check_version(Ecosystem(kind), version):
        raise ConfigInvalid("It names no exact version.")
    inputs = [
        *_inputs("argument", raw.get("packageArguments")),
        *_inputs("environment", raw.get("environmentVariables")),
    ]
    return Way(kind, "stdio", identifier, version, tuple(inputs[:MOST_INPUTS]))


def _remote(raw: dict[str, Any]) -> Way:
    transport, url = _TRANSPORTS.get(raw["type"], ""), raw["url"]
    filled = urlsplit(_VARIABLE.sub("x", url))
    if not transport:
        raise ConfigInvalid(f"The transport '{plain(str(raw['type']), 20)}' is unknown.")
    if filled.scheme not in ("http", "https") or not filled.hostname or "@" in filled.netloc:
        raise ConfigInvalid("Its address is not a plain http or https URL.")
    known = raw.get("variables") or {}
    asked = [
        _input("address", name, known.get(name) or {"isRequired": True})
        for name in dict.fromkeys(_VARIABLE.findall(url))
    ]
    inputs = [*asked, *_inputs("header", raw.get("headers"))]
    return Way("remote", transport, plain(url, 2_000), "", tuple(inputs[:MOST_INPUTS]))


def _inputs(place: str, raw: object) -> Iterator[Input]:
    """Of each slot what is asked for: itself, or the variables in its fixed value."""
    for number, slot in enumerate(_dicts(raw), 1):
        name = str(slot.get("name") or slot.get("valueHint") or f"{place} {number}")
        if not isinstance(fixed := slot.get("value"), str):
            yield _input(place, name, slot)
            continue
        known = slot.get("variables") or {}
        for variable in dict.fromkeys(_VARIABLE.findall(fixed)):
            if variable in known:
                yield _input(place, f"{name}: {variable}", known[variable], secret=slot.get("isSecret") is True)


def _input(place: str, name: str, raw: Mapping[str, Any], secret: bool = False) -> Input:
    default, choices = raw.get("default"), raw.get("choices") or []
    return Input(
        place=place, name=plain(name, 100), description=plain(str(raw.get("description") or ""), 500),
        required=raw.get("isRequired") is True, secret=secret or raw.get("isSecret") is True,
        default=plain(str(default), 500) if default is not None else "",
        choices=tuple(plain(str(each), 200) for each in choices[:50]),
    )  # fmt: skip


def _dicts(raw: object) -> list[dict[str, Any]]:
    return [each for each in raw if isinstance(each, dict)] if isinstance(raw, list) else []
