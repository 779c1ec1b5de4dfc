"""Bundles (MCPB): what their ``manifest.json`` says, and the lock that is made of it.

Source: the manifest's specification,
https://github.com/modelcontextprotocol/mcpb/blob/main/MANIFEST.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain import error_texts
from mcpregistry.domain.installs.lock import Locked, LockRefused, PackageLock, check_size
from mcpregistry.domain.installs.names import Ecosystem
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json

FILE = "manifest.json"
MOST_MANIFEST = 1 << 20
MOST_WORDS = 200
MOST_SETTINGS = 50
FOLDER = "${__dirname}"
SETTING = re.compile(r"\$\{user_config\.([A-Za-z0-9_.-]{1,100})\}")
_KEPT = (
    "manifest_version",
    "dxt_version",
    "name",
    "version",
    "license",
    "server",
    "user_config",
    "compatibility",
)
_PROGRAMS = {"node": "node", "node.exe": "node", "python": "python", "python3": "python"}
_OTHER = re.compile(r"\$\{(?!user_config\.)[^}]*\}|\$\{user_config\.[^}]*[^A-Za-z0-9_.}-][^}]*\}")
_TELL = "Report this problem to the developers of the bundle, or choose another install option."


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of ``user_config``: what a person is asked for. ``many``: one value a line."""

    key: str
    title: str
    description: str
    kind: str
    required: bool
    sensitive: bool
    default: str
    many: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """How the bundle's server is started. ``program``: node, python, or empty where the first word
    is a file of its own.

    ``words``: behind the program, and ``env``: both with ``${__dirname}`` and
    ``${user_config.KEY}`` as they were written.
    """

    name: str
    version: str
    licence: str
    program: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    settings: tuple[Setting, ...]

    @property
    def fixed(self) -> tuple[str, ...]:
        """The words before the first for which a person is asked; an option goes with its value."""
        for number, word in enumerate(self.words):
            if SETTING.search(word):
                return self.words[
                    : number - 1 if number and self.words[number - 1].startswith("-") else number
                ]
        return self.words


def write_lock(address: str, sha256: str, size: int, manifest: Mapping[str, Any]) -> str:
    """The text of a lock: exactly this file, with what of its manifest says how it is started."""
    kept = {name: manifest[name] for name in _KEPT if name in manifest}
    return encode_canonical_json(
        {"bundle": address, "sha256": sha256, "size": size, "manifest": kept}
    )


def read(text: str, package: str) -> PackageLock:
    """The lock of one bundle, which holds all that it needs. Raises LockRefused."""
    check_size(text)
    said = json.loads(text)
    if said["bundle"] != package:
        raise LockRefused(
            "The lock belongs to another bundle.", remedy="Request the installation again."
        )
    told = read_manifest(said["manifest"])
    top = Locked(told.name, told.version, (f"sha256:{said['sha256']}",), told.licence)
    return PackageLock(Ecosystem.MCPB, top, (top,))


def read_locked_manifest(text: str) -> Manifest:
    """How the bundle of this lock is started."""
    return read_manifest(json.loads(text)["manifest"])


def parse(raw: bytes) -> Mapping[str, Any]:
    """``manifest.json`` as an object. Raises LockRefused."""
    try:
        found = json.loads(raw)
        encode_canonical_json(found)
    except (ValueError, RecursionError) as error:
        raise LockRefused("The bundle's manifest.json is not valid JSON.", remedy=_TELL) from error
    if not isinstance(found, dict):
        raise LockRefused("The bundle's manifest.json is not a JSON object.", remedy=_TELL)
    return found


def read_manifest(said: Mapping[str, Any]) -> Manifest:
    """What of it counts here. Raises LockRefused for what cannot be started here as it is."""
    try:
        return _build_manifest(said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LockRefused(
            "The bundle's manifest.json does not follow the bundle format.", remedy=_TELL
        ) from error


def _build_manifest(said: Mapping[str, Any]) -> Manifest:
    server = said["server"]
    if server.get("type") == "uv":
        raise LockRefused(
            "This site does not install bundles of the type uv, because such a bundle downloads its Python packages at each start.",
            remedy="Install the server's PyPI package instead.",
        )
    platforms = said.get("compatibility", {}).get("platforms", ["linux"])
    if "linux" not in platforms:
        raise LockRefused(
            f"The bundle does not support Linux. Its platforms are: {clean_text(', '.join(platforms), 100) or 'none'}.",
            remedy=_TELL,
        )
    launch = server["mcp_config"]
    launch = {**launch, **launch.get("platform_overrides", {}).get("linux", {})}
    program, words = _read_program(
        [_read_text(launch["command"]), *map(_read_text, launch.get("args", []))]
    )
    env = {_read_text(name): _read_text(value) for name, value in launch.get("env", {}).items()}
    found = Manifest(
        clean_text(_read_text(said["name"]), 200),
        clean_text(_read_text(said["version"]), 100),
        clean_text(str(said.get("license") or ""), 100),
        program,
        words,
        env,
        _read_settings(said.get("user_config", {})),
    )
    _check(found)
    return found


def _read_program(words: list[str]) -> tuple[str, tuple[str, ...]]:
    first, *rest = words
    if first in _PROGRAMS:
        return _PROGRAMS[first], tuple(rest)
    if first.startswith(f"{FOLDER}/"):
        return "", tuple(words)
    raise LockRefused(
        f"The bundle starts the program '{clean_text(first, 100)}'. A bundle can start only node, python or a program in the bundle.",
        remedy=_TELL,
    )


def _check(manifest: Manifest) -> None:
    texts = [*manifest.words, *manifest.env.values(), *(each.default for each in manifest.settings)]
    if len(texts) > MOST_WORDS or len(manifest.settings) > MOST_SETTINGS:
        raise LockRefused(
            f"The bundle is too large to be reviewed. Its command, environment and default values can have at most {MOST_WORDS:,} words, and it can have at most {MOST_SETTINGS:,} settings.",
            remedy=_TELL,
        )
    if out := next(
        (text for text in texts if FOLDER in text and ".." in re.split(r"[/\\\\]", text)), ""
    ):
        raise LockRefused(
            f"The bundle refers to the path {clean_text(out, 100)}, which is outside of the bundle's folder.",
            remedy=_TELL,
        )
    left = [text.replace(FOLDER, "") for text in texts]
    if odd := next((match[0] for text in left if (match := _OTHER.search(text))), ""):
        raise LockRefused(
            f"The bundle uses the placeholder {clean_text(odd, 100)}, which this site does not support.",
            remedy=_TELL,
        )
    known = {each.key for each in manifest.settings}
    if unknown := {key for text in texts for key in SETTING.findall(text)} - known:
        raise LockRefused(
            f"The bundle uses the setting {clean_text(min(unknown), 100)}, but does not define it.",
            remedy=_TELL,
        )
    if not any(word.startswith(f"{FOLDER}/") for word in manifest.fixed):
        raise LockRefused("The program that the bundle starts is not in the bundle.", remedy=_TELL)


def _read_settings(said: Mapping[str, Any]) -> tuple[Setting, ...]:
    return tuple(_read_setting(_read_text(key), raw) for key, raw in said.items())


def _read_setting(key: str, raw: Mapping[str, Any]) -> Setting:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", key):
        raise LockRefused(
            error_texts.say_not_valid(clean_text(key, 100), "a valid name of a setting"),
            remedy=_TELL,
        )
    sensitive = raw.get("sensitive") is True
    many = raw.get("multiple") is True
    default = raw.get("default")
    if isinstance(default, list):
        lines = default
    elif default is None:
        lines = []
    else:
        lines = [default]
    said = "\n".join(
        str(each).lower() if isinstance(each, bool) else clean_text(str(each), 500)
        for each in lines
    )
    # Defaults name folders of somebody's desktop (${HOME}…): nothing is proposed then.
    proposed = "" if sensitive or "${" in said else said
    return Setting(
        key,
        clean_text(str(raw.get("title") or key), 100),
        clean_text(str(raw.get("description") or ""), 500),
        clean_text(str(raw.get("type") or "string"), 20),
        raw.get("required") is True,
        sensitive,
        proposed,
        many,
    )


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
