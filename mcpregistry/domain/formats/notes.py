"""What is said about each key of a file: kept, translated, parked, left out or refused, where, and
what to do next.

A note never quotes a value: any value of a configuration file may be a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mcpregistry.domain.errors import ConfigInvalid

Action = Literal["kept", "translated", "parked", "left out", "refused"]


KEPT = "Kept."


def make_pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901) to the given path; the root is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


@dataclass(frozen=True, slots=True)
class Note:
    """``column`` names the field of ``ServerEntry`` that the note is about, if it is about one.

    ``entry``: the JSON pointer of the server entry that the note is about; empty for the file as a
    whole. ``is_unknown_key``: the key was parked because the format does not have it.
    """

    action: Action
    file: str
    pointer: str
    sentence: str
    remedy: str = ""
    column: str = ""
    entry: str = field(default="", compare=False)
    is_unknown_key: bool = field(default=False, compare=False)

    @property
    def plain(self) -> bool:
        """Whether it says no more than that the value is taken as it stands."""
        return self.action == "kept" and self.sentence == KEPT

    def __str__(self) -> str:
        return f"{self.file}: {self.pointer or '/'}: {self.action}: {self.sentence} {self.remedy}".rstrip()


class FileInvalid(ConfigInvalid):
    """The file as a whole cannot be read: not its syntax, too large, or no known format. Holds the
    reason as a note."""

    def __init__(self, file: str, sentence: str, *, at: str = "", remedy: str) -> None:
        self.note = Note("refused", file, at, sentence, remedy)
        super().__init__(f"{file}: {at or '/'}: {sentence}", remedy=remedy)


class FormatReport:
    """Collects the notes about one file while it is read or written."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.notes: list[Note] = []
        self.entry = ""  # of the entry that is being read: set by whoever reads entries

    def add(
        self, action: Action, at: str, sentence: str, remedy: str = "", *, column: str = ""
    ) -> None:
        """Note what became of the value at the JSON pointer ``at``; the sentence must not quote
        it."""
        self.notes.append(Note(action, self.file, at, sentence, remedy, column, self.entry))

    def park_unknown_key(self, at: str) -> None:
        """Note that the format does not have the key at ``at``."""
        sentence = (
            "This site does not know this key. It writes the key back to files of the same format."
        )
        self.notes.append(
            Note("parked", self.file, at, sentence, entry=self.entry, is_unknown_key=True)
        )

    def refuse(self, at: str, sentence: str, remedy: str) -> None:
        """Note that the value at ``at`` cannot be used; an import with such a note writes
        nothing."""
        self.add("refused", at, sentence, remedy)
