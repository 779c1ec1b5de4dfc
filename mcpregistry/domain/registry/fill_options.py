"""What people enter for an entry's settings becomes a launch: arguments, environment, headers and
address. Pure.

Nothing is handed to a shell, an argument stays one word, and no value moves an address to another
host than the entry and the person together have named. Source: the schema of server.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.registry.install_options import (
    VARIABLE,
    InstallInput,
    InstallOption,
    InstallSlot,
)

_OF_A_HOST = re.compile(r"[A-Za-z0-9-]{1,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a server is started or reached with, besides the package itself."""

    arguments: list[str]
    env: dict[str, str]
    headers: dict[str, str]
    url: str
    image: dict[str, str] = field(default_factory=dict)  # of a container: digest and network


def fill_install_option(way: InstallOption, given: Mapping[str, str]) -> Launch:
    """The way with what was entered, by ``Input.key``; what is left out takes its default.

    Raises ConfigInvalid, which names everything that is missing, unknown or not among the choices.
    """
    values = {each.key: given.get(each.key) or each.default for each in way.inputs}
    _check(way, given, values)
    env = {}
    headers = {}
    arguments = []
    url = ""
    image = {}
    for slot in way.slots:
        if (text := _fill_slot_text(slot, values)) is None:
            continue
        match slot.place:
            case "environment":
                env[slot.name] = text
            case "header":
                headers[slot.name] = text
            case "address":
                url = text
            case "image":
                image[slot.name] = text
            case _:
                arguments += _build_argument_words(slot, text, values)
    return Launch(arguments, env, headers, url, image)


def _check(way: InstallOption, given: Mapping[str, str], values: Mapping[str, str]) -> None:
    if unknown := sorted(set(given) - set(values)):
        raise ConfigInvalid(
            f"The entry has no setting named {', '.join(unknown)[:300]}.",
            remedy=f"Use only these names: {', '.join(values)}."
            if values
            else "Leave these settings out. The entry has no settings.",
        )
    if missing := [each.key for each in way.inputs if each.required and not values[each.key]]:
        raise ConfigInvalid(
            f"These settings are required: {', '.join(missing)}.",
            remedy="Enter a value for each of these settings.",
        )
    for each in way.inputs:
        if each.choices and values[each.key] not in ("", *each.choices):
            raise ConfigInvalid(
                f"The value of the setting {each.key} is not one of its choices.",
                remedy=f"Choose one of {', '.join(each.choices)}.",
            )


def _fill_slot_text(slot: InstallSlot, values: Mapping[str, str]) -> str | None:
    """What stands in the slot; None where nothing was entered for it."""
    if slot.text is None:
        return values[slot.inputs[0].key] or None
    known = {each.variable: each for each in slot.inputs}
    if any(not values[each.key] for each in slot.inputs):
        return None
    host_ends = _find_end_of_host(slot.text) if slot.place == "address" else 0

    def value(match: re.Match[str]) -> str:
        if (asked := known.get(match[1])) is None:
            return match[0]
        if slot.place != "address":
            return values[asked.key]
        return _encode_for_address(asked, values[asked.key], in_host=match.start() < host_ends)

    return VARIABLE.sub(value, slot.text)


def _find_end_of_host(url: str) -> int:
    start = url.find("://") + 3
    ends = [at for sign in "/?#" if (at := url.find(sign, start)) >= 0]
    return min(ends, default=len(url))


def _encode_for_address(asked: InstallInput, value: str, *, in_host: bool) -> str:
    if in_host:
        if not _OF_A_HOST.fullmatch(value):
            raise ConfigInvalid(
                f"The value of the setting {asked.key} contains characters that are not allowed in a host name.",
                remedy="Use letters, digits and hyphens.",
            )
        return value
    if value in (".", ".."):
        raise ConfigInvalid(
            f"The value of the setting {asked.key} would change the path of the address.",
            remedy="Enter a value other than . and .. for this setting.",
        )
    return value if is_reference(value) else quote(value, safe="")


def _build_argument_words(slot: InstallSlot, text: str, values: Mapping[str, str]) -> list[str]:
    """A positional argument is one word, a named one two, a flag one or none; several values are a
    word each."""
    if slot.inputs and slot.inputs[0].flag and slot.name:
        return [slot.name] if text == "true" else []
    only = slot.inputs[0] if len(slot.inputs) == 1 else None
    if only is not None and only.many and slot.text == f"{{{only.variable}}}":
        each = [line.strip() for line in values[only.key].splitlines() if line.strip()]
        return [slot.name, *each] if slot.name else each
    return [slot.name, text] if slot.name else [text]
