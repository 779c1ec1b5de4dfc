"""Container images (OCI) of registries: which are taken, and the command by which one is started.
Pure.

An image is started by its digest, never by a tag that somebody can move. It gets its environment,
its arguments and perhaps the network, and nothing else of this machine: no folder, no device, no
capability.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import clean_text

KIND = "oci"
_IMAGE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9.-]*(?::\d{1,5})?(?:/[a-z0-9][a-z0-9._-]*)+)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USE_DIGEST = "Enter sha256: followed by 64 hexadecimal digits (0-9 and a-f)."
_ENV = ("-e", "--env")
# What the container program itself goes by: an entry could lead it to another machine or make it
# start something.
_OF_THE_CLIENT = re.compile(
    r"PATH|HOME|TMPDIR|[A-Z]*_PROXY|LD_.*|SSL_CERT_.*|XDG_.*|DBUS_.*|GODEBUG|GOTRACEBACK|STORAGE_(?:DRIVER|OPTS|CONF)|"
    r"REGISTRY_AUTH_FILE|_?(?:DOCKER|BUILDKIT|BUILDX|COMPOSE|PODMAN|CONTAINERS?|CONMON|NOTIFY|LISTEN|MOBY|OCI)_.*",
    re.IGNORECASE,
)
OPTIONS = (
    "run",
    "--rm",
    "--interactive",
    "--init",
    "--read-only",
    "--tmpfs",
    "/tmp",  # noqa: S108 -- in the container
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--pids-limit",
    "256",
    "--memory",
    "512m",
)
# What a person is asked for besides what the entry names, as inputs of a registry's entry.
NETWORK = {
    "name": "network",
    "isRequired": True,
    "default": "none",
    "choices": ["none", "bridge"],
    "description": "With bridge, the container can reach the network, including the addresses of this machine.",
}
DIGEST = {
    "name": "digest",
    "isRequired": True,
    "description": "Digest of the image (sha256:…). It is required because a tag can change. To show it, run: docker buildx imagetools inspect IMAGE",
}
DIGEST_KEY = f"image {DIGEST['name']}"  # as an input of a way
_HUB = "registry-1.docker.io"  # where docker.io's images lie
_OWN_MACHINE = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3})(?::\d+)?")


@dataclass(frozen=True, slots=True)
class Image:
    """A tag of an image at its registry. As docker has it, this machine's own registries may go
    without TLS."""

    host: str
    path: str
    tag: str

    @property
    def schemes(self) -> tuple[str, ...]:
        """In which it, and who gives tokens for it, may be asked."""
        return ("https", "http") if _OWN_MACHINE.fullmatch(self.host) else ("https",)

    @property
    def base_url(self) -> str:
        """Of its registry's API."""
        return f"{self.schemes[-1]}://{_HUB if self.host == 'docker.io' else self.host}"


def find_tagged_image(identifier: str) -> Image | None:
    """Where to ask for the digest of its tag; None for what has a digest already. Raises
    ConfigInvalid as ``check_image``."""
    if check_image(identifier):
        return None
    found = _IMAGE.fullmatch(identifier)
    assert found
    host, _, path = found["name"].partition("/")
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return Image(host, path, found["tag"] or "latest")


def check_image(identifier: str) -> str:
    """Its digest; empty where it names a tag alone. Raises ConfigInvalid for what is no image's
    whole name."""
    found = _IMAGE.fullmatch(identifier)
    if found is None or len(identifier) > 500:
        raise ConfigInvalid(
            error_texts.say_not_valid(
                clean_text(identifier, 100), "a full image name that includes the registry"
            )
        )
    return found["digest"] or ""


def iterate_named_variables(
    runtime: Iterable[Mapping[str, Any]], variables: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The variables that the entry names, those of ``-e`` among them. Raises ConfigInvalid for
    anything else that it needs

    of the container program, such as a folder of this machine.
    """
    found = [*variables]
    for each in runtime:
        if each.get("name") in _ENV:
            name, equals, rest = str(each.get("value") or "").partition("=")
            found.append({**each, "name": name, **({"value": rest} if equals else {"value": None})})
        elif each.get("isRequired") is True:
            word = clean_text(str(each.get("name") or each.get("value") or "without a name"), 60)
            raise ConfigInvalid(
                f"The image needs the container option {word}, which would give it access to this machine."
            )
    for each in found:
        if _OF_THE_CLIENT.fullmatch(str(each.get("name") or "")):
            raise ConfigInvalid(
                f"The variable {clean_text(str(each['name']), 60)} would control the container program itself."
            )
        yield each


def find_started_image(command: Sequence[str]) -> tuple[str, str] | None:
    """(name, digest) of the image that a command of ours starts; None for every other command."""
    for word in command[1:] if command[1:2] == ["run"] else ():
        found = _IMAGE.fullmatch(word)
        if found and found["digest"]:
            return found["name"], found["digest"]
    return None


def parse_image_name(identifier: str) -> str:
    """Its name without tag and digest. Raises ConfigInvalid as ``check_image``."""
    check_image(identifier)
    found = _IMAGE.fullmatch(identifier)
    assert found
    return found["name"]


def replace_digest(command: Sequence[str], digest: str) -> list[str]:
    """The same command, with another digest of its image."""
    image = find_started_image(command)
    assert image
    name, before = image
    return [
        f"{name}@{digest}" if word.startswith(name) and word.endswith(f"@{before}") else word
        for word in command
    ]


def build_run_command(
    program: str,
    identifier: str,
    asked: Mapping[str, str],
    env: Iterable[str],
    words: Iterable[str],
) -> list[str]:
    """The words that start it. ``asked``: digest and network; ``env``: names, whose values go by
    the environment.

    Raises ConfigInvalid for a digest that is none.
    """
    found = _IMAGE.fullmatch(identifier)
    digest = (found and found["digest"]) or asked.get("digest", "")
    if found is None or not _DIGEST.fullmatch(digest):
        raise ConfigInvalid("The image's digest is not valid.", remedy=_USE_DIGEST)
    passed = [word for name in sorted(env) for word in ("--env", name)]
    return [
        program,
        *OPTIONS,
        "--network",
        asked["network"],
        *passed,
        f"{found['name']}@{digest}",
        *words,
    ]
