"""What a watched configuration file means for servers and expert tools that vanish from it.

They are switched off, never deleted: their approvals, grants and history stay, and one that returns
to the file is switched on again. Only servers that this file brought are touched; if the file
itself vanishes, none.
"""

from __future__ import annotations

from mcpregistry.models import Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange.importing import ImportOutcome
from mcpregistry.services.exchange.sections import make_sections
from mcpregistry.services.servers.lifecycle import disable_server, enable_server


class FollowedFile:
    """The servers of one watched file, as of its last good content."""

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self._brought: set[str] = set()
        self._others: set[str] = set()
        self._others_off: frozenset[str] = frozenset()
        self._switched_off: set[str] = set()

    def follow_import(self, outcome: ImportOutcome) -> list[str]:
        """Follow what was just imported. Returns what was done, a sentence each."""
        if not outcome.saved:
            return []
        stated = [change for change in outcome.changes if change.action != "skipped"]
        named = {change.slug for change in stated if change.kind == "server"} | outcome.left_out
        others = frozenset(change.label for change in stated if change.kind != "server")
        ours = Server.objects.filter(source=outcome.format)
        vanished = ours.filter(slug__in=self._brought - named).exclude(lifecycle=Lifecycle.DISABLED)
        back = ours.filter(slug__in=self._switched_off & named, lifecycle=Lifecycle.DISABLED)
        told = [self._disable_server(server) for server in vanished] + [
            self._enable_server(server) for server in back
        ]
        self._brought |= {*ours.filter(slug__in=named).values_list("slug", flat=True)}
        self._switched_off -= named
        return told + self._follow_others(others)

    def _follow_others(self, named: frozenset[str]) -> list[str]:
        """The same for what other apps made of the file."""
        told = []
        for section in make_sections():
            off = section.switch(frozenset(self._others - named), on=False, actor=self.actor)
            on = section.switch(self._others_off & named, on=True, actor=self.actor)
            self._others_off = (self._others_off | off.keys()) - named
            told += [*off.values(), *on.values()]
        self._others |= named
        return told

    def _disable_server(self, server: Server) -> str:
        disable_server(server=server, actor=self.actor)
        self._switched_off.add(server.slug)
        return f"{server.slug} is no longer in the file: disabled."

    def _enable_server(self, server: Server) -> str:
        state = enable_server(server=server, actor=self.actor).lifecycle
        return f"{server.slug} is in the file again: {state}."
