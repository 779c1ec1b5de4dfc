"""Which names of keys, flags and variables usually stand before a secret."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?i:secret|password|passwd|passphrase|credential|api[-_.]?key|private[-_.]?key|access[-_.]?key|authorization)"
    r"|(?i:^|[-_.])(?i:token|auth|bearer|key|pat|pwd|pass|pw)$"
    r"|(?<=[a-z])(?:Token|Auth|Bearer|Key|Pat|Pwd|Pass)$"
)
_NO_SECRET = re.compile(r"(?i)^(max|min|num|context|buffer|output|input)[-_.]?tokens?$")


def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name usually holds a secret."""
    return bool(_SECRET.search(name.lstrip("-"))) and not _NO_SECRET.match(name)
