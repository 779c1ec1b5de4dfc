"""The ways in which an entry of a registry can become a server: a package that runs here, or an
address elsewhere.

A way says what a person is asked for. Nothing of an entry is filled in or run by itself: its texts
are a stranger's. Source: the schema of server.json (``packages``, ``remotes`` and their inputs).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs.names import Ecosystem, check_name, check_version
from mcpregistry.domain.registry import containers
from mcpregistry.domain.servers.launch import check_url
from mcpregistry.domain.text.canonical import clean_text

MOST_WAYS = 20
MOST_INPUTS = 50
VARIABLE = re.compile(r"\{([A-Za-z0-9_.-]{1,100})\}")
_TRANSPORTS = {"streamable-http": "http", "sse": "sse"}
_ODD = (ConfigInvalid, KeyError, TypeError, ValueError, AttributeError)
_INSTALLED = {each.value for each in Ecosystem}


@dataclass(frozen=True, slots=True)
class InstallInput:
    """Something that the server wants to be given. ``place``: environment, header, argument,
    address, image or setting.

    ``flag``: an argument that is there or not; its choices are true and false. ``variable``: its
    name in the slot's text. ``many``: one value a line, each a word of its own.
    """

    place: str
    name: str
    description: str
    required: bool
    secret: bool
    default: str
    choices: tuple[str, ...]
    flag: bool = False
    variable: str = ""
    many: bool = False

    @property
    def key(self) -> str:
        """What it is called among all inputs of its way."""
        return f"{self.place} {self.name}"


@dataclass(frozen=True, slots=True)
class InstallSlot:
    """One argument, variable, header or the address: ``text`` with its ``{variables}``, or what a
    person enters.

    ``name``: of the variable or header, or the word before a named argument's value; empty where
    there is none.
    """

    place: str
    name: str
    inputs: tuple[InstallInput, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class InstallOption:
    """One package or remote. ``problem``: why it cannot be added here, in a sentence; else empty.

    ``kind``: npm, pypi, mcpb, oci, remote, or what else the entry says; ``transport``: stdio, http
    or sse, empty for what is no package or address that this site knows; ``identifier``: the
    package's name, or the URL. ``version``: of a bundle the SHA-256 of its file.
    """

    kind: str
    transport: str
    identifier: str
    version: str
    slots: tuple[InstallSlot, ...] = ()
    problem: str = ""

    @property
    def installs(self) -> bool:
        """It is a package that is installed here; else a server is made of it at once."""
        return self.kind in _INSTALLED

    @property
    def inputs(self) -> tuple[InstallInput, ...]:
        """All that a person is asked for, each once."""
        return tuple(dict.fromkeys(each for slot in self.slots for each in slot.inputs))


def read_install_options(document: str) -> list[InstallOption]:
    """What the entry offers, of its server.json as text. One that cannot be used is there with its
    problem."""
    server = json.loads(document)
    found = [
        _read_or_note_problem(_read_package, each, "registryType")
        for each in _list_objects(server.get("packages"))
    ]
    return (
        found
        + [
            _read_or_note_problem(_read_remote, each, "")
            for each in _list_objects(server.get("remotes"))
        ]
    )[:MOST_WAYS]


def _read_or_note_problem(
    read: Callable[[dict[str, Any]], InstallOption], raw: dict[str, Any], kind: str
) -> InstallOption:
    try:
        return read(raw)
    except _ODD as error:
        said = raw.get(kind, "remote"), raw.get("identifier", raw.get("url"))
        return InstallOption(
            clean_text(str(said[0]), 20),
            "",
            clean_text(str(said[1]), 300),
            "",
            (),
            _explain_problem(error),
        )


def _explain_problem(error: Exception) -> str:
    return (
        error.message
        if isinstance(error, ConfigInvalid)
        else "The entry does not follow the registry format."
    )


def _read_package(raw: dict[str, Any]) -> InstallOption:
    kind = raw["registryType"]
    identifier = raw["identifier"]
    version = raw.get("version") or ""
    if kind not in (*_INSTALLED, containers.KIND):
        raise ConfigInvalid(
            f"This site does not install packages of the kind '{clean_text(str(kind), 20)}'."
        )
    if raw.get("transport", {}).get("type", "stdio") != "stdio":
        raise ConfigInvalid(
            "The package starts a web server, and every program on this machine could call it directly. "
            "Run the server where no other program can reach it, and add its address. If the server also supports stdio, add its "
            "package by name instead."
        )
    if kind == containers.KIND:
        return _read_image(raw, identifier)
    if kind == Ecosystem.MCPB:
        version = raw.get("fileSha256") or ""
    check_name(Ecosystem(kind), identifier)
    if not version or not check_version(Ecosystem(kind), version):
        raise ConfigInvalid(
            "The entry lacks the SHA-256 of the file, so the file cannot be checked."
            if kind == Ecosystem.MCPB
            else "The entry does not state an exact version."
        )
    settings = (
        ("argument", raw.get("packageArguments")),
        ("environment", raw.get("environmentVariables")),
    )
    return _collect_inputs(InstallOption(kind, "stdio", identifier, version), settings)


def _read_image(raw: dict[str, Any], identifier: str) -> InstallOption:
    digest = containers.check_image(identifier)
    way = InstallOption(containers.KIND, "stdio", identifier, "")
    try:
        env = list(
            containers.iterate_named_variables(
                _list_objects(raw.get("runtimeArguments")),
                _list_objects(raw.get("environmentVariables")),
            )
        )
    except ConfigInvalid as error:
        return replace(way, problem=error.message)
    asked = [containers.NETWORK] if digest else [containers.DIGEST, containers.NETWORK]
    return _collect_inputs(
        way, (("image", asked), ("environment", env), ("argument", raw.get("packageArguments")))
    )


def _read_remote(raw: dict[str, Any]) -> InstallOption:
    transport = _TRANSPORTS.get(raw["type"], "")
    url = raw["url"]
    check_url(VARIABLE.sub("x", url), ("http", "https"))
    if not transport:
        raise ConfigInvalid(
            f"This site does not support the transport '{clean_text(str(raw['type']), 20)}'."
        )
    way = InstallOption("remote", transport, clean_text(url, 2_000), "")
    return _collect_inputs(way, [("header", raw.get("headers"))], url, raw.get("variables") or {})


def _collect_inputs(
    way: InstallOption, settings: Iterable[tuple[str, object]], url: str = "", variables: Any = ()
) -> InstallOption:
    """The way with what it asks for. Where that cannot be entered it has a problem, and is known
    all the same."""
    try:
        slots = [slot for place, raw in settings for slot in _read_slots(place, raw)]
        if url:
            slots.insert(
                0,
                InstallSlot(
                    "address",
                    "",
                    tuple(_read_variables("address", "", url, variables, asked=True)),
                    url,
                ),
            )
        return replace(way, slots=_check_slots(slots))
    except _ODD as error:
        return replace(way, problem=_explain_problem(error))


def _read_slots(place: str, raw: object) -> Iterator[InstallSlot]:
    for number, slot in enumerate(_list_objects(raw), 1):
        name = str(slot.get("name") or "")
        label = name or str(slot.get("valueHint") or f"{place} {number}")
        fixed = slot.get("value")
        if isinstance(fixed, str):
            secret = slot.get("isSecret") is True
            inputs = tuple(
                _read_variables(
                    place, f"{label}: ", fixed, slot.get("variables") or {}, secret=secret
                )
            )
            yield InstallSlot(place, name, inputs, fixed)
        else:
            yield InstallSlot(place, name, (_read_input(place, label, slot),))


def _read_variables(
    place: str,
    before: str,
    text: str,
    known: Mapping[str, Any],
    *,
    secret: bool = False,
    asked: bool = False,
) -> Iterator[InstallInput]:
    """The variables in a text. ``asked``: also those of which the entry says nothing more; else
    they are plain text."""
    for name in dict.fromkeys(VARIABLE.findall(text)):
        if asked or name in known:
            yield replace(
                _read_input(
                    place, f"{before}{name}", known.get(name, {"isRequired": True}), secret
                ),
                variable=name,
            )


def _read_input(
    place: str, name: str, raw: Mapping[str, Any], secret: bool = False
) -> InstallInput:
    default = raw.get("default")
    choices = raw.get("choices") or []
    flag = place == "argument" and raw.get("format") == "boolean"
    secret = secret or raw.get("isSecret") is True
    return InstallInput(
        place=place,
        name=clean_text(name, 100),
        description=clean_text(str(raw.get("description") or ""), 500),
        required=raw.get("isRequired") is True,
        secret=secret,
        flag=flag,
        default=clean_text(str(default), 500) if default is not None and not secret else "",
        choices=("true", "false")
        if flag
        else tuple(clean_text(str(each), 200) for each in choices[:50]),
    )


def _check_slots(slots: list[InstallSlot]) -> tuple[InstallSlot, ...]:
    """The slots, when they can be filled in safely. Raises ConfigInvalid."""
    inputs = [each for slot in slots for each in slot.inputs]
    if len(slots) > MOST_INPUTS or len(inputs) > MOST_INPUTS:
        raise ConfigInvalid(f"The entry has more than {MOST_INPUTS} settings.")
    if len({each.key for each in inputs}) < len(inputs):
        raise ConfigInvalid("Two settings of the entry have the same name.")
    said = [
        text
        for slot in slots
        for text in (slot.name, slot.text or "", *(each.default for each in slot.inputs))
    ]
    if any("${" in text for text in said):
        raise ConfigInvalid(
            "The entry refers to secrets or variables of this site. Only users of this site are allowed to do this."
        )
    if any(each.secret and each.place == "argument" and each.required for each in inputs):
        raise ConfigInvalid(
            "The server needs a secret on its command line, where other users of this machine could read it."
        )
    return tuple(
        slot
        for slot in slots
        if not (slot.place == "argument" and any(each.secret for each in slot.inputs))
    )


def _list_objects(raw: object) -> list[dict[str, Any]]:
    return [each for each in raw if isinstance(each, dict)] if isinstance(raw, list) else []
