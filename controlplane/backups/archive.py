"""The stream: gzip of lines, each of them JSON. An object says what comes, an array is a row.

    {"slipsnisse": "backup", "format": 1, …, "keys": "…"}           the head; the keys are sealed
    with the passphrase {"table": "mcpregistry.server", "columns": ["id", …]}           then its
    rows {"end": "mcpregistry.server", "rows": 2, "digest": "…", "next": 3} {"whole": true,
    "tables": 61, "rows": 4711, "signature": "…"}   nothing without this line is a backup

The signature is an HMAC over all lines before it.
"""

from __future__ import annotations

import gzip
import hmac
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

from controlplane.backups.passphrase import derive_keys, fresh_cost
from mcpregistry.domain.errors import ConfigInvalid

FORMAT = 1
_LONGEST = 512 * 1024 * 1024  # bytes of one line; a call with its payloads is far below
_LEVEL = 4  # of gzip: half the time of its default, a tenth more bytes
_DAMAGED = "Use another copy of the backup, or an older backup."


class Writer:
    """Writes lines. ``head`` is written at once, ``finish`` makes it a whole backup."""

    def __init__(
        self,
        stream: IO[bytes],
        passphrase: str,
        head: Mapping[str, Any],
        keys: Mapping[str, str],
        work: int,
    ) -> None:
        cost = fresh_cost(work)
        self._lock = derive_keys(passphrase, cost)
        self._zip = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=_LEVEL, filename="")
        said = {"slipsnisse": "backup", "format": FORMAT, **head, "passphrase": _as_json(cost)}
        self.write_object(**said, keys=self._lock.seal(dict(keys), _context(said)))

    def write_object(self, **said: Any) -> None:
        """A line that says what comes."""
        self.write_line(json.dumps(said).encode())

    def write_line(self, line: bytes) -> None:
        """A line as it stands, without its end."""
        line += b"\n"
        self._lock.signature.update(line)
        self._zip.write(line)

    def finish(self, **said: Any) -> None:
        """The last line."""
        self.write_object(whole=True, **said, signature=self._lock.signature.hexdigest())
        self._zip.close()


class Reader:
    """Reads lines, and that nobody has changed them. ``head`` and ``keys`` are read at once.

    Raises ConfigInvalid for whatever is no whole backup, or was not made with this passphrase.
    """

    def __init__(self, stream: IO[bytes], passphrase: str) -> None:
        self._zip = gzip.GzipFile(fileobj=stream, mode="rb")
        first = self._read()
        head = _parse_line(first)
        if not isinstance(head, dict) or head.get("slipsnisse") != "backup":
            raise ConfigInvalid(
                "The file is not a backup of Slipsnisse.",
                remedy="Name a file that `manage.py backup` created.",
            )
        if head.get("format") != FORMAT:
            raise ConfigInvalid(
                f"The backup has the format {head.get('format')} of release {head.get('release')}, which this release cannot "
                "read.",
                remedy="Restore it with that release or a newer one.",
            )
        sealed = head.pop("keys", "")
        self._lock = derive_keys(passphrase, head.get("passphrase", {}))
        self.head: dict[str, Any] = head
        self.keys: dict[str, str] = self._lock.open(sealed, _context(head))
        self._lock.signature.update(first)

    def read_lines(self) -> Iterator[Any]:
        """Every line after the head, parsed, up to the last, which was looked at here."""
        while line := self._read():
            said = _parse_line(line)
            if isinstance(said, dict) and "whole" in said:
                self._check_whole(said)
                yield said
                return
            self._lock.signature.update(line)
            yield said
        raise ConfigInvalid(
            "The backup is incomplete: it was not finished, or it was truncated.", remedy=_DAMAGED
        )

    def _check_whole(self, said: Mapping[str, Any]) -> None:
        if not hmac.compare_digest(
            str(said.get("signature", "")), self._lock.signature.hexdigest()
        ):
            raise ConfigInvalid("The backup was changed after it was created.", remedy=_DAMAGED)

    def _read(self) -> bytes:
        try:
            line = self._zip.readline(_LONGEST)
        except (OSError, EOFError, ValueError, zlib.error) as error:  # not gzip, or cut, or damaged
            raise ConfigInvalid(
                "The file is not a backup, or it was damaged or truncated.", remedy=_DAMAGED
            ) from error
        if line and not line.endswith(b"\n"):
            raise ConfigInvalid(
                "The backup contains a line that is truncated or too long.", remedy=_DAMAGED
            )
        return line


def _as_json(cost: Any) -> dict[str, Any]:
    return {name: getattr(cost, name) for name in ("salt", "n", "r", "p")}


def _context(head: Mapping[str, Any]) -> bytes:
    """What the sealed keys belong to: nobody can put them into a backup with another head."""
    return json.dumps(head, sort_keys=True).encode()


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigInvalid(
            "The backup contains a line that is not valid JSON.", remedy=_DAMAGED
        ) from error
