"""Read the configuration file of a directory for ``runmcp --workspace``. Nothing is saved or
started here.

The content that a person confirms is each server as it would be started or reached: with its
folders, and with the variables of the host's environment in commands and addresses. Variables in
``env`` and ``headers`` stay references.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats.document import Document, ServerEntry
from mcpregistry.domain.formats.expansion import expand_document, is_guarded
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.project_files import PROJECT_FILES
from mcpregistry.domain.servers.launch import list_variable_names
from mcpregistry.domain.servers.redacted_env import redact_env
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.redaction import mask_words
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.exchange.files import map_folder_variables, read_file
from mcpregistry.services.exchange.importing import read_document

MOST_BYTES = 1024 * 1024
_LONGEST_DIRECTORY = 1000
_LONGEST_LINE = 4_000  # a person must be able to read it before the confirmation
_MOST_SERVERS = 100


class ProjectFileUnusable(ConfigInvalid):
    """The file of a directory cannot be used. The message names the place of the error."""


@dataclass(frozen=True, slots=True)
class ProjectReading:
    """The servers of a directory's file, as they were read.

    ``content``: the hash that a person confirms, with the site's key. ``entries``: by the key of
    each server its digest, what it starts or reaches in full, and the masked values of its
    environment, which may all hold secrets. ``variables``: those in commands and addresses, with
    the values that were filled in. ``summary``: a line for each server, without secrets.
    """

    directory: Path
    path: Path
    format: str
    raw: bytes = field(repr=False)
    content: str
    entries: Mapping[str, Mapping[str, str]] = field(repr=False)
    summary: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)

    @property
    def folders(self) -> dict[str, str]:
        return map_folder_variables(self.path, self.directory)


def resolve_directory(name: str | Path) -> Path:
    """The directory with all links followed. Raises ProjectFileUnusable if it cannot have a
    confirmation."""
    directory = Path(os.path.realpath(name))
    if not directory.is_dir():
        raise ProjectFileUnusable(
            f"{directory} is not a directory.", remedy="Enter the directory of the project."
        )
    try:
        len(str(directory).encode())
    except UnicodeEncodeError:
        raise ProjectFileUnusable(
            f"The name of the directory {show_invisible_characters(str(directory))} is not valid UTF-8.",
            remedy="Rename the directory.",
        ) from None
    if len(str(directory)) > _LONGEST_DIRECTORY:
        raise ProjectFileUnusable(
            f"The path of the directory is longer than {_LONGEST_DIRECTORY} characters.",
            remedy="Use a shorter path.",
        )
    return directory


def read_project(directory: Path, environ: Mapping[str, str]) -> ProjectReading | None:
    """Read the directory's file. Returns None if no file of the directory declares servers.

    ``environ``: where variables in commands and addresses take their values from. Raises
    ProjectFileUnusable.
    """
    for name in PROJECT_FILES:
        path = directory / name
        if not path.is_file():
            continue
        _check_owners(directory, path)
        found, document, raw = _read(path)
        if not (document := select_foreign_servers(document)).servers:
            continue
        variables = _collect_launch_variables(document.servers, environ)
        document = expand_document(
            document, str(path), variables, map_folder_variables(path, directory)
        )
        servers = _drop_unusable_entries(document, path, found).servers
        entries = {entry.key: _describe_sealed_parts(entry) for entry in servers}
        return ProjectReading(
            directory=directory,
            path=path,
            format=found.name,
            raw=raw,
            content=compute_keyed_digest(
                "project file", str(directory), str(path), encode_lossy_json(entries)
            ),
            entries=entries,
            summary=tuple(
                _describe_server(entry) for entry in sorted(servers, key=lambda entry: entry.key)
            ),
            variables=variables,
        )
    return None


def select_foreign_servers(document: Document) -> Document:
    """The servers of a project's file, without the entries that start or reach this site itself.

    The same file often has the host's entry for ``runmcp``. If it were started from here, it would
    start itself again.
    """
    servers = tuple(entry for entry in document.servers if not _is_this_site(entry))
    return Document(servers=servers, inputs=document.inputs, notes=document.notes)


def _is_this_site(entry: ServerEntry) -> bool:
    return any("runmcp" in word for word in entry.command) or entry.url.startswith(
        f"{settings.SITE_URL}/mcp/"
    )


def _check_owners(directory: Path, path: Path) -> None:
    """Refuse a file that another user of the machine can change, or whose directory they can."""
    for place in dict.fromkeys((directory, path.parent, path)):
        facts = place.stat()
        if facts.st_uid not in (os.geteuid(), 0):
            raise ProjectFileUnusable(
                f"{show_invisible_characters(str(place), 500)} belongs to another user of this machine.",
                remedy="Start the host as that user, or use your own copy of the directory.",
            )
        if facts.st_mode & stat.S_IWOTH:
            raise ProjectFileUnusable(
                f"Every user of this machine can change {show_invisible_characters(str(place), 500)}.",
                remedy=f"Run: chmod o-w {shlex.quote(show_invisible_characters(str(place), 500))}",
            )


def _read(path: Path) -> tuple[Format, Document, bytes]:
    try:
        raw = read_file(path)
    except OSError as error:
        raise ProjectFileUnusable(
            f"{path} cannot be read: {error.strerror}.",
            remedy="Check the name and the permissions of the file.",
        ) from None
    if len(raw) > MOST_BYTES:
        raise ProjectFileUnusable(
            f"{path} is larger than 1 MiB.",
            remedy="Remove everything except the MCP servers from the file.",
        )
    try:
        found, document = read_document(raw, str(path))
    except FileInvalid as error:
        raise ProjectFileUnusable(error.message, remedy=error.remedy) from None
    return found, document, raw


def _drop_unusable_entries(document: Document, path: Path, found: Format) -> Document:
    """Without entries that cannot be used, as an import leaves them out."""
    if found.family != "slipsnisse":
        document = document.drop_refused_entries()
    if document.refused:
        note = found.spell_notes(document.refused)[0]
        raise ProjectFileUnusable(
            f"{path}: {note.pointer or '/'}: {note.sentence}", remedy=note.remedy
        )
    if len(document.servers) > _MOST_SERVERS:
        raise ProjectFileUnusable(
            f"{path} declares {len(document.servers)} servers, but a project file can have at most {_MOST_SERVERS}.",
            remedy="Import the file with `manage.py importconfig` instead.",
        )
    for entry in document.servers:
        if len(_describe_server(entry)) + len(_list_hidden_environment(entry)) > _LONGEST_LINE:
            raise ProjectFileUnusable(
                f"{path}: {entry.at}: The declaration of the server has more than {_LONGEST_LINE} characters, which is too long to review.",
                remedy="Move long scripts from the declaration to separate files.",
            )
    return document


def _collect_launch_variables(
    servers: Iterable[ServerEntry], environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables in commands, working directories and addresses, as far as they have a value that is
    not secret."""
    names = {
        name
        for entry in servers
        for name in list_variable_names((*entry.command, entry.cwd, entry.url))
    } - {"workspace", "home"}
    return {
        name: environ[name]
        for name in sorted(names)
        if _has_value(environ, name) and not is_guarded(name)
    }


def _has_value(environ: Mapping[str, str], name: str) -> bool:
    try:
        return bool(environ.get(name, "").encode())
    except UnicodeEncodeError:
        return False


def _describe_project(entry: ServerEntry) -> dict[str, Any]:
    columns = replace(entry, oauth=None).columns()
    return columns | {"oauth": asdict(entry.oauth) if entry.oauth else None}


def _describe_server(entry: ServerEntry) -> str:
    """One line about a server: its command or address, environment and variables. Secrets are
    masked."""
    if entry.command:
        parts = [" ".join(shlex.quote(word) for word in mask_words(list(entry.command)))]
    else:
        parts = mask_words([entry.url])
    if entry.cwd:
        parts.append(f"in {entry.cwd}")
    if entry.env:
        shown = redact_env(entry.env)
        parts.append(
            "environment: "
            + ", ".join(
                name if value is None else f"{name}={value}" for name, value in shown.items()
            )
        )
    if entry.headers:
        parts.append("headers: " + ", ".join(sorted(entry.headers)))
    if names := sorted(
        list_variable_names(
            (*entry.command, entry.url, *entry.env.values(), *entry.headers.values())
        )
    ):
        parts.append("uses from the environment of the host: " + ", ".join(names))
    if not entry.enabled:
        parts.append("disabled in the file")
    return show_invisible_characters(f"{entry.key}: {'; '.join(parts)}")


def _describe_sealed_parts(entry: ServerEntry) -> dict[str, str]:
    """What is kept sealed of an entry, for whoever may confirm it."""
    return {
        "digest": hash_parts("entry", encode_lossy_json(_describe_project(entry))),
        "launch": _format_launch(entry),
        "environment": _list_hidden_environment(entry),
    }


def _list_hidden_environment(entry: ServerEntry) -> str:
    """The values of the environment that are masked in the summary: they could hide what a program
    loads."""
    shown = redact_env(entry.env)
    hidden = {name: value for name, value in entry.env.items() if shown[name] != value}
    return show_invisible_characters(
        " ".join(f"{name}={shlex.quote(hidden[name])}" for name in sorted(hidden))
    )


def _format_launch(entry: ServerEntry) -> str:
    """The command or the address in full: a word that only looks like a secret could hide what a
    command does."""
    return show_invisible_characters(shlex.join(entry.command) if entry.command else entry.url)
