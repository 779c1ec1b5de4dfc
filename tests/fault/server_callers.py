"""Callers that install packages, and that test and try servers, besides those that make calls; and
what they were told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
from django.contrib.auth.models import User

from mcpregistry.domain.energy import OnEmpty
from mcpregistry.models import Agent, Server
from mcpregistry.services.access import agents, grants, tokens
from subagents.models import ExpertTool
from tests.calls.conftest import ACTOR, add_server, tool
from tests.fakes.packages import Packages, add_small_servers
from tests.fakes.stage import outside
from tests.fakes.targets import SERVERS
from tests.fault.books import give_pool
from tests.fault.callers import SLOWLY, Callers, Reports, prepare
from tests.subagents.kit import WORDS, Bench
from tests.waiting import HANG_LIMIT

READS = {"readOnlyHint": True}
# servers
TESTED = "tested"
TRIED = "tried"
INSTALL = "install"
TEST = "test"
TRIAL = "trial"
AGENT_TEST = "test for an agent"
GOOD = {INSTALL: "installed", TEST: "passed", TRIAL: "completed", AGENT_TEST: "completed"}
ENDS = {
    INSTALL: ("installed", "failed"),
    TEST: ("passed", "failed"),
    TRIAL: ("completed", "failed"),
    AGENT_TEST: ("completed", "failed"),
}
PACKAGES = (
    ("pypi", "small-server", "1.0"),
    ("npm", "@small/server", "1.0.0"),
    ("npm", "@small/server", "1.1.0"),
)
# seconds of each answer of the registries, so that installs are under way when a process dies
_SLOWLY = 0.1
_LOOK_EVERY = 0.4


@dataclass(frozen=True, slots=True)
class WorkReport:
    """How a piece of work ended, as its caller was told. ``key``: of its record; ``text``: no other
    has it."""

    kind: str
    key: str
    state: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """See ``ServerCallers``."""

    agent: str
    short: str
    person: str


def prepare_servers(bench: Bench, packages: Packages) -> Tokens:
    """What ``prepare`` makes, a server that is tested and checked, one that is tried, packages, and
    pools of energy.

    The pool of the agent "carl" is nearly always empty, so its calls wait.
    """
    agent = prepare(bench)
    carl = agents.save_agent(agent=Agent(slug="carl"), actor=ACTOR)
    grants.grant_access(agent=carl, server=Server.objects.get(slug="slow"), actor=ACTOR)
    give_pool("ann", ExpertTool.objects.get().agent.slug)
    give_pool(
        "carl",
        slug="short",
        capacity=4.0,
        regeneration=0.5,
        critical=0.0,
        resume=0.0,
        on_empty=OnEmpty.WAIT,
    )
    add_small_servers(packages)
    packages.before = lambda path: time.sleep(_SLOWLY)
    look = tool("look", WORDS, annotations=READS)
    fields: dict[str, Any] = {
        "check_interval": 10,
        "request_timeout": 5,
        "sandbox_read": [str(SERVERS)],
    }
    add_server("slow", look, slug=TESTED, env={"FAKE_JOURNAL": str(bench.journal)}, **fields)
    # In its sandbox it may write no journal; the path in its environment says whose it is.
    add_server("slow", look, slug=TRIED, env={"TESTS_SITE": str(bench.journal)}, **fields)
    person = User.objects.create_superuser("bob")
    return Tokens(
        agent,
        tokens.issue_token(name="kills", agent=carl, actor=ACTOR)[1],
        tokens.issue_token(name="kills", user=person, actor=ACTOR)[1],
    )


class ServerCallers(Callers):
    """Callers with these tokens: of the agent that calls, of one whose energy is short, of a person
    who may do everything."""

    def __init__(self, env: dict[str, str], address: str, known: Tokens, reports: Reports) -> None:
        super().__init__(env, address, known.agent, reports)
        self.work_reports: list[WorkReport] = []
        self.checks_asked = 0
        self._admin = {"authorization": f"Bearer {known.person}"}
        self._short = {"authorization": f"Bearer {known.short}"}

    def callers(self) -> list[Callable[[], Awaitable[Any]]]:
        return [
            *[partial(self._install, *package) for package in PACKAGES],
            self._test,
            self._test,
            self._try,
            self._test_for_agent,
            self._check,
            self._write_when_there_is_energy,
            self._write_when_there_is_energy,
            self._run_over_rest,
            self._write_over_rest,
            self._write_over_rest,
            self._write_over_stdio,
        ]

    async def work_again(self) -> list[str]:
        """Each kind of work once more, while nothing is killed. Returns what did not succeed."""
        before = len(self.work_reports)
        now = await outside(_last_checked)
        work = [self._install(*PACKAGES[0]), self._install(*PACKAGES[1]), self._test(), self._try()]
        await asyncio.gather(*work, self._test_for_agent(), self._check())
        bad = [
            f"{each} while nothing was killed"
            for each in self.work_reports[before:]
            if not succeeded(each)
        ]
        deadline = time.monotonic() + HANG_LIMIT
        while await outside(_last_checked) == now and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
        return bad + (
            ["a server is not checked any more"] if await outside(_last_checked) == now else []
        )

    async def _install(self, ecosystem: str, package: str, version: str) -> None:
        """Ask for a package, approve its lock, and wait until it is installed; every other one is
        removed again."""
        text = self.fresh()
        body = {
            "ecosystem": ecosystem,
            "package": package,
            "version": version,
            "slug": text,
            "server": TRIED,
        }
        row = await self._order("installs", body, text)
        path = f"installs/{row['id']}"
        row = await self._follow(path, "state", ("waiting", *ENDS[INSTALL]))
        if row["state"] == "waiting":
            await self._ask_until_answered(
                "POST", f"{path}/approve", {"lock_sha256": row["lock_sha256"]}
            )
            row = await self._follow(path, "state", ENDS[INSTALL])
        self.work_reports.append(
            WorkReport(INSTALL, str(row["id"]), row["state"], row["reason"], text)
        )
        if len(self.work_reports) % 2:
            await self._ask_until_answered("DELETE", path)

    async def _write_when_there_is_energy(self) -> None:
        await self._keyed("slow__write", self.fresh(), SLOWLY, **self._short)

    async def _test(self) -> None:
        text = self.fresh()
        row = await self._order(
            f"servers/{TESTED}/tests", {"call_tool": "look", "call_arguments": {"text": text}}, text
        )
        row = await self._follow(f"servers/{TESTED}/tests/{row['id']}", "verdict", ENDS[TEST])
        self.work_reports.append(
            WorkReport(TEST, str(row["id"]), row["verdict"], row["error"], text)
        )

    async def _try(self) -> None:
        await self._request(TRIAL, {"type": "try_server", "params": {"server": TRIED}}, self._admin)

    async def _test_for_agent(self) -> None:
        """By the background sub-agent, for an agent whose pool pays."""
        known = {"authorization": f"Bearer {self.token}"}
        await self._request(
            AGENT_TEST, {"type": "test_server", "params": {"server": "slow"}}, known
        )

    async def _request(self, kind: str, body: dict[str, Any], known: dict[str, str]) -> None:
        text = self.fresh()
        row = await self._order("maintenance/requests", body, text, known)
        row = await self._follow(
            f"maintenance/requests/{row['requestId']}", "state", ENDS[kind], known
        )
        self.work_reports.append(
            WorkReport(kind, row["requestId"], row["state"], row["error"] or "", text)
        )

    async def _check(self) -> None:
        await self._ask_until_answered("POST", f"servers/{TESTED}/refresh")
        self.checks_asked += 1
        await asyncio.sleep(2)

    async def _order(
        self, path: str, body: dict[str, Any], key: str, known: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Ask for work, with one key, until the site has taken it."""
        while True:
            answer = await self._ask_until_answered(
                "POST", path, body, (known or self._admin) | {"idempotency-key": key}
            )
            if answer.status_code == 202:
                return dict(answer.json())
            assert answer.status_code in (409, 429), answer.text  # too many wait
            await asyncio.sleep(1)

    async def _follow(
        self, path: str, field: str, ends: tuple[str, ...], known: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Look at the record until it is in one of these states."""
        while True:
            answer = await self._ask_until_answered("GET", path, None, known)
            assert answer.status_code == 200, answer.text
            row = dict(answer.json())
            if row[field] in ends:
                return row
            await asyncio.sleep(_LOOK_EVERY)

    async def _ask_until_answered(
        self, method: str, path: str, body: Any = None, known: dict[str, str] | None = None
    ) -> httpx2.Response:
        """Repeat a request until a process answers it that does not die over it."""
        while True:
            with suppress(httpx2.HTTPError):
                answer = await self.ask(method, path, body, **(known or self._admin))
                if answer.status_code != 503:
                    return answer
            await asyncio.sleep(_LOOK_EVERY)


def succeeded(report: WorkReport) -> bool:
    """Whether the work was done."""
    return report.state == GOOD[report.kind]


def _last_checked() -> Any:
    return Server.objects.get(slug=TESTED).last_ok_at
