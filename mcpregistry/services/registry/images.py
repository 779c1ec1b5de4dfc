"""The digest of an image that an entry names by a tag: asked of the image's registry, shown to a
person, never taken unseen."""

from __future__ import annotations

import asyncio

from mcpregistry.domain.registry import containers
from mcpregistry.domain.registry.install_options import InstallOption
from mcpregistry.downstream import images
from mcpregistry.models import RegistryEntry


def fetch_current_digest(entry: RegistryEntry, way: InstallOption) -> str:
    """What the tag leads to at this moment; empty where nobody is asked for it. Up to some seconds,
    not in an event loop.

    It may lie in the private networks that the entry's registry may. Raises DownstreamError and
    NotFound, with a remedy.
    """
    image = containers.find_tagged_image(way.identifier) if way.kind == containers.KIND else None
    return (
        asyncio.run(images.fetch_digest(image, tuple(entry.source.allowed_networks)))
        if image
        else ""
    )
