"""A configuration file that is kept in step with the database: written anew after each change that
shows in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcpregistry.domain.formats import text
from mcpregistry.models import Configuration
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.files import read_file, write_file

BEFORE = ".bak"  # behind the file's name: what it held before


@dataclass
class KeptFile:
    """One file; it holds no secrets. ``look`` costs one small query while nothing has changed."""

    path: Path
    format_name: str
    actor: str
    only_enabled: bool = False
    _revision: int | None = None

    def look(self) -> list[str]:
        """Write the file if it is no longer what the database says; its content before is kept
        beside it.

        Returns what is to be told. Raises OSError where it cannot be written; then the next look
        tries again.
        """
        revision = Configuration.load().revision
        if revision == self._revision and self.path.exists():
            return []
        written = export_config(
            format_name=self.format_name, actor=self.actor, only_enabled=self.only_enabled
        )
        if written.refused:
            self._revision = revision
            return [
                *map(str, written.refused),
                f"The file {self.path} was not changed because of the problems above.",
            ]
        as_yaml = self.format_name.startswith("slipsnisse") and self.path.suffix != ".json"
        told = self._write(text.dump(written.data, as_yaml=as_yaml))
        self._revision = revision
        return told

    def _write(self, content: str) -> list[str]:
        before = read_file(self.path).decode(errors="replace") if self.path.exists() else None
        if before == content:
            return []
        if before is not None:
            write_file(self.path.with_name(self.path.name + BEFORE), before)
        write_file(self.path, content)
        return [f"The file {self.path} was written."]
