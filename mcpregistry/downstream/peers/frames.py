"""Frames between processes: four bytes of length (big-endian), then JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from mcpregistry.domain.errors import ResourceLimit

_LENGTH = 4


async def read_frame(reader: asyncio.StreamReader, most: int) -> Any:
    """Return the next frame, or None at the end of the stream. Raises ResourceLimit, and ValueError
    for what is not JSON."""
    try:
        size = int.from_bytes(await reader.readexactly(_LENGTH))
        if size > most:
            raise ResourceLimit(
                f"A message between two processes of the site has {size:,} bytes ({most:,} allowed)."
            )
        return msgspec.json.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_frame(writer: asyncio.StreamWriter, frame: Any) -> None:
    """Write a frame. The caller drains."""
    data = msgspec.json.encode(frame)
    writer.write(len(data).to_bytes(_LENGTH) + data)
