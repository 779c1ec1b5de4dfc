"""What the scanner says of a definition, without the scanner: its tables take 6 MB, and most
processes scan nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

VERSION = 2  # of the scanner: raise it when findings change, so that definitions are scanned again


class Severity(IntEnum):
    """How bad a finding is. It sorts the inbox of definitions and decides nothing."""

    CLEAN = 0
    NOTE = 1
    ALARM = 2
    DANGER = 3


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """``where`` is a JSON pointer into the definition; ``excerpt`` has its invisible characters
    named."""

    kind: str
    severity: Severity
    where: str
    excerpt: str
    why: str
