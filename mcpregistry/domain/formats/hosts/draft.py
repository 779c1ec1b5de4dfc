"""One entry of a host's file on its way to the usual keys, and the reading of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mcpregistry.domain.formats.document import Document, Json, JsonObject
from mcpregistry.domain.formats.entry_reader import read_entries
from mcpregistry.domain.formats.format import Format, Recognise
from mcpregistry.domain.formats.keys import ALL_BY_NAME, FormatKeys, OauthKeys, make_slug
from mcpregistry.domain.formats.mcpservers import MCPSERVERS
from mcpregistry.domain.formats.notes import FormatReport, Note, make_pointer

OAUTH = OauthKeys(
    "oauth",
    {
        "client_id": "clientId",
        "client_secret": "clientSecret",
        "scopes": "scopes",
        "redirect_uri": "redirectUri",
        "callback_port": "callbackPort",
        "metadata_url": "authServerMetadataUrl",
    },
)
_TEXTS = ("command", "args", "env", "cwd", "url", "headers", "envFile")
Part = Literal["startup", "request"]


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where an entry stands: its name, its JSON pointer, and its value."""

    name: str
    at: str
    raw: Json


@dataclass
class EntryDraft:
    """``entry`` holds the usual keys in the end; ``own`` maps each to the key by which the file
    names it."""

    at: str
    entry: JsonObject
    report: FormatReport
    inputs: dict[str, JsonObject]
    own: dict[str, str] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    is_server: bool = True

    def rename(self, theirs: str, usual: str) -> None:
        """Move a value to its usual key. If both are there, the usual key wins."""
        if theirs in self.entry and usual not in self.entry:
            self.entry[usual] = self.entry.pop(theirs)
            self.own[usual] = theirs

    def time(self, theirs: str, part: Part, milliseconds: int) -> None:
        """Take a limit that the file states in units of so many milliseconds."""
        value = self.entry.pop(theirs, None)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(theirs, "The value is not a number.", "Write it without quotes.")
            return
        self.times[part] = round(value * milliseconds)
        self.own[f"timeout/{part}"] = theirs

    def remark(self, key: str, sentence: str, remedy: str = "") -> None:
        """Leave a key out, and say why."""
        if key in self.entry:
            del self.entry[key]
            self.report.add("parked", self.at + make_pointer(key), sentence, remedy)

    def leave(self, sentence: str, remedy: str = "") -> None:
        """Leave a valid entry out that does not describe a server which can be imported."""
        self.is_server = False
        self.report.add("parked", self.at, sentence, remedy)

    def refuse(self, key: str, sentence: str, remedy: str) -> None:
        """The entry cannot be used."""
        self.report.refuse(self.at + make_pointer(key), sentence, remedy)

    def ask(self, name: str, description: str, key: str = "") -> str:
        """A reference to a credential that waits for its value; ``key`` names the place that needs
        it."""
        known = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:63] or "secret"
        self.inputs.setdefault(
            known,
            {"id": known, "type": "promptString", "description": description, "password": True},
        )
        self.report.add(
            "translated",
            self.at + make_pointer(key) if key else self.at,
            f"Becomes the credential {known}. Enter its value.",
        )
        return f"${{cred:{known}}}"

    def texts(self, change: Callable[[str], str], *keys: str) -> None:
        """Change every text under these keys (all that may hold placeholders), and say where that
        made a difference."""
        for key in keys or _TEXTS:
            if key in self.entry:
                self.entry[key] = self._change_texts(change, self.entry[key], key)

    def _change_texts(self, change: Callable[[str], str], value: Json, *path: str | int) -> Json:
        if isinstance(value, dict):
            return {
                name: self._change_texts(change, item, *path, name) for name, item in value.items()
            }
        if isinstance(value, list):
            return [
                self._change_texts(change, item, *path, index) for index, item in enumerate(value)
            ]
        if not isinstance(value, str) or (made := change(value)) == value:
            return value
        self.report.add(
            "translated",
            self.at + make_pointer(*path),
            "The placeholders are rewritten in this site's syntax.",
        )
        return made

    def pairs(self, key: str) -> dict[str, Json]:
        """The object under a key, to be added to; one of another type is refused, and counts as
        empty."""
        value = self.entry.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(
                self.own.get(key, key),
                "The value is not an object.",
                'Write it as {"NAME": "value"}.',
            )
            del self.entry[key]
            value = None
        return dict(value or {})

    def names(self, key: str) -> list[str]:
        """The list of names under a key, which is taken out; anything else is refused."""
        value = self.entry.pop(key, None)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "The value is not a list of texts.", 'Write it as ["…", "…"].')
            return []
        return value


Translate = Callable[[EntryDraft], None]


def list_usual_keys(family: str) -> FormatKeys:
    """The usual keys, as a translation leaves them."""
    return FormatKeys(
        family,
        ALL_BY_NAME,
        transport=("type", "transport"),
        name="title",
        env_file="envFile",
        cwd="cwd",
        enabled=("enabled", "disabled"),
        auto_approve=("autoApprove", "alwaysAllow", "trust"),
        tools="includeTools",
        oauth=OAUTH,
        timeout="two",
    )


def read_places(
    title: str,
    keys: FormatKeys,
    places: Iterable[EntryPlace],
    translate: Translate,
    *,
    path: str,
    extra: Iterable[Note] = (),
) -> Document:
    """A document of these entries. Notes name the places in the file's own spelling."""
    report = FormatReport(path)
    inputs = dict[str, JsonObject]()
    report.notes += extra
    found: list[tuple[str, Json, str]] = []
    own: dict[str, dict[str, str]] = {}
    for place in places:
        report.entry = place.at
        raw = place.raw
        if isinstance(raw, dict):
            draft = EntryDraft(
                place.at,
                {key: value for key, value in raw.items() if value is not None},
                report,
                inputs,
            )
            translate(draft)
            raw = _finish_draft(draft)
            own[place.at] = draft.own
            if not draft.is_server:
                continue
        found.append((place.name, raw, place.at))
    report.entry = ""
    broken = {note.entry for note in report.notes if note.action == "refused"}
    servers = tuple(
        server for server in read_entries(keys, found, report) if server.at not in broken
    )
    notes = tuple(_spell_note(note, own.get(note.entry, {}), title) for note in report.notes)
    return Document(servers, inputs=tuple(inputs.values()), notes=notes)


def _finish_draft(draft: EntryDraft) -> JsonObject:
    if "timeout" in draft.entry and draft.is_server:
        draft.remark(
            "timeout",
            "Not used: the unit of this host's timeout is not known.",
            "Set the timeout on the page of the server.",
        )
    return {**draft.entry, **({"timeout": draft.times} if draft.times else {})}


def _spell_note(note: Note, own: Mapping[str, str], title: str) -> Note:
    if note.is_unknown_key:
        note = replace(note, sentence=f"Only {title} uses this key; this site does not.")
    for usual, theirs in own.items():
        place = note.entry + make_pointer(*usual.split("/"))
        if note.pointer == place or note.pointer.startswith(place + "/"):
            return replace(
                note,
                pointer=note.entry + make_pointer(*theirs.split("/")) + note.pointer[len(place) :],
            )
    return note


def define_host_format(
    name: str,
    title: str,
    file: str,
    recognise: Recognise,
    read: Callable[[JsonObject, str], Document],
) -> Format:
    """A format that is only read. A server that came from it is written as for most hosts."""
    return Format(name, title, file, name, recognise, read, MCPSERVERS.write)


def find_map_entries(data: JsonObject, *path: str) -> Iterable[EntryPlace]:
    """The entries of the map at this path."""
    found: Json = data
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict):
        for name, raw in found.items():
            yield EntryPlace(name, make_pointer(*path, name), raw)


def note_other_settings(data: JsonObject, path: str, title: str, *roots: str) -> list[Note]:
    """A note if the file holds other settings of its host; they are not kept."""
    if all(key in roots or key.startswith("$") for key in data):
        return []
    return [
        Note(
            "parked",
            path,
            "",
            f"Only the servers are read. The other settings of {title} are ignored.",
        )
    ]


DOLLAR = re.compile(r"(?<![\\$])\$(?:\{(\w+)\}|([A-Za-z_]\w*))")


def convert_dollar_variables(text: str) -> str:
    """``$NAME`` as we write it."""
    return DOLLAR.sub(lambda match: f"${{{match[1] or match[2]}}}", text)


def make_short_name(text: str) -> str:
    """A short name as servers have it, of any text."""
    return make_slug(text) or "server"
