"""What a newer package would offer, read before its server is set to it: a person sees what the
switch would change.

It is started once, right after it was installed, as its server is started; but always in a sandbox,
without the network, in a folder that is thrown away, and with placeholders where secrets stand. Its
tools are listed, none is called.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from mcpregistry.domain.definitions.definition import (
    INSTRUCTIONS,
    select_visible_fields,
    strip_instructions,
)
from mcpregistry.domain.definitions.diff import Rewording, list_rewordings
from mcpregistry.domain.definitions.findings import ScanFinding
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.servers.target import ServerLimits, ServerTarget
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.downstream.installers import package_tree
from mcpregistry.models import Install, Server
from mcpregistry.models.server import Transport
from mcpregistry.services.installs import requests
from mcpregistry.services.servers.sandbox import build_sandbox

SECONDS = 40.0  # less than the lease of whoever installs
MOST_SIGNS = 4 << 20
SHOWN = 50  # changed tools
PLACEHOLDER = "placeholder"  # in place of a secret
_NO_START = "The definitions could not be read, because the package did not start in a sandbox without a network"


@dataclass(frozen=True, slots=True)
class Changed:
    """A tool that is new or different; ``findings`` are the scanner's. ``changes`` is empty for a
    new one."""

    name: str
    changes: list[Rewording]
    findings: list[ScanFinding]
    description: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What would be different of what the server offers now. ``more``: how many changed tools are
    not in the lists."""

    added: list[Changed] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    instructions: list[Rewording] = field(default_factory=list)
    same: int = 0
    more: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.instructions)


def read_package_offers(install: Install, argv: list[str], home: str) -> dict[str, object]:
    """The columns that say what it offers, or why that is not known. ``home``: a folder that may be
    thrown away."""
    server = install.server
    if server is None or server.transport != Transport.STDIO:
        return {}
    if not settings.STDIO_ENABLED:
        return {
            "offered": "",
            "not_offered": "The package was not started, because local servers are disabled on this site.",
        }
    try:
        package_tree.remove(home)
        os.makedirs(home, mode=0o700)
        return _make_offer_columns(
            asyncio.run(_list_package_offers(_build_target(install, server, argv, home)))
        )
    except SlipsnisseError as error:
        return {"offered": "", "not_offered": clean_text(f"{_NO_START}: {error}", 2_000)}
    except (TimeoutError, OSError):
        return {"offered": "", "not_offered": f"{_NO_START} within {SECONDS:g} s."}


def _build_target(install: Install, server: Server, argv: list[str], home: str) -> ServerTarget:
    sandbox = build_sandbox(server, forced=True)
    assert sandbox is not None  # a local server, and forced
    seen = (*sandbox.read, *sandbox.write, os.path.realpath(install.folder))
    return ServerTarget(
        server_id=server.pk,
        slug=server.slug,
        revision=0,
        transport="stdio",
        argv=tuple(map(_replace_secret, argv)),
        env={name: _replace_secret(value) for name, value in _build_env(install, server).items()},
        protocol=server.protocol_mode,  # type: ignore[arg-type]
        limits=ServerLimits(
            connect_timeout=min(server.connect_timeout, SECONDS),
            max_tools=server.max_tools,
            definition_bytes=server.max_definition_bytes,
        ),
        sandbox=replace(sandbox, home=home, read=seen, write=(), network=False),
    )


def _build_env(install: Install, server: Server) -> Mapping[str, str]:
    try:
        return requests.build_env_for(install, server)
    except ConfigInvalid:  # sealed with a key that is lost
        return {}


def _replace_secret(text: str) -> str:
    return PLACEHOLDER if "${" in text else text


async def _list_package_offers(target: ServerTarget) -> dict[str, Any]:
    # with the protocol's library, which few processes need
    from mcpregistry.downstream.pool.trial_start import try_start

    async with asyncio.timeout(SECONDS):
        found = await try_start(target)
    if found.discovery is None:
        raise ConfigInvalid(
            found.start["error"] or "The package listed no tools.",
            remedy="Test the package before you use it.",
        )
    return {"tools": list(found.discovery.tools), INSTRUCTIONS: found.discovery.instructions}


def _make_offer_columns(facts: dict[str, Any]) -> dict[str, object]:
    text = encode_lossy_json(facts)
    if len(text) > MOST_SIGNS:
        return {
            "offered": "",
            "not_offered": "The definitions of the package are larger than 4 MiB, so they are not compared.",
        }
    return {"offered": text, "not_offered": ""}


def compare_offers(install: Install) -> Comparison | None:
    """What its server would offer otherwise; None where that is not known, or where the server
    starts it already."""
    server = install.server
    if not install.offered or server is None or install.is_started_by(server.command):
        return None
    said = json.loads(install.offered)
    before = _read_current_offers(server)
    after = {
        clean_text(str(tool.get("name")), 500): select_visible_fields(tool, said[INSTRUCTIONS])
        for tool in said["tools"]
    }
    added = [name for name in after if name not in before]
    changed = [
        name
        for name in after
        if name in before and strip_instructions(after[name]) != strip_instructions(before[name])
    ]
    return Comparison(
        added=[_compare_definition(name, {}, after) for name in added[:SHOWN]],
        changed=[_compare_definition(name, before[name], after) for name in changed[:SHOWN]],
        removed=sorted({*before} - {*after}),
        instructions=_compare_instructions(before, after),
        same=len(after) - len(added) - len(changed),
        more=max(len(added) - SHOWN, 0) + max(len(changed) - SHOWN, 0),
    )


def _read_current_offers(server: Server) -> dict[str, dict[str, Any]]:
    """What was approved of each tool that it offers; of those that nobody has decided on what it
    says."""
    tools = server.tools.filter(present=True).select_related("pinned", "latest")
    return {tool.name: shown.data for tool in tools if (shown := tool.pinned or tool.latest)}


def _compare_definition(
    name: str, before: dict[str, Any], after: dict[str, dict[str, Any]]
) -> Changed:
    # 6 MB, and few processes look at what is new
    from mcpregistry.domain.definitions import scanner

    body = strip_instructions(after[name])
    changes = list_rewordings(strip_instructions(before), body) if before else []
    return Changed(
        name, changes, scanner.scan(body, own=frozenset(after)), str(body.get("description") or "")
    )


def _compare_instructions(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]
) -> list[Rewording]:
    """They count with every tool, and are shown once."""
    if not before or not after:
        return []
    old, new = (next(iter(each.values()), {}).get(INSTRUCTIONS, "") for each in (before, after))
    return list_rewordings({INSTRUCTIONS: old} if old else {}, {INSTRUCTIONS: new} if new else {})
