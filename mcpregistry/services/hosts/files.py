"""A host's own file on this machine: read, and replaced in one step, with what it held before kept
beside it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.hosts.table import HostProgram
from mcpregistry.services.exchange.files import write_file

FIRST = ".slipsnisse.bak"  # the file as it was before this product edited it; never replaced
LAST = ".slipsnisse.last.bak"  # the file before the newest edit, if it was not the first
_LARGEST = 64 * 1024 * 1024  # bytes: Claude Code keeps much else in its own


@dataclass(frozen=True, slots=True)
class HostFile:
    """Where a host looks for servers; the file need not be there yet. ``shared``: it belongs to a
    project, not a person."""

    host: HostProgram
    path: Path
    shared: bool = False

    def read_text(self) -> str:
        """What it holds; nothing where it is not there. Raises ``ConfigInvalid`` where it cannot be
        read."""
        try:
            if self.path.stat().st_size > _LARGEST:
                raise ConfigInvalid(
                    f"{self.path} is larger than 64 MiB.",
                    remedy="Copy the entry from the page “Connect a host” to the file.",
                )
            return self.path.read_bytes().decode("utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            raise ConfigInvalid(
                f"{self.path} is not UTF-8.", remedy="First save the file as UTF-8."
            ) from None
        except OSError as error:
            raise _make_file_error(self.path, "read", error) from None

    def replace(self, before: str, text: str, *, secret: bool, keep: bool = True) -> Path | None:
        """Make ``text`` its content; returns where the content before is now, None where there was
        no file, or not ``keep``.

        ``secret``: only its owner may read it from now on. Raises ``Conflict`` if somebody has
        written it meanwhile.
        """
        real = self.path.resolve()  # a link into somebody's dotfiles stays one
        try:
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o600
            real.parent.mkdir(parents=True, exist_ok=True)
            kept = _find_backup_path(real, before) if before and keep else None
            if kept:
                write_file(kept, before)
            if self.read_text() != before:
                raise Conflict(
                    f"Another program changed {self.path} while this command was running.",
                    remedy="Run the command again.",
                )
            write_file(real, text, mode=mode & 0o600 if secret else mode)
        except OSError as error:
            raise _make_file_error(self.path, "written", error) from None
        return kept


def _find_backup_path(real: Path, before: str) -> Path:
    """Return where to keep what the file held: the first backup stays, so that the original is
    never lost."""
    first = real.with_name(real.name + FIRST)
    original = not first.exists() or first.read_bytes() == before.encode()
    return first if original else real.with_name(real.name + LAST)


def open_user_file(host: HostProgram, environ: Mapping[str, str]) -> HostFile:
    """The file of the person who runs this process."""
    home = environ.get("HOME") or os.path.expanduser("~")
    return HostFile(
        host,
        Path(host.places.path("macos" if sys.platform == "darwin" else "linux", home, environ)),
    )


def open_project_file(host: HostProgram, folder: Path) -> HostFile:
    """The file in a project's folder. Raises ``ConfigInvalid`` for hosts that read none."""
    if not host.project:
        raise ConfigInvalid(
            f"{host.title} does not support project files.", remedy="Leave out --project."
        )
    return HostFile(host, folder.absolute() / host.project, shared=True)


def _make_file_error(path: Path, what: str, error: OSError) -> ConfigInvalid:
    return ConfigInvalid(
        f"{path} cannot be {what}: {error.strerror}.",
        remedy="Correct the cause, then run the command again. Or copy the entry from the page “Connect a host” to the file.",
    )
