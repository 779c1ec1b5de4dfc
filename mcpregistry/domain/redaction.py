"""Known secrets blotted out of text that others wrote, such as a server's log."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST = 8  # shorter values occur in any text
_BLOT = b"[secret]"


def blot(text: bytes, secrets: Iterable[str]) -> bytes:
    """``text`` without these exact values; the longest first, so that none is left in part."""
    for secret in sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(secret.encode("utf-8", "surrogatepass"), _BLOT)
    return text
