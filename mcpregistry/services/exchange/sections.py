"""How other apps take part in configuration files: ``Extension.make_file_section`` makes their
sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mcpregistry.extensions import list_extensions

if TYPE_CHECKING:  # the formats bring YAML along, which most processes can do without
    from mcpregistry.domain.formats.document import Document
    from mcpregistry.domain.formats.notes import Action
    from mcpregistry.models import Agent, Endpoint

OnConflict = Literal["error", "skip", "replace", "rename", "own"]
# The remedy for a file that replaces what it has brought itself, and no more.
CONFLICT = "Choose what to do with existing entries: skip keeps the existing entry, replace overwrites it, and rename adds the new entry under another name."
NOT_ITS_OWN = "The existing entry was added by another file or by a user. Use identical values, or another name."


@dataclass(frozen=True, slots=True)
class ImportChange:
    """What a file means for one server; ``before`` and ``after`` are fit to be shown, secrets
    hidden.

    ``kind`` is "server", or the word of another app for what it made of the file.
    """

    slug: str
    action: Literal["created", "changed", "unchanged", "skipped"]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    secrets_changed: bool = False
    kind: str = "server"

    @property
    def label(self) -> str:
        return self.slug if self.kind == "server" else f"{self.kind}/{self.slug}"


@dataclass(frozen=True, slots=True)
class ImportTaking:
    """The import that a section is part of, inside its transaction.

    ``variant``: the format's name. ``may_grant``: whoever imports may grant, and so make expert
    tools. ``own``: names (``kind/name``) that this very file has brought before. ``note`` is
    ``(action, JSON pointer, sentence, remedy)``.
    """

    variant: str
    actor: str
    on_conflict: OnConflict
    may_grant: bool
    own: frozenset[str]
    note: Callable[[Action, str, str, str], None]
    changed: Callable[[ImportChange], None]


class ExchangeSection(Protocol):
    """What an app implements to take part; ``subagents.services.exchange.experts`` is one."""

    def take(self, document: Document, taking: ImportTaking) -> Document:
        """Make records of it. Returns the document with what is left to be kept as it stands."""

    def give(self, document: Document, *, include_secrets: bool) -> Document:
        """The document (what was kept) with the records of now."""

    def switch(self, labels: frozenset[str], *, on: bool, actor: str) -> dict[str, str]:
        """Switch off what a watched file no longer names, or on what it names again.

        Returns what was done, by label.
        """

    def serve(
        self, names: frozenset[str], *, agent: Agent, endpoint: Endpoint, actor: str
    ) -> list[str]:
        """Offer exactly what a file has named to the agent on the endpoint. Returns what stands in
        the way."""

    def take_back(self, labels: frozenset[str], *, actor: str) -> None:
        """Delete records that a file has just made, and that nothing else uses."""

    def references(self, names: frozenset[str]) -> list[str]:
        """Texts of the records behind what a file has named that may refer to variables of the
        environment."""


def make_sections() -> list[ExchangeSection]:
    """A fresh instance of every registered section."""
    makers = [extension.make_file_section for extension in list_extensions()]
    return [make() for make in makers if make is not None]
