"""What every file format offers, and what they share about the root of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mcpregistry.domain.formats.document import Document, Json, JsonObject, Parked, Written
from mcpregistry.domain.formats.notes import FormatReport, Note, make_pointer

Recognise = Callable[[JsonObject, str], bool]


@dataclass(frozen=True, slots=True)
class Format:
    """One file format, registered in ``FORMATS``.

    ``file`` is the usual path, ``family`` what formats share that read each other's files.
    ``recognise(data, path)`` looks at the root only; ``read(data, path)`` never raises for what a
    file says, but notes it.
    """

    name: str
    title: str
    file: str
    family: str
    recognise: Recognise
    read: Callable[[JsonObject, str], Document]
    write: Callable[[Document], Written]
    place: Callable[[str], str] = str  # a JSON pointer as the file's language writes it

    def spell_notes(self, notes: Iterable[Note]) -> tuple[Note, ...]:
        """Notes that name their places as the file spells them."""
        return tuple(replace(note, pointer=self.place(note.pointer)) for note in notes)


def park_root(data: JsonObject, known: Iterable[str], report: FormatReport, at: str = "") -> Parked:
    """The keys of the root (or of the object at ``at``) that this format's reader does not take."""
    taken = set(known)
    unknown = {key: value for key, value in data.items() if key not in taken}
    for key in unknown:
        report.park_unknown_key(at + make_pointer(key))
    return Parked(unknown, tuple(data))


def read_object(
    data: JsonObject, key: str, report: FormatReport, *, at: str = "", required: bool = True
) -> JsonObject:
    """The object under a key of ``data`` (which stands at ``at``); anything else is refused."""
    value: Json = data.get(key, {})
    if not isinstance(value, dict):
        report.refuse(at + make_pointer(key), "The value is not an object.", "Write it as { … }.")
        return {}
    if required and key not in data:
        report.refuse(at, f"The key {key} is missing.", f"Add {key}, or choose another format.")
    return value


_BESIDES = {
    "expert_tools": "expert tools",
    "model_providers": "models of the expert tools",
    "providers": "model providers in the form of ai-agent",
    "defaults": "defaults for models and tools",
    "flags": "flags of mcp-servers.json",
    "inputs": "prompts for values",
}


def report_left_out(
    document: Document, report: FormatReport, *, written: Iterable[str] = ()
) -> None:
    """Say which parts of the document, besides its servers, the format has no place for."""
    for name in _BESIDES.keys() - set(written):
        if getattr(document, name):
            report.add(
                "parked",
                "",
                f"This format cannot store the {_BESIDES[name]}. They are kept only on this site.",
                column=name,
            )
