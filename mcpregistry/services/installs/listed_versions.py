"""Whether a registry that the site reads lists a package: for sites that install nothing else."""

from __future__ import annotations

import json

from mcpregistry.db import stream_rows
from mcpregistry.domain.installs.names import Ecosystem, normalize_name
from mcpregistry.domain.registry.entries import Status
from mcpregistry.domain.registry.install_options import read_install_options
from mcpregistry.models import RegistryEntry


def is_listed_version(kind: Ecosystem, package: str, version: str) -> bool:
    """In exactly this version, and not taken back. A version must be named: the newest may be
    another in a moment."""
    if not version:
        return False
    wanted = (kind, normalize_name(kind, package), version)
    named = json.dumps(version)[1:-1]
    rows = RegistryEntry.objects.filter(
        status=Status.ACTIVE, kinds__contains=kind.value, document__contains=named
    )
    for document in stream_rows(rows.values_list("document", flat=True), chunk_size=100):
        offered = [way for way in read_install_options(document) if way.installs and way.transport]
        if wanted in [
            (way.kind, normalize_name(kind, way.identifier), way.version) for way in offered
        ]:
            return True
    return False
