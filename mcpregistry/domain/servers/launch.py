"""What a launch may look like, and how ``${…}`` in it is filled in at the moment of spawning."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid

_USE_WORDS = error_texts.advise_form("a list of words", '["uvx", "mcp-server-time"]')
_USE_PAIRS = error_texts.advise_form("an object", '{"TOKEN": "${TOKEN}"}')
_PLACEHOLDER = re.compile(r"\$\{(?:(cred):)?([A-Za-z0-9_.-]+)(?::-([^}]*))?\}")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# Variables by which a child could be made to load foreign code before its own first line.
_FORBIDDEN_ENV = {
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
}


def check_command(command: object) -> list[str]:
    """The argv list, checked. Raises ConfigInvalid: not a list of strings, empty, NUL or
    newline."""
    if (
        not isinstance(command, list)
        or not command
        or not all(isinstance(word, str) for word in command)
    ):
        raise ConfigInvalid("The command must be a list of words.", remedy=_USE_WORDS)
    if not command[0].strip():
        raise ConfigInvalid(
            "The command's first word is empty.",
            remedy="Enter the program to start as the first word.",
        )
    if any("\x00" in word or "\n" in word for word in command):
        raise ConfigInvalid(
            "The command contains a NUL character or a line break.",
            remedy="Remove this character. The command is not passed to a shell.",
        )
    return command


def split_pasted_command(words: list[str], *, is_file: Callable[[str], bool]) -> list[str]:
    """The words of a command that may have been pasted as one line. ``is_file``: whether a program
    of that name is there.

    Raises ConfigInvalid for a first word that holds spaces, is no file and cannot be parted.
    """
    if not words or not re.search(r"\s", words[0].strip()) or is_file(words[0]):
        return words
    try:
        parted = shlex.split(words[0]) if len(words) == 1 else []
    except ValueError:
        parted = []
    if not parted or "=" in parted[0]:
        raise ConfigInvalid(
            "The first line of the command contains spaces, and there is no program with this name.",
            remedy="Write the program on the first line, and each argument on a line of its own. Write variables (NAME=value) in the field for the environment.",
        )
    return parted


def check_env(env: object) -> dict[str, str]:
    """Environment of a child: names are identifiers, values text, no loader hooks."""
    pairs = check_pairs(env, "Environment")
    for name in pairs:
        if not _ENV_NAME.match(name):
            raise ConfigInvalid(
                error_texts.say_not_valid(name, "a valid name for an environment variable"),
                remedy="Use only letters, digits and _.",
            )
        if name.upper() in _FORBIDDEN_ENV:
            raise ConfigInvalid(
                f"The variable {name} would load other code into the server.",
                remedy="Remove this variable, and change the command instead.",
            )
    return pairs


def check_pairs(pairs: object, what: str) -> dict[str, str]:
    """A mapping of text to text without NUL or line breaks, else ``ConfigInvalid``; ``what`` names
    it in the message."""
    if not isinstance(pairs, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in pairs.items()
    ):
        raise ConfigInvalid(f"{what} must be an object with text values.", remedy=_USE_PAIRS)
    if any(
        "\x00" in text or "\r" in text or "\n" in text for pair in pairs.items() for text in pair
    ):
        raise ConfigInvalid(
            f"{what} must not contain NUL characters or line breaks.",
            remedy="Remove these characters.",
        )
    return pairs


def check_url(url: str, schemes: tuple[str, ...]) -> str:
    """The URL, if it has one of the schemes, a host, and no user name or password; else
    ``ConfigInvalid``."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is no IPv6 address
        parts = urlsplit("")
    if parts.scheme not in schemes or not parts.hostname or any(sign <= " " for sign in url):
        raise ConfigInvalid(
            error_texts.say_not_valid(url, f"a valid {' or '.join(schemes)} address"),
            remedy=f"Use the form {schemes[-1]}://host/path.",
        )
    if parts.username or parts.password:
        raise ConfigInvalid(
            "The address contains a user name or password.",
            remedy="Put credentials into the headers.",
        )
    return url


def check_same_address(url: str, confirmed: str) -> None:
    """Raises ConfigInvalid if credentials have made an address lead elsewhere.

    ``confirmed``: the address with a letter in place of each credential. A credential stays one
    part of the path, or one value of the query.
    """
    parts = urlsplit(url)
    expected = urlsplit(confirmed)
    segments = parts.path.split("/")
    wanted = expected.path.split("/")
    same_query = parts.query.count("&") == expected.query.count("&") and bool(parts.query) == bool(
        expected.query
    )
    if (
        (parts.scheme, parts.netloc, parts.fragment)
        != (expected.scheme, expected.netloc, expected.fragment)
        or len(segments) != len(wanted)
        or {".", ".."} & {*segments} - {*wanted}
        or not same_query
    ):
        raise ConfigInvalid(
            "The value of a credential would change the host, the path or the query of the address.",
            remedy="Use a credential only as one path segment or one query value. The value of the credential must not contain / ? # or &.",
        )


def check_same_words(words: list[str], confirmed: list[str]) -> None:
    """Raises ConfigInvalid if credentials have changed the program of a command, or made an option
    of an argument.

    ``confirmed``: the words with a letter in place of each credential.
    """
    options = [word.startswith("-") for word in words]
    if words[0] != confirmed[0] or options != [word.startswith("-") for word in confirmed]:
        raise ConfigInvalid(
            "A credential in the command changes the program or adds an option.",
            remedy="Write the program and the options in the command itself.",
        )


def check_networks(networks: Any) -> list[str]:
    """A list of IP networks in CIDR notation, else ``ConfigInvalid``."""
    if not isinstance(networks, list):
        raise ConfigInvalid(
            "The allowed networks must be a list.",
            remedy=error_texts.advise_form("a list", '["10.0.0.0/8"]'),
        )
    for network in networks:
        try:
            # a bare number would mean an address
            ip_network(network if isinstance(network, str) else "")
        except ValueError as error:
            raise ConfigInvalid(
                error_texts.say_not_valid(network, "a valid network"),
                remedy=error_texts.advise_form("CIDR notation", "10.0.0.0/8"),
            ) from error
    return networks


def fill(
    text: str, *, variables: Mapping[str, str], credential: Callable[[str], str | None]
) -> str | None:
    """``text`` with ``${VAR}``, ``${VAR:-x}`` and ``${cred:NAME}`` filled in; None if one has no
    value."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        kind, name, default = match.groups()
        # empty is unset, as in a shell
        found = credential(name) if kind else variables.get(name) or None
        if found is None and default is None:
            missing = True
        return found if found is not None else default or ""

    filled = _PLACEHOLDER.sub(value, text)
    return None if missing else filled


def list_credential_names(texts: Iterable[str]) -> set[str]:
    """The names of the credentials that ``${cred:NAME}`` in these texts refers to."""
    found = (each for text in texts for each in _PLACEHOLDER.findall(text))
    return {name for kind, name, _ in found if kind}


def list_variable_names(texts: Iterable[str]) -> set[str]:
    """The names of the variables that ``${NAME}`` in these texts refers to."""
    found = (each for text in texts for each in _PLACEHOLDER.findall(text))
    return {name for kind, name, _ in found if not kind}


def fill_pairs(
    pairs: Mapping[str, str],
    *,
    variables: Mapping[str, str],
    credential: Callable[[str], str | None],
) -> tuple[dict[str, str], list[str]]:
    """All values filled in; names whose value is missing are left out and returned beside."""
    filled = {
        name: fill(text, variables=variables, credential=credential) for name, text in pairs.items()
    }
    return {k: v for k, v in filled.items() if v is not None}, [
        k for k, v in filled.items() if v is None
    ]
