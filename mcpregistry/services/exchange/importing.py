"""Configuration files into the database.

Invariants: one file is one transaction, and if the file is refused nothing is written; an entry
that cannot be used is left out with a note; import starts nothing, a new server is a draft and one
whose launch changed becomes a draft again; nothing that a file says is dropped in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from django.db import transaction

from mcpregistry.domain import formats
from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.document import Document, ServerEntry
from mcpregistry.domain.formats.expansion import expand_document, unresolved_folders
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.keys import slug
from mcpregistry.domain.formats.notes import Action, FileInvalid, Note, pointer
from mcpregistry.domain.formats.pasted.secrets import Secret, taken_out
from mcpregistry.domain.rights import Rights, no_rights
from mcpregistry.domain.servers.launch import credentials_named
from mcpregistry.domain.text.canonical import digest
from mcpregistry.models import ImportedFile, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange.files import project_folder
from mcpregistry.services.exchange.kept_secrets import (
    REMEDY,
    SCOPE_REMEDY,
    add_credentials,
    keep_secrets,
    secrets_in,
)
from mcpregistry.services.exchange.large import reduced
from mcpregistry.services.exchange.policy import (
    APPLIED,
    FOLLOWED,
    WAITING,
    follow_file,
    known,
)
from mcpregistry.services.exchange.rest import together, with_servers_renamed
from mcpregistry.services.exchange.rows import brought_by, entry_of, fill_row, free_name, shown
from mcpregistry.services.exchange.sections import (
    CONFLICT,
    NOT_ITS_OWN,
    Change,
    OnConflict,
    Taking,
    sections,
)
from mcpregistry.services.exchange.workspaces import KIND, Choice, Offer, take_projects
from mcpregistry.services.records import audit
from mcpregistry.services.servers.lifecycle import disable_server, enable_server, save_server

_STRICT = "slipsnisse"  # our own format is taken whole or not at all
_WAITING = {
    "env_file": "Kept, but the file is not read. Add its variables to env.",
    "tools_allowed": "Kept, but not applied. Grants decide which tools are offered.",
    "oauth": "Kept for OAuth, but not applied yet. You can send a token in a header.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """``saved`` is False for a dry run and whenever a note is refused: then the database is as it
    was.

    ``left_out``: names of servers whose entries could not be used. ``projects``: the workspaces
    that it offers.
    """

    path: str
    format: str
    notes: tuple[Note, ...]
    changes: tuple[Change, ...] = ()
    saved: bool = False
    left_out: frozenset[str] = frozenset()
    projects: tuple[Offer, ...] = ()

    @property
    def mark(self) -> str:
        """What names the difference, for ``import_file`` to make this one and no other; without
        workspaces."""
        return digest(
            replace(self, changes=tuple(each for each in self.changes if each.kind != KIND)).diff()
        )

    @property
    def refused(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.action == "refused")

    def diff(self) -> str:
        """A unified diff of the records, as text; empty when the file changes nothing."""
        parts = []
        for change in self.changes:
            before, after = (
                text.dump({change.label: dict(side)}, as_yaml=True)
                for side in (change.before, change.after)
            )
            lines = difflib.unified_diff(
                before.splitlines() if change.before else [],
                after.splitlines() if change.action != "skipped" else before.splitlines(),
                f"now/{change.label}",
                f"file/{change.label}",
                lineterm="",
            )
            parts += [
                *lines,
                *([f"# {change.label}: hidden values differ"] if change.secrets_changed else []),
            ]
        return "".join(f"{line}\n" for line in parts)


def import_file(
    *,
    raw: bytes,
    path: str,
    actor: str,
    format_name: str = "",
    on_conflict: OnConflict = "error",
    variables: Mapping[str, str] | None = None,
    folders: Mapping[str, str] | None = None,
    save: bool = True,
    may_rule: bool = False,
    may_grant: bool = False,
    seen: str | None = None,
    may_be_empty: bool = False,
    secrets_apart: bool = False,
    workspaces: Choice | None = None,
    narrowed: Callable[[Document], Document] | None = None,
    rights: Rights = no_rights,
) -> Outcome:
    """Read a file and make rows of its servers, and of what other apps know. What it says wrongly
    is no exception, but in ``Outcome.refused``. An entry that cannot be used is left out with a
    note, except in a file of our own format.

    ``variables``: environment of whoever imports, None keeps every placeholder as it is.
    ``folders``: what ``workspace`` and ``home`` mean. ``save=False`` does everything, then takes it
    back. ``may_rule``: whoever imports may change policy rules, so what the file approves ahead
    counts. ``may_grant``: may grant, so its expert tools are made; for others they are kept.
    ``on_conflict="own"`` replaces what a file of this path has brought, and no more. ``seen``: the
    ``mark`` of the difference that a person has looked at; another is not saved. ``may_be_empty``:
    a file without servers is not refused. ``secrets_apart``: what looks like a secret becomes a
    credential of its server. ``workspaces``: which projects of the file become workspaces; none by
    default. ``narrowed``: takes parts of the file away; then the file shares no server with others.
    ``rights``: for names that rules read and for credentials.
    """
    try:
        found, document = read_document(raw, path, format_name)
    except FileInvalid as error:
        return Outcome(path, format_name, (error.note,))
    if narrowed is not None:
        document = narrowed(document)
    if variables is not None:
        document = _expanded(document, path, variables, folders or {})
    if found.family != _STRICT:
        document = document.leaving_out()
    if document.refused:
        return Outcome(path, found.name, found.in_its_words(document.notes))
    with transaction.atomic(), audit.together():
        run = _Import(
            document, path, found, on_conflict, actor, may_rule=may_rule, may_grant=may_grant
        )
        run.keeps_secrets = secrets_apart
        run.workspaces = workspaces or Choice()
        run.shares_nothing = narrowed is not None
        run.rights = rights
        run.all()
        if not run.changes and not may_be_empty and not _has_more(document):
            run.nothing()
        notes = found.in_its_words((*document.notes, *run.notes))
        left_out = _names_left_out(document, run)
        outcome = Outcome(
            path, found.name, notes, tuple(run.changes), left_out=left_out, projects=run.projects
        )
        saved = save and not outcome.refused and seen in (None, outcome.mark)
        transaction.set_rollback(not saved)
    return replace(outcome, saved=saved)


def read_document(raw: bytes, path: str, format_name: str = "") -> tuple[Format, Document]:
    """Format and content of a file of up to 50 MiB, with everything that its entries say wrongly as
    refused notes.

    Raises ``FileInvalid`` for a file that cannot be read at all.
    """
    return formats.read(reduced(raw, path), path, format_name)


def _has_more(document: Document) -> bool:
    """Whether the file holds anything but servers that an import keeps."""
    return any(
        (
            document.expert_tools,
            document.model_providers,
            document.providers,
            document.defaults,
            document.flags,
        )
    )


def _names_left_out(document: Document, run: _Import) -> frozenset[str]:
    """What servers are called whose entries were left out: the last part of their place."""
    notes = (*document.notes, *run.notes)
    places = {note.entry for note in notes if note.action == "left out" and note.entry}
    return frozenset(
        slug(place.rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")) for place in places
    )


def _expanded(
    document: Document, path: str, variables: Mapping[str, str], folders: Mapping[str, str]
) -> Document:
    expanded = expand_document(document, path, variables, folders)
    why = "The workspace of the server is not known."
    remedy = "Enter the directory with --workspace DIRECTORY."
    places = (entry.at for entry in unresolved_folders(expanded))
    return expanded.with_notes(*(Note("refused", path, at, why, remedy, entry=at) for at in places))


class _Import:
    """One file on its way into the database, inside one transaction."""

    def __init__(
        self,
        document: Document,
        path: str,
        found: Format,
        on_conflict: OnConflict,
        actor: str,
        *,
        may_rule: bool,
        may_grant: bool,
    ) -> None:
        self.may_rule = may_rule
        self.may_grant = may_grant
        self.document = document
        self.path = path
        self.format = found
        self.on_conflict = on_conflict
        self.actor = actor
        self.notes: list[Note] = []
        self.changes: list[Change] = []
        self.renamed: dict[str, str] = {}
        self.keeps_secrets = False
        self.shares_nothing = False
        self.workspaces = Choice()
        self.rights: Rights = no_rights
        self.projects: tuple[Offer, ...] = ()
        self._rows: dict[str, Server] = {}  # by the key in the document

    def all(self) -> None:
        rows = {server.slug: server for server in Server.objects.select_for_update()}
        for position, entry in enumerate(self.document.servers):
            self._server(entry, position, rows)
        self._credentials()
        self._flags()
        self._rest()
        self.projects = take_projects(
            self.document.projects,
            self._rows,
            self.workspaces,
            actor=self.actor,
            note=self._note,
            changed=self.changes.append,
        )
        counts = {
            action: sum(change.action == action for change in self.changes)
            for action in ("created", "changed")
        }
        if any(counts.values()):
            audit.record(
                kind="configuration.imported",
                actor=self.actor,
                subject=f"file:{self.path}",
                format=self.format.name,
                **counts,
            )

    def _rest(self) -> None:
        """What belongs to no server: other apps take their part, what is left is kept as it
        stands."""
        tools = tuple(
            with_servers_renamed(tool, self.renamed) for tool in self.document.expert_tools
        )
        document = replace(self.document, expert_tools=tools)
        family = self.format.family
        row = ImportedFile.objects.select_for_update().filter(
            family=family
        ).first() or ImportedFile(family=family)
        before = dict(row.rest)
        owned = before.get("brought", {})
        taking = Taking(
            variant=self.format.name,
            actor=self.actor,
            on_conflict=self.on_conflict,
            may_grant=self.may_grant,
            own=frozenset(owned.get(self.path, ())),
            note=self._note,
            changed=self.changes.append,
        )
        for section in sections():
            document = section.take(document, taking)
        # By path, so that a file may later replace what is its own.
        made = sorted(
            c.label
            for c in self.changes
            if c.kind != "server" and c.action in ("created", "changed")
        )
        if made:
            owned = {path: sorted({*names} - {*made}) for path, names in owned.items()}
            owned[self.path] = sorted({*owned.get(self.path, ()), *made})
        rest = together(before, document, family) | {"brought": owned}
        if rest != before:
            row.rest = rest
            row.path = self.path
            row.save()

    def _note(
        self, action: Action, at: str, sentence: str, remedy: str = "", *, entry: str = ""
    ) -> None:
        self.notes.append(Note(action, self.path, at, sentence, remedy, entry=entry))

    def nothing(self) -> None:
        """Refuse a file without servers."""
        sentence = f"The file contains no servers to import. It was read as {self.format.title}."
        self._note(
            "refused", "", sentence, "Choose the file that contains the servers, or another format."
        )

    def _server(self, entry: ServerEntry, position: int, rows: dict[str, Server]) -> None:
        key = entry.key
        if self.on_conflict == "own":
            entry = self._under_own_name(entry, position, rows)
        old = rows.get(entry.key)
        entry, secrets = taken_out(entry) if self.keeps_secrets else (entry, ())
        if old and self.on_conflict == "rename" and self._differs(old, entry, position):
            free = free_name(entry.key, rows)
            self._note(
                "translated",
                entry.at,
                f"Another server has this name. This server gets the name {free}.",
            )
            self.renamed[entry.key] = free
            entry = replace(entry, key=free)
            old = None
        row = old or Server(slug=entry.key)
        if old and entry.auto_approve is False:  # silence leaves it as it is
            entry = replace(entry, auto_approve=known(old).auto_approve)
        own = old is not None and brought_by(old) == self.path
        change = self._filled(row, entry, position, old)
        if old and change.action == "changed" and not self._may_replace(own=own):
            self._conflict(entry, change)
            self._rows[key] = old
            return
        if not old or change.action == "changed":
            row.extra = {**row.extra, "file": self.path, "in_file": key}
        if not self._save(row, entry, change):
            return
        self._keep(secrets, row, entry)
        self._approve_ahead(row, entry)
        self._note_what_waits(entry)
        rows[entry.key] = row
        self._rows[key] = row

    def _under_own_name(
        self, entry: ServerEntry, position: int, rows: Mapping[str, Server]
    ) -> ServerEntry:
        """A server belongs to its file: if one of another file has its name and differs, it gets
        another name, and keeps that."""
        own = (
            row.slug
            for row in rows.values()
            if brought_by(row) == self.path and row.extra.get("in_file") == entry.key
        )
        name = next(own, "")
        old = rows.get(entry.key)
        is_foreign = old is not None and brought_by(old) != self.path
        if (
            not name
            and old
            and is_foreign
            and (self.shares_nothing or self._differs(old, entry, position))
        ):
            name = free_name(
                f"{entry.key[:40]}-{slug(project_folder(self.path).lower())[:18]}".rstrip("-"), rows
            )
            self._note(
                "translated",
                entry.at,
                f"Another server has this name. This server gets the name {name}.",
            )
        if not name or name == entry.key:
            return entry
        self.renamed[entry.key] = name
        return replace(entry, key=name)

    def _filled(self, row: Server, entry: ServerEntry, position: int, old: Server | None) -> Change:
        """Write the entry into the row, unsaved; how that differs from what the row said."""
        before, env = (known(old), (old.env, old.headers)) if old else (None, ({}, {}))
        fill_row(row, entry, source=self.format.name, position=position)
        _switch(row, entry, stated=self._states_enabled(entry))
        return _change(before, entry_of(row), hidden=bool(old) and env != (row.env, row.headers))

    def _note_what_waits(self, entry: ServerEntry) -> None:
        for column, sentence in _WAITING.items():
            if getattr(entry, column) not in ("", False, None):
                self._note("parked", entry.at + pointer(column), sentence)

    def _differs(self, old: Server, entry: ServerEntry, position: int) -> bool:
        probe = Server.objects.get(pk=old.pk)
        before = known(probe).columns()
        if entry.auto_approve is False:
            entry = replace(entry, auto_approve=known(probe).auto_approve)
        fill_row(probe, entry, source=probe.source, position=position)
        return entry_of(probe).columns() != before

    def _may_replace(self, *, own: bool) -> bool:
        return self.on_conflict in ("replace", "rename") or (self.on_conflict == "own" and own)

    def _states_enabled(self, entry: ServerEntry) -> bool:
        return any({"enabled", "disabled"} & set(parked.order) for parked in entry.parked.values())

    def _conflict(self, entry: ServerEntry, change: Change) -> None:
        if self.on_conflict == "skip":
            self.changes.append(replace(change, action="skipped"))
            self._note(
                "parked", entry.at, "A different server with this name exists. It was not changed."
            )
            return
        remedy = NOT_ITS_OWN if self.on_conflict == "own" else CONFLICT
        self._note("refused", entry.at, "A different server with this name exists.", remedy)
        self.changes.append(change)

    def _save(self, row: Server, entry: ServerEntry, change: Change) -> bool:
        """Whether the row stands as the file wants it."""
        self.changes.append(change)
        if change.action == "unchanged":
            # Only what the file's format alone knows may be new; that is no change of the server.
            Server.objects.filter(pk=row.pk).update(sealed_extra=row.sealed_extra)
            return True
        is_new = row._state.adding
        is_wanted = row.enabled
        try:
            save_server(server=row, actor=self.actor, rights=self.rights)
        except (ConfigInvalid, Denied) as error:
            if self.format.family == _STRICT or len(self.document.servers) == 1:
                self._note("refused", entry.at, error.message, error.remedy)
            else:
                self.changes.remove(change)
                self._note("left out", entry.at, error.message, error.remedy, entry=entry.at)
            return False
        if not is_new and row.enabled != is_wanted:
            switch = enable_server if is_wanted else disable_server
            row.lifecycle = switch(server=row, actor=self.actor).lifecycle
        return True

    def _keep(self, secrets: tuple[Secret, ...], row: Server, entry: ServerEntry) -> None:
        try:
            keep_secrets(secrets, row.slug, self.actor)
        except ConfigInvalid as error:
            self._note("refused", entry.at, error.message, error.remedy)
        if (
            self.format.family != _STRICT
            and not self.keeps_secrets
            and (found := secrets_in(entry))
        ):
            self._note("kept", entry.at, found, REMEDY)

    def _approve_ahead(self, row: Server, entry: ServerEntry) -> None:
        told = follow_file(
            server=row, approved=entry.auto_approve, actor=self.actor, may_rule=self.may_rule
        )
        if told:
            self._note(
                "translated" if told == APPLIED else "parked",
                entry.at + pointer("auto_approve"),
                told,
            )

    def _flags(self) -> None:
        for name, follow in FOLLOWED.items():
            wanted = self.document.flags.get(name)
            if wanted is not None and (
                told := follow(wanted=wanted, actor=self.actor, may_rule=self.may_rule)
            ):
                self._note("parked" if told in WAITING else "translated", pointer(name), told)

    def _credentials(self) -> None:
        """Every prompt of the file is a credential that waits for its value."""
        inputs = {
            str(item["id"]): str(item.get("description", "")) for item in self.document.inputs
        }
        if unusable := add_credentials(
            inputs, self._places_of, actor=self.actor, rights=self.rights
        ):
            self._note(
                "parked",
                pointer("inputs"),
                f"No server can use {', '.join(unusable)} yet.",
                SCOPE_REMEDY,
            )

    def _places_of(self, credential: str) -> list[str]:
        """A credential that a file brings, without a value so far, is meant for the servers that it
        brings with it."""
        named = [change.slug for change in self.changes if change.kind == "server"]
        rows = Server.objects.filter(slug__in=named)
        return [
            f"server:{row.slug}" for row in rows if credential in credentials_named(row.texts())
        ]


def _switch(row: Server, entry: ServerEntry, *, stated: bool) -> None:
    """Disable what the file disables; enable again only where the file says so in as many words."""
    if not entry.enabled:
        row.lifecycle = Lifecycle.DISABLED
    elif stated and row.lifecycle == Lifecycle.DISABLED:
        row.lifecycle = Lifecycle.ACTIVE if row.launch_confirmed else Lifecycle.DRAFT


def _change(before: ServerEntry | None, after: ServerEntry, *, hidden: bool) -> Change:
    if before is None:
        return Change(after.key, "created", {}, shown(after))
    same = before.columns() == after.columns()
    return Change(
        after.key, "unchanged" if same else "changed", shown(before), shown(after), hidden
    )
