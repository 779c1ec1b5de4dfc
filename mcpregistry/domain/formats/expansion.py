"""Fills in, once and at import, what a server's command line and an address take from the place of
import.

``env`` and ``headers`` keep their variables until the server is started, for they hold the secrets;
only ``${workspace}`` and ``${home}`` are filled in there. A variable whose name says that it is a
secret is never copied into a command line or an address: it waits for the start too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mcpregistry.domain.formats.document import Document, JsonObject, ServerEntry
from mcpregistry.domain.formats.notes import FormatReport, make_pointer
from mcpregistry.domain.formats.placeholders import expand
from mcpregistry.domain.text.secret_names import is_secret_name

_OWN = ("SLIPSNISSE_", "DJANGO_", "DATABASE_URL", "CELERY_")
_LATER = "Add the name of the variable to SLIPSNISSE_PASS_ENV. Then its value is inserted when the server starts."


def expand_document(
    document: Document, path: str, variables: Mapping[str, str], folders: Mapping[str, str]
) -> Document:
    """``variables``: the environment of whoever imports. ``folders``: values of ``workspace`` and
    ``home``."""
    report = FormatReport(path)
    servers = tuple(
        _expand_server(server, variables, folders, report) for server in document.servers
    )
    providers = {
        name: _expand_provider(name, entry, variables, report)
        for name, entry in document.model_providers.items()
    }
    return replace(document, servers=servers, model_providers=providers).add_notes(*report.notes)


def _expand_provider(
    name: str, entry: JsonObject, variables: Mapping[str, str], report: FormatReport
) -> JsonObject:
    """Its address; the key waits until a model is asked."""
    url, missing = expand(entry.get("base_url", ""), variables, is_guarded)
    if missing:
        at = make_pointer("providers", name)
        report.refuse(
            at,
            f"The address needs {missing[0]}, which is not set.",
            "Set the variable, or write the address without it.",
        )
    return {**entry, "base_url": url} if "base_url" in entry else entry


def _expand_server(
    entry: ServerEntry,
    variables: Mapping[str, str],
    folders: Mapping[str, str],
    report: FormatReport,
) -> ServerEntry:
    values = {**variables, **folders}

    def whole(text: str, key: str) -> str:
        filled, missing = expand(text, values, is_guarded)
        for name in missing:
            report.add(
                "kept", entry.at + make_pointer(key), f"The placeholder of {name} is kept.", _LATER
            )
        return filled

    def only_folders(pairs: Mapping[str, str]) -> dict[str, str]:
        return {key: _expand_folders(value, folders) for key, value in pairs.items()}

    made = replace(
        entry,
        command=tuple(whole(word, "command") for word in entry.command),
        cwd=whole(entry.cwd, "cwd"),
        url=whole(entry.url, "url"),
        env_file=_expand_folders(entry.env_file, folders),
        env=only_folders(entry.env),
        headers=only_folders(entry.headers),
    )
    if made.url.startswith("${"):
        remedy = "Set the variable before you import, or write the address without it."
        report.entry = entry.at
        report.refuse(
            entry.at + make_pointer("url"),
            "The address begins with a variable that is not set.",
            remedy,
        )
        report.entry = ""
    return made


def _expand_folders(text: str, folders: Mapping[str, str]) -> str:
    for name, value in folders.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def is_guarded(name: str) -> bool:
    """Whether a variable is never copied into a command line or an address: the site's own, or by
    its name a secret."""
    return name.startswith(_OWN) or is_secret_name(name)


def find_unresolved_folders(document: Document) -> Iterator[ServerEntry]:
    """The servers that speak of ``${workspace}`` where none was given."""
    for entry in document.servers:
        texts = [*entry.command, entry.cwd, entry.url, *entry.env.values(), *entry.headers.values()]
        if any("${workspace}" in text for text in texts):
            yield entry
