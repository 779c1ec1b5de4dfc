"""One entry of a registry's list: read, bounded, or refused with a reason.

Source: MCP Registry API v0.1 and the schema of server.json.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json

MOST_ENTRY_BYTES = 64 * 1024
MOST_KINDS = 8
OFFICIAL = "io.modelcontextprotocol.registry/official"
_NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", re.ASCII)
_KIND = re.compile(r"[a-z0-9-]{1,16}", re.ASCII)
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,254}", re.ASCII)


class Status(StrEnum):
    """What the registry says of an entry; ``gone``: it says nothing of it any more."""

    ACTIVE = "active"
    DEPRECATED = "deprecated"
    DELETED = "deleted"
    GONE = "gone"


class Unreadable(Exception):
    """The entry cannot be used; the text says why, without repeating what it holds."""


@dataclass(frozen=True, slots=True)
class RegistryListing:
    """One version of one server. ``document``: its server.json as canonical JSON.

    Which version is the newest the registry says as well, but not always again when that changes:
    it is worked out.
    """

    name: str
    version: str
    title: str
    description: str
    status: Status
    status_message: str
    published_at: datetime | None
    updated_at: datetime | None
    kinds: tuple[str, ...]
    document: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.document.encode()).hexdigest()


def read(item: object) -> RegistryListing:
    """An element of ``servers`` in a list. Raises Unreadable."""
    if not isinstance(item, dict) or not isinstance(server := item.get("server"), dict):
        raise Unreadable("it is not an entry with a 'server'")
    try:
        document = encode_canonical_json(server)
    except ValueError as error:
        raise Unreadable(
            "it contains numbers that are too large, or is nested too deeply"
        ) from error
    if len(document.encode()) > MOST_ENTRY_BYTES:
        raise Unreadable("it is longer than 64 KiB")
    packages = _read_object_list(server, "packages")
    remotes = _read_object_list(server, "remotes")
    if "version_detail" in server or any("registry_name" in each for each in packages):
        raise Unreadable("it has the format that was used before September 2025")
    meta = item.get("_meta")
    said = meta.get(OFFICIAL) if isinstance(meta, dict) else None
    said = said if isinstance(said, dict) else {}
    return RegistryListing(
        name=_read_name(server),
        version=_read_version(server.get("version")),
        title=_read_text(server, "title", 200),
        description=_read_text(server, "description", 1_000),
        status=_read_status(said.get("status")),
        status_message=clean_text(str(said.get("statusMessage") or ""), 500),
        published_at=_read_time(said.get("publishedAt")),
        updated_at=_read_time(said.get("updatedAt")),
        kinds=_list_package_kinds(packages, remotes),
        document=document,
    )


def _read_name(server: Mapping[str, Any]) -> str:
    name = server.get("name")
    if not isinstance(name, str) or not 3 <= len(name) <= 200 or not _NAME.fullmatch(name):
        raise Unreadable("its name does not have the form 'namespace/name'")
    return name


def _read_version(version: object) -> str:
    if not isinstance(version, str) or version == "latest" or not _VERSION.fullmatch(version):
        raise Unreadable("its version is not exact")
    return version


def _read_text(server: Mapping[str, Any], key: str, most: int) -> str:
    value = server.get(key) or ""
    if not isinstance(value, str):
        raise Unreadable(f"its {key} is not a text")
    return clean_text(value, most)


def _read_status(word: object) -> Status:
    if word is None:
        return Status.ACTIVE  # sub-registries may say nothing
    if word not in ("active", "deprecated", "deleted"):
        raise Unreadable("its status is unknown")
    return Status(word)


def _read_time(text: object) -> datetime | None:
    """The moment in UTC; None for what is none, or lies where no database can follow."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return at if 2000 <= at.year < 3000 else None


def _read_object_list(server: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    listed = server.get(key) or []
    if not isinstance(listed, list):
        raise Unreadable(f"its {key} are not a list")
    return [each for each in listed if isinstance(each, dict)]


def _list_package_kinds(
    packages: list[dict[str, Any]], remotes: list[dict[str, Any]]
) -> tuple[str, ...]:
    """Of which kinds its packages are, and ``remote``; kinds that this site does not install are
    there as well."""
    said = (each.get("registryType") for each in packages)
    kinds = {each for each in said if isinstance(each, str) and _KIND.fullmatch(each)}
    return tuple(sorted(kinds)[:MOST_KINDS]) + (("remote",) if remotes else ())
