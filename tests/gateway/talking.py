"""A scene for tests of what servers say besides answers: an agent that is granted all of one
talkative server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.models import Agent, Grant, Server
from mcpregistry.services.access import grants
from tests.fakes.stage import ACTOR, Stage, fresh
from tests.fakes.targets import SERVERS
from tests.waiting import HANG_LIMIT

# What a server and a host speak. The database is told the same of either, so both databases are
# asked for the newer only.
_OLDER = pytest.param("legacy", marks=pytest.mark.one_database)
ERAS = [_OLDER, "modern"]
MODES = [_OLDER, "auto"]
SECRET = "sk-talkative-0123456789abcdef"
TOOLS = ("log", "flood", "touch", "link", "widget", "count", "hold", "die", "make", "show")
OFFERED = (*TOOLS, "review", "docs://guide", "repo://{owner}/issues/{number}")


class Scene:
    """``server`` has suggestions, log lines, subscriptions and links; all that it lists is
    approved."""

    def __init__(
        self, stage: Stage, era: str = "both", *, granted: bool = True, journal: Path | None = None
    ) -> None:
        self.stage = stage
        self.slug = fresh("t")
        self.journal = journal
        self.endpoint = stage.endpoint(self.slug)
        stage.agent(self.slug)
        self.token = stage.tokens[self.slug]
        self.agent = Agent.objects.get(slug=self.slug)
        self.server = self.served(self.slug, era)
        if granted:
            self.grant(kind="")

    def served(self, slug: str, era: str = "both") -> Server:
        env = {"FAKE_ERA": era, "FAKE_WHO": slug, "API_KEY": SECRET}
        if self.journal:
            env["FAKE_JOURNAL"] = str(self.journal)
        return self.stage.real(
            slug,
            *OFFERED,
            command=[sys.executable, "-S", str(SERVERS / "talkative.py")],
            env=env,
            connect_timeout=HANG_LIMIT,
            request_timeout=HANG_LIMIT,
        )

    def grant(self, **fields: Any) -> Grant:
        fields = {"server": self.server, "agent": self.agent} | fields
        return grants.save_grant(grant=Grant(**fields), actor=ACTOR)
