"""The database as a configuration file of any format. Without ``include_secrets`` no secret value
leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcpregistry.domain import formats
from mcpregistry.domain.formats.document import Document, Parked, Written
from mcpregistry.models import ImportedFile, Server
from mcpregistry.services.exchange.policy import (
    export_server_entry,
    list_servers_with_rules,
    read_current_flags,
)
from mcpregistry.services.exchange.rows import order_servers
from mcpregistry.services.exchange.sections import make_sections
from mcpregistry.services.records import audit


def export_config(
    *,
    format_name: str,
    actor: str,
    include_secrets: bool = False,
    only_enabled: bool = False,
    servers: Iterable[Server] | None = None,
) -> Written:
    """The site's servers (or the given ones), and what files brought besides, as data of a
    format."""
    chosen = Server.objects.all() if servers is None else servers
    rows = [row for row in chosen if row.enabled or not only_enabled]
    family = formats.FORMATS[format_name].family
    document = _build_document(order_servers(rows, family))
    for section in make_sections():
        document = section.give(document, include_secrets=include_secrets)
    written = formats.write(document, format_name, include_secrets=include_secrets)
    if include_secrets:
        audit.record_entry(
            kind="configuration.exported",
            actor=actor,
            subject=f"format:{format_name}",
            servers=len(rows),
        )
    return written


def _build_document(rows: Iterable[Server]) -> Document:
    ruled = list_servers_with_rules()
    document = Document(tuple(export_server_entry(row, ruled) for row in rows))
    for file in ImportedFile.objects.all():
        rest = file.rest
        document = replace(
            document,
            expert_tools=(*document.expert_tools, *rest.get("expert_tools", [])),
            inputs=(*document.inputs, *rest.get("inputs", [])),
            providers={**document.providers, **rest.get("providers", {})},
            model_providers={**document.model_providers, **rest.get("model_providers", {})},
            defaults={**document.defaults, **rest.get("defaults", {})},
            flags={**document.flags, **rest.get("flags", {})},
            parked={**document.parked, file.family: Parked.from_json(rest.get("parked", {}))},
        )
    return replace(document, flags=read_current_flags(dict(document.flags)))
