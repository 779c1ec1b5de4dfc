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
from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.document import Document, ServerEntry
from mcpregistry.domain.formats.expansion import expand_document, find_unresolved_folders
from mcpregistry.domain.formats.format import Format
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.notes import Action, FileInvalid, Note, make_pointer
from mcpregistry.domain.formats.pasted.secrets import Secret, extract_secrets
from mcpregistry.domain.servers.launch import list_credential_names
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import ImportedFile, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange.files import name_project_folder
from mcpregistry.services.exchange.imported_secrets import (
    REMEDY,
    SCOPE_REMEDY,
    add_credentials,
    describe_secrets,
    keep_secrets,
)
from mcpregistry.services.exchange.large_files import reduce_large_file
from mcpregistry.services.exchange.other_file_parts import merge_kept_data, rename_tool_servers
from mcpregistry.services.exchange.policy import (
    APPLIED,
    FOLLOWED,
    WAITING,
    export_server_entry,
    follow_file,
)
from mcpregistry.services.exchange.rows import (
    build_server_entry,
    fill_row,
    find_free_slug,
    find_source_file,
    redact_entry_for_diff,
)
from mcpregistry.services.exchange.sections import (
    CONFLICT,
    NOT_ITS_OWN,
    ImportChange,
    ImportTaking,
    OnConflict,
    make_sections,
)
from mcpregistry.services.exchange.workspaces import (
    KIND,
    WorkspaceChoice,
    WorkspaceOffer,
    take_projects,
)
from mcpregistry.services.records import audit
from mcpregistry.services.servers.lifecycle import disable_server, enable_server, save_server

_STRICT = "slipsnisse"  # our own format is taken whole or not at all
_WAITING = {
    "env_file": "The setting is stored, but the file that it names is not read. Add the variables of this file to env.",
    "tools_allowed": "The list is stored, but has no effect. Grants decide which tools an agent can use.",
    "oauth": "The values for OAuth are stored, but not used yet. To log in to the server, add a header with a token to the server.",
}


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """``saved`` is False for a dry run and whenever a note is refused: then the database is as it
    was.

    ``left_out``: names of servers whose entries could not be used. ``projects``: the workspaces
    that it offers.
    """

    path: str
    format: str
    notes: tuple[Note, ...]
    changes: tuple[ImportChange, ...] = ()
    saved: bool = False
    left_out: frozenset[str] = frozenset()
    projects: tuple[WorkspaceOffer, ...] = ()

    @property
    def mark(self) -> str:
        """What names the difference, for ``import_file`` to make this one and no other; without
        workspaces."""
        return hash_parts(
            replace(
                self, changes=tuple(each for each in self.changes if each.kind != KIND)
            ).format_diff()
        )

    @property
    def refused(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.action == "refused")

    def format_diff(self) -> str:
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
    workspaces: WorkspaceChoice | None = None,
    narrowed: Callable[[Document], Document] | None = None,
    rights: Rights = deny_all_rights,
) -> ImportOutcome:
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
        return ImportOutcome(path, format_name, (error.note,))
    if narrowed is not None:
        document = narrowed(document)
    if variables is not None:
        document = _expand_import(document, path, variables, folders or {})
    if found.family != _STRICT:
        document = document.drop_refused_entries()
    if document.refused:
        return ImportOutcome(path, found.name, found.spell_notes(document.notes))
    with transaction.atomic(), audit.collect_entries():
        run = _ServerImport(
            document, path, found, on_conflict, actor, may_rule=may_rule, may_grant=may_grant
        )
        run.keeps_secrets = secrets_apart
        run.workspaces = workspaces or WorkspaceChoice()
        run.shares_nothing = narrowed is not None
        run.rights = rights
        run.import_all()
        if not run.changes and not may_be_empty and not _has_more(document):
            run.refuse_empty_file()
        notes = found.spell_notes((*document.notes, *run.notes))
        left_out = _list_left_out_names(document, run)
        outcome = ImportOutcome(
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
    return formats.read(reduce_large_file(raw, path), path, format_name)


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


def _list_left_out_names(document: Document, run: _ServerImport) -> frozenset[str]:
    """What servers are called whose entries were left out: the last part of their place."""
    notes = (*document.notes, *run.notes)
    places = {note.entry for note in notes if note.action == "left out" and note.entry}
    return frozenset(
        make_slug(place.rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~"))
        for place in places
    )


def _expand_import(
    document: Document, path: str, variables: Mapping[str, str], folders: Mapping[str, str]
) -> Document:
    expanded = expand_document(document, path, variables, folders)
    why = "The workspace of the server is not known."
    remedy = "Enter the workspace directory with --workspace DIRECTORY."
    places = (entry.at for entry in find_unresolved_folders(expanded))
    return expanded.add_notes(*(Note("refused", path, at, why, remedy, entry=at) for at in places))


class _ServerImport:
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
        self.changes: list[ImportChange] = []
        self.renamed: dict[str, str] = {}
        self.keeps_secrets = False
        self.shares_nothing = False
        self.workspaces = WorkspaceChoice()
        self.rights: Rights = deny_all_rights
        self.projects: tuple[WorkspaceOffer, ...] = ()
        self._rows: dict[str, Server] = {}  # by the key in the document

    def import_all(self) -> None:
        rows = {server.slug: server for server in Server.objects.select_for_update()}
        for position, entry in enumerate(self.document.servers):
            self._import_server(entry, position, rows)
        self._create_credentials()
        self._apply_flags()
        self._import_rest()
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
            audit.record_entry(
                kind="configuration.imported",
                actor=self.actor,
                subject=f"file:{self.path}",
                format=self.format.name,
                **counts,
            )

    def _import_rest(self) -> None:
        """What belongs to no server: other apps take their part, what is left is kept as it
        stands."""
        tools = tuple(
            rename_tool_servers(tool, self.renamed) for tool in self.document.expert_tools
        )
        document = replace(self.document, expert_tools=tools)
        family = self.format.family
        row = ImportedFile.objects.select_for_update().filter(
            family=family
        ).first() or ImportedFile(family=family)
        before = dict(row.rest)
        owned = before.get("brought", {})
        taking = ImportTaking(
            variant=self.format.name,
            actor=self.actor,
            on_conflict=self.on_conflict,
            may_grant=self.may_grant,
            own=frozenset(owned.get(self.path, ())),
            note=self._note,
            changed=self.changes.append,
        )
        for section in make_sections():
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
        rest = merge_kept_data(before, document, family) | {"brought": owned}
        if rest != before:
            row.rest = rest
            row.path = self.path
            row.save()

    def _note(
        self, action: Action, at: str, sentence: str, remedy: str = "", *, entry: str = ""
    ) -> None:
        self.notes.append(Note(action, self.path, at, sentence, remedy, entry=entry))

    def refuse_empty_file(self) -> None:
        """Refuse a file without servers."""
        sentence = f"The file contains no servers to import. It was read as {self.format.title}."
        self._note(
            "refused", "", sentence, "Choose the file that contains the servers, or another format."
        )

    def _import_server(self, entry: ServerEntry, position: int, rows: dict[str, Server]) -> None:
        key = entry.key
        if self.on_conflict == "own":
            entry = self._rename_if_taken(entry, position, rows)
        old = rows.get(entry.key)
        entry, secrets = extract_secrets(entry) if self.keeps_secrets else (entry, ())
        if old and self.on_conflict == "rename" and self._is_different(old, entry, position):
            free = find_free_slug(entry.key, rows)
            self._note(
                "translated",
                entry.at,
                f"Another server already has this name, so this server is added as {free}.",
            )
            self.renamed[entry.key] = free
            entry = replace(entry, key=free)
            old = None
        row = old or Server(slug=entry.key)
        if old and entry.auto_approve is False:  # silence leaves it as it is
            entry = replace(entry, auto_approve=export_server_entry(old).auto_approve)
        own = old is not None and find_source_file(old) == self.path
        change = self._fill_server_row(row, entry, position, old)
        if old and change.action == "changed" and not self._may_replace(own=own):
            self._report_conflict(entry, change)
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

    def _rename_if_taken(
        self, entry: ServerEntry, position: int, rows: Mapping[str, Server]
    ) -> ServerEntry:
        """A server belongs to its file: if one of another file has its name and differs, it gets
        another name, and keeps that."""
        own = (
            row.slug
            for row in rows.values()
            if find_source_file(row) == self.path and row.extra.get("in_file") == entry.key
        )
        name = next(own, "")
        old = rows.get(entry.key)
        is_foreign = old is not None and find_source_file(old) != self.path
        if (
            not name
            and old
            and is_foreign
            and (self.shares_nothing or self._is_different(old, entry, position))
        ):
            name = find_free_slug(
                f"{entry.key[:40]}-{make_slug(name_project_folder(self.path).lower())[:18]}".rstrip(
                    "-"
                ),
                rows,
            )
            self._note(
                "translated",
                entry.at,
                f"Another server already has this name, so this server is added as {name}.",
            )
        if not name or name == entry.key:
            return entry
        self.renamed[entry.key] = name
        return replace(entry, key=name)

    def _fill_server_row(
        self, row: Server, entry: ServerEntry, position: int, old: Server | None
    ) -> ImportChange:
        """Write the entry into the row, unsaved; how that differs from what the row said."""
        before, env = (
            (export_server_entry(old), (old.env, old.headers)) if old else (None, ({}, {}))
        )
        fill_row(row, entry, source=self.format.name, position=position)
        _switch(row, entry, stated=self._states_enabled(entry))
        return _make_change(
            before, build_server_entry(row), hidden=bool(old) and env != (row.env, row.headers)
        )

    def _note_what_waits(self, entry: ServerEntry) -> None:
        for column, sentence in _WAITING.items():
            if getattr(entry, column) not in ("", False, None):
                self._note("parked", entry.at + make_pointer(column), sentence)

    def _is_different(self, old: Server, entry: ServerEntry, position: int) -> bool:
        probe = Server.objects.get(pk=old.pk)
        before = export_server_entry(probe).columns()
        if entry.auto_approve is False:
            entry = replace(entry, auto_approve=export_server_entry(probe).auto_approve)
        fill_row(probe, entry, source=probe.source, position=position)
        return build_server_entry(probe).columns() != before

    def _may_replace(self, *, own: bool) -> bool:
        return self.on_conflict in ("replace", "rename") or (self.on_conflict == "own" and own)

    def _states_enabled(self, entry: ServerEntry) -> bool:
        return any({"enabled", "disabled"} & set(parked.order) for parked in entry.parked.values())

    def _report_conflict(self, entry: ServerEntry, change: ImportChange) -> None:
        if self.on_conflict == "skip":
            self.changes.append(replace(change, action="skipped"))
            self._note(
                "parked",
                entry.at,
                "Another server already has this name, and its settings differ. The existing server was not changed.",
            )
            return
        remedy = NOT_ITS_OWN if self.on_conflict == "own" else CONFLICT
        self._note(
            "refused",
            entry.at,
            "Another server already has this name, and its settings differ.",
            remedy,
        )
        self.changes.append(change)

    def _save(self, row: Server, entry: ServerEntry, change: ImportChange) -> bool:
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
            and (found := describe_secrets(entry))
        ):
            self._note("kept", entry.at, found, REMEDY)

    def _approve_ahead(self, row: Server, entry: ServerEntry) -> None:
        told = follow_file(
            server=row, approved=entry.auto_approve, actor=self.actor, may_rule=self.may_rule
        )
        if told:
            self._note(
                "translated" if told == APPLIED else "parked",
                entry.at + make_pointer("auto_approve"),
                told,
            )

    def _apply_flags(self) -> None:
        for name, follow in FOLLOWED.items():
            wanted = self.document.flags.get(name)
            if wanted is not None and (
                told := follow(wanted=wanted, actor=self.actor, may_rule=self.may_rule)
            ):
                self._note("parked" if told in WAITING else "translated", make_pointer(name), told)

    def _create_credentials(self) -> None:
        """Every prompt of the file is a credential that waits for its value."""
        inputs = {
            str(item["id"]): str(item.get("description", "")) for item in self.document.inputs
        }
        if unusable := add_credentials(
            inputs, self._list_credential_places, actor=self.actor, rights=self.rights
        ):
            self._note(
                "parked",
                make_pointer("inputs"),
                f"No server can use {'this credential' if len(unusable) == 1 else 'these credentials'} yet: {', '.join(unusable)}.",
                SCOPE_REMEDY,
            )

    def _list_credential_places(self, credential: str) -> list[str]:
        """A credential that a file brings, without a value so far, is meant for the servers that it
        brings with it."""
        named = [change.slug for change in self.changes if change.kind == "server"]
        rows = Server.objects.filter(slug__in=named)
        return [
            f"server:{row.slug}" for row in rows if credential in list_credential_names(row.texts())
        ]


def _switch(row: Server, entry: ServerEntry, *, stated: bool) -> None:
    """Disable what the file disables; enable again only where the file says so in as many words."""
    if not entry.enabled:
        row.lifecycle = Lifecycle.DISABLED
    elif stated and row.lifecycle == Lifecycle.DISABLED:
        row.lifecycle = Lifecycle.ACTIVE if row.launch_confirmed else Lifecycle.DRAFT


def _make_change(before: ServerEntry | None, after: ServerEntry, *, hidden: bool) -> ImportChange:
    if before is None:
        return ImportChange(after.key, "created", {}, redact_entry_for_diff(after))
    same = before.columns() == after.columns()
    return ImportChange(
        after.key,
        "unchanged" if same else "changed",
        redact_entry_for_diff(before),
        redact_entry_for_diff(after),
        hidden,
    )
