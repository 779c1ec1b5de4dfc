"""A site that looks lived in: servers in every state, tools, agents, grants and a day of calls.

Used by tests and for looking at pages: ``manage.py shell -c "from tests.fakes.seed import populate;
populate()"``. The same every time: chance has a fixed seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.installs import mcpb
from mcpregistry.domain.installs.lock import hash_lock
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import PROMPT
from mcpregistry.domain.registry.entries import read as read_entry
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Budget,
    BudgetEntry,
    Channel,
    Connection,
    Conversation,
    Credential,
    Delivery,
    Endpoint,
    EnergyEntry,
    EnergyPool,
    Grant,
    Install,
    Invocation,
    Permit,
    PolicyRule,
    ProjectFile,
    RegistryEntry,
    RegistrySource,
    Server,
    ServerEvent,
    ServerTest,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.services import host_sessions
from mcpregistry.services.access import credentials, grants, invitations, tokens
from mcpregistry.services.access.agents import save_agent, save_endpoint, save_workspace
from mcpregistry.services.access.roles import ROLES
from mcpregistry.services.budgets import books
from mcpregistry.services.conversations.lifecycle import save_conversation
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.energy import pools
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit, signed_calls
from mcpregistry.services.registry import sources
from mcpregistry.services.servers import lifecycle
from subagents.domain import maintenance
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.effort import agents as effort
from subagents.maintenance import queue
from subagents.models import (
    CycleLog,
    EffortAgent,
    ExpertTool,
    Headend,
    LanguageModel,
    Proposal,
    Provider,
    Run,
    ToolCall,
    TrialReport,
)
from subagents.services import experts, providers, runs
from subagents.services.headends import configuring as headends
from tests.fakes.bundles import manifest

ACTOR = "user:seed"
CONVERSATION = "c" * 32
PASSWORD = "correct horse battery staple"


@dataclass
class Site:
    """What ``populate`` made, by slug or role."""

    servers: dict[str, Server] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    people: dict[str, User] = field(default_factory=dict)
    token_text: str = ""


_SERVERS: list[dict[str, Any]] = [
    {
        "slug": "time",
        "name": "Clock",
        "command": ["uvx", "mcp-server-time==2025.9.25"],
        "description": "Current time and conversions between time zones.",
    },
    {
        "slug": "git",
        "name": "Git",
        "command": ["uvx", "mcp-server-git==2025.9.25", "--repository", "/srv/project"],
        "env": {"GIT_AUTHOR_NAME": "bot", "GIT_TOKEN": "${cred:git-forge}"},
        "cwd": "/srv/project",
        "description": "Reads and changes the project's repository.",
    },
    {
        "slug": "github",
        "name": "GitHub",
        "transport": "http",
        "url": "https://api.githubcopilot.com/mcp/",
        "headers": {"Authorization": "Bearer ${cred:github}"},
        "description": "Issues, pull requests and code search.",
    },
    {
        "slug": "postgres",
        "name": "Warehouse",
        "command": ["postgres-mcp", "--access-mode=restricted"],
        "env": {"DATABASE_URI": "postgresql://reader:hunter2@db.internal/warehouse"},
        "description": "Read-only SQL.",
    },
    {
        "slug": "tickets",
        "name": "Tickets",
        "transport": "sse",
        "url": "http://10.3.0.7:9000/sse",
        "allowed_networks": ["10.3.0.0/24"],
        "description": "The old ticket system.",
    },
    {
        "slug": "browser",
        "name": "Browser",
        "command": ["npx", "-y", "@playwright/mcp@0.0.43", "--headless"],
        "description": "Opens web pages.",
    },
]

_TOOLS: dict[str, list[tuple[str, str]]] = {
    "time": [
        ("get_current_time", "Get the current time in a time zone."),
        ("convert_time", "Convert a time between two time zones."),
    ],
    "git": [
        ("git_status", "Show the working tree status."),
        ("git_diff", "Show changes between commits."),
        ("git_log", "Show the commit log."),
        ("git_commit", "Record changes to the repository."),
        ("git_push", "Send commits to the remote."),
    ],
    "github": [
        ("search_code", "Search code across repositories."),
        ("get_issue", "Read one issue."),
        ("create_issue", "Open a new issue."),
        ("list_pull_requests", "List pull requests."),
        ("merge_pull_request", "Merge a pull request."),
    ],
    "postgres": [
        ("execute_sql", "Run one read-only statement."),
        ("list_tables", "List tables of a schema."),
        ("explain_query", "Show how a statement would be run."),
    ],
    "tickets": [("find_ticket", "Find tickets by text."), ("close_ticket", "Close a ticket.")],
}


def populate(*, calls: int = 2_000, now: datetime | None = None) -> Site:
    """Fill an empty database."""
    now = now or timezone.now()
    chance = random.Random(7)
    site = Site()
    _people(site)
    _credentials()
    for facts in _SERVERS:
        site.servers[facts["slug"]] = _server(facts, now)
    _conditions(site, now)
    _access(site, now)
    _conversation(site)
    _energy(site)
    _budgets(site)
    _registry()
    _calls(site, calls, now, chance)
    _notifications(site, now)
    return site


def govern(site: Site, *, now: datetime | None = None) -> Site:
    """Rules, a permit, and an expert tool with runs. Apart from ``populate``: rules change what
    calls may do."""
    now = now or timezone.now()
    for rule in (
        PolicyRule(name="Pushes ask", condition='tool.name == "git_push"'),
        PolicyRule(
            name="No merges",
            outcome="deny",
            condition='tool.name.startsWith("merge")',
            enabled=False,
        ),
    ):
        rules.save_rule(rule=rule, actor=ACTOR)
    commit = Tool.objects.select_related("server", "pinned").get(
        server__slug="git", name="git_commit"
    )
    assert commit.pinned is not None
    Permit.objects.create(
        agent=site.agents["local"],
        tool=commit,
        definition_hash=commit.pinned.hash,
        server_revision=commit.server.revision,
        expires_at=now + timedelta(days=1),
        created_by=site.people["approver"],
    )
    host_sessions.begin_session(
        session_id="seeded",
        agent="local",
        endpoint="default",
        version="2025-11-25",
        client="{}",
        name="claude-code",
        said_version="2",
    )
    invitations.invite(name="Kim", role="approver", by=site.people["admin"])
    _expert(site, now)
    _headend(site)
    _hosted(site, now)
    _maintenance(site, now)
    return site


def _maintenance(site: Site, now: datetime) -> None:
    """What was asked of the background sub-agent: tested, still queued, and proposed."""
    tested, _, proposed = (
        queue.ask(kind=kind, params={"server": "git", **params}, actor=ACTOR)
        for kind, params in (
            (maintenance.Kind.TEST, {}),
            (maintenance.Kind.REMOVE, {"reason": "no"}),
            (maintenance.Kind.MODIFY, {"fields": {}, "reason": ""}),
        )
    )
    steps = [
        {"step": "config", "ok": True},
        {"step": "spawn", "ok": False, "code": "CONNECTION_FAILED", "error": "Gone."},
    ]
    queue.tell(
        tested,
        maintenance.RequestMessageKind.STATUS,
        progress=10,
        step="probe",
        message="Starting the server and reading its tools.",
    )
    queue.end(
        tested, maintenance.State.COMPLETED, result={"ok": False, "steps": steps, "tools": None}
    )
    Proposal.objects.create(
        request=proposed,
        server=site.servers["git"],
        server_revision=site.servers["git"].revision,
        server_saved_at=site.servers["git"].updated_at,
        fields={"idle_timeout": 60.0, "description": "Git."},
        reason="It is seldom used.",
        created_at=now,
    )
    queue.end(
        proposed, maintenance.State.COMPLETED, result={"proposal": 1, "waits_for": "a person"}
    )
    _trial(site, now)


def _headend(site: Site) -> None:
    """An expert tool as a model of OpenAI's API."""
    row = Headend(
        slug="chat",
        kind="openai",
        endpoint=Endpoint.objects.earliest("id"),
        aliases={"gpt": "research"},
    )
    headends.save_headend(row=row, actor=ACTOR)


def _hosted(site: Site, now: datetime) -> None:
    """Add a disabled hosted agent."""
    row = EffortAgent(expert=ExpertTool.objects.earliest("id"), enabled=False)
    effort.save_effort_agent(row=row, actor=ACTOR)
    CycleLog.objects.create(
        agent=row, at=now, level=42.0, decision=f"{CONVERSATION}: started an answer"
    )


def _trial(site: Site, now: datetime) -> None:
    """A trial whose whitelist waits for a click."""
    server = site.servers["git"]
    request = queue.ask(kind=maintenance.Kind.TRY, params={"server": "git"}, actor=ACTOR)
    start = {
        "era": "legacy",
        "network": "closed",
        "ok": True,
        "connect_ms": 412.5,
        "memory_kb": 41_000,
    }
    tool = {
        "name": "git_log",
        "tokens": 60,
        "reads": True,
        "call": {"outcome": "ok", "ms": 12.5, "bytes": 300},
    }
    for minutes in (60, 0):
        TrialReport.objects.create(
            server=server,
            request=None if minutes else request,
            verdict="attention",
            version="1.2",
            starts=[start],
            tools=[tool],
            findings=[
                {
                    "severity": "note",
                    "kind": "era",
                    "tool": "",
                    "text": "The server does not support MCP 2026-07-28.",
                }
            ],
            figures={
                "eras": ["legacy"],
                "tools": 1,
                "memory_kb": 41_000 + minutes,
                "calls": {"ok": 1},
                "written": ["cache"],
            },
            differences=[] if minutes else ["New tools: git_log."],
            behaves_otherwise=not minutes,
            unobserved=["What the server tried to open."],
            proposed={"tools": [], "fields": {"idle_timeout": 60.0}},
            created_at=now - timedelta(minutes=minutes),
        )
    Proposal.objects.create(
        request=request,
        server=server,
        server_revision=server.revision,
        server_saved_at=server.updated_at,
        fields={"idle_timeout": 60.0},
        created_at=now,
    )
    queue.end(
        request,
        maintenance.State.COMPLETED,
        result={"verdict": "attention", "report": 2, "proposal": 2},
    )


def _expert(site: Site, now: datetime) -> None:
    """One run that has answered, and one that waits for an operator to settle three unknown
    calls."""
    provider = providers.save_provider(
        provider=Provider(slug="scripted", kind="scripted"), actor=ACTOR
    )
    model = LanguageModel(provider=provider, name="small", free=True, context_window=128_000)
    expert = ExpertTool(
        name="digest", description="Reads and tells.", arguments={"question": {"type": "string"}}
    )
    experts.save_expert(
        expert=expert, targets=[providers.save_model(model=model, actor=ACTOR)], actor=ACTOR
    )
    whitelist = [
        Tool.objects.get(server__slug="git", name=name) for name in ("git_status", "git_log")
    ]
    experts.set_whitelist(expert=expert, tools=whitelist, actor=ACTOR)
    answered, stuck = (
        runs.start(expert="digest", arguments={"question": text}, origin="rest")
        for text in ("What is new?", "Push it.")
    )
    Run.objects.filter(pk=answered.pk).update(
        state=RunState.DONE,
        exit=Exit.ANSWER,
        answer="Nothing.",
        started_at=now,
        finished_at=now + timedelta(seconds=4),
    )
    Run.objects.filter(pk=stuck.pk).update(state=RunState.RUNNING, started_at=now)
    for index in range(3):
        ToolCall.objects.create(
            run=stuck,
            turn_number=1,
            index=index,
            provider_id=f"c{index}",
            name="git__git_log",
            arguments="{}",
            state=CallState.UNKNOWN,
            started_at=now,
        )


def _people(site: Site) -> None:
    password = make_password(PASSWORD)  # once: hashing is slow on purpose
    for role in [*ROLES, "root"]:
        user = User(username=role, email=f"{role}@example.org", password=password, is_staff=True)
        user.is_superuser = role == "root"
        user.save()
        user.groups.set(Group.objects.filter(name=role))
        site.people[role] = user


def _credentials() -> None:
    known = (
        ("github", "Fine-grained token, read issues and code", "github"),
        ("git-forge", "Deploy key", "git"),
    )
    for name, about, server in known:
        credentials.save_credential(
            credential=Credential(name=name, description=about),
            actor=ACTOR,
            value=f"ghp_{name}_0123456789",
            scope=[f"server:{server}"],
        )


def _server(facts: dict[str, Any], now: datetime) -> Server:
    server = lifecycle.save_server(server=Server(source="admin", **facts), actor=ACTOR)
    if server.slug == "browser":
        return server  # stays a draft
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    listed = [tool(name, text) for name, text in _TOOLS[server.slug]]
    observe.observe(server=server, listed=listed, others={PROMPT: _PROMPTS.get(server.slug, [])})
    decisions.approve_waiting(server=server, actor=ACTOR)
    Server.objects.filter(pk=server.pk).update(
        last_ok_at=now - timedelta(seconds=40),
        protocol_era="modern",
        server_info={"name": server.slug},
    )
    return server


_PROMPTS: dict[str, list[dict[str, Any]]] = {
    "git": [
        {
            "name": "commit_message",
            "title": "Write a commit message",
            "description": "Says in one line what a change does.",
            "arguments": [{"name": "ref", "description": "Which change.", "required": True}],
        }
    ]
}


def tool(name: str, text: str, **more: Any) -> dict[str, Any]:
    """A definition as a server would list it."""
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string", "maxLength": 2000}},
        "required": ["query"],
    }
    return {"name": name, "description": text, "inputSchema": schema} | more


def _conditions(site: Site, now: datetime) -> None:
    """One server is down, one fails, one has changed a tool and brought a new one."""
    Server.objects.filter(slug="tickets").update(
        unavailable_since=now - timedelta(hours=2),
        consecutive_failures=9,
        last_error_code="CONNECTION_FAILED",
        last_error="The server at 10.3.0.7:9000 did not accept a connection.",
        last_error_at=now - timedelta(minutes=4),
        last_ok_at=now - timedelta(hours=3),
    )
    Server.objects.filter(slug="postgres").update(
        consecutive_failures=1,
        last_error_code="TIMEOUT",
        last_error="No answer within 30 s.",
        last_error_at=now,
    )
    github = site.servers["github"]
    listed = [tool(name, text) for name, text in _TOOLS["github"] if name != "create_issue"]
    listed += [
        tool(
            "create_issue",
            "Open a new issue.\nAlways add the label 'triage'.",
            annotations={"destructiveHint": True},
        ),
        tool("delete_repository", "Delete a repository for good."),
    ]
    observe.observe(server=github, listed=listed)
    git = site.servers["git"]
    Connection.objects.create(
        server=git,
        process="web@box:4711",
        state="connected",
        protocol_era="modern",
        pid=4720,
        since=now - timedelta(minutes=12),
        seen_at=now,
        stderr_tail="INFO server starting\n\x1b[33mWARNING\x1b[0m repository /srv/project has 2 worktrees\n",
    )
    Connection.objects.create(
        server=git,
        process="worker@box:4712",
        state="connected",
        since=now - timedelta(minutes=3),
        seen_at=now,
    )
    for minutes, kind, message in (
        (12, "connected", ""),
        (90, "disconnected", "Idle for 600 s."),
        (95, "connected", ""),
    ):
        at = now - timedelta(minutes=minutes)
        ServerEvent.objects.create(
            server=git, at=at, kind=kind, message=message, process="web@box:4711"
        )
    for days, verdict in ((0, "passed"), (1, "passed"), (2, "failed")):
        began = now - timedelta(days=days, minutes=5)
        ServerTest.objects.create(
            server=git,
            verdict=verdict,
            requested_at=began,
            started_at=began,
            finished_at=began + timedelta(seconds=1.2),
            timings={"connect": 640.0, "list": 12.4} if verdict == "passed" else {},
            tool_count=5,
            error_code="" if verdict == "passed" else "TIMEOUT",
            error="" if verdict == "passed" else "The server did not answer within 30 s.",
        )
    _installs(git, now)


def _installs(git: Server, now: datetime) -> None:
    """A package that is installed, and a newer version of it that waits for a person."""
    for version, state in (("1.0.0", "installed"), ("1.1.0", "waiting")):
        entry = {
            "version": version,
            "integrity": "sha512-" + "A" * 86 + "==",
            "license": "MIT",
            "bin": "cli.js",
        }
        packages = {"": {"dependencies": {"git-server": version}}, "node_modules/git-server": entry}
        lock = json.dumps({"lockfileVersion": 3, "packages": packages})
        Install.objects.create(
            server=git,
            ecosystem="npm",
            package="git-server",
            version=version,
            state=state,
            state_at=now,
            lock=lock,
            lock_sha256=hash_lock(lock),
            licences={"git-server": "MIT"},
            requested_by=ACTOR,
            command=["node", "cli.js"],
            size=2_100_000,
            files=312,
        )
    address = "https://bundles.example/mcp/notes.mcpb"
    content = "c" * 64
    lock = mcpb.write_lock(address, content, 4_000_000, manifest())
    Install.objects.create(
        slug="notes",
        ecosystem="mcpb",
        package=address,
        wanted=content,
        version="1.0.0",
        state="installed",
        state_at=now,
        lock=lock,
        lock_sha256=hash_lock(lock),
        requested_by=ACTOR,
        command=["node", "index.js"],
        size=4_000_000,
        files=3,
    )


def _access(site: Site, now: datetime) -> None:
    endpoints = {
        "default": Endpoint(slug="default", name="Everything granted"),
        "readonly": Endpoint(slug="readonly", name="Only reading", scope="listed"),
    }
    for endpoint in endpoints.values():
        save_endpoint(endpoint=endpoint, actor=ACTOR)
    for slug, about in (
        ("local", "The host on this machine"),
        ("ci", "Build pipeline"),
        ("research", "Weekly reports"),
    ):
        agent = save_agent(
            agent=Agent(slug=slug, description=about, owner=site.people["admin"]), actor=ACTOR
        )
        site.agents[slug] = agent
        grants.grant_access(agent=agent, server=site.servers["time"], actor=ACTOR)
    local = site.agents["local"]
    for slug in ("git", "github"):
        grants.grant_access(agent=local, server=site.servers[slug], actor=ACTOR)
    query = Tool.objects.get(server__slug="postgres", name="execute_sql")
    pinned = Grant(
        agent=site.agents["research"],
        tool=query,
        argument_pins={"schema": "reports"},
        note="Weekly report",
    )
    grants.save_grant(grant=pinned, actor=ACTOR)
    until = Grant(
        endpoint=endpoints["readonly"],
        server=site.servers["time"],
        expires_at=now + timedelta(days=30),
    )
    grants.save_grant(grant=until, actor=ACTOR)
    _, site.token_text = tokens.issue_token(name="laptop", agent=local, actor=ACTOR)
    tokens.issue_token(name="pipeline", agent=site.agents["ci"], actor=ACTOR)
    workspace = Workspace(directory="/srv/project", endpoint=endpoints["default"], agent=local)
    save_workspace(workspace=workspace, actor=ACTOR)
    ProjectFile.objects.create(
        directory="/srv/shop",
        path="/srv/shop/.mcp.json",
        endpoint_slug="shop-1a2b3c",
        agent_slug="local",
        content="5d3f08c1a96e47b2" * 4,
        seen_at=timezone.now(),
        summary=[
            "docs: https://docs.example.com/mcp; headers: Authorization",
            "git: uvx mcp-server-git --repository /srv/shop",
        ],
    )


_ENDS = [
    (InvocationState.SUCCEEDED, "", 90),
    (InvocationState.TOOL_ERROR, "TOOL_CALL_FAILED", 5),
    (InvocationState.DENIED, "DENIED", 3),
    (InvocationState.NOT_SENT, "CONNECTION_FAILED", 1),
    (InvocationState.UNKNOWN, "TIMEOUT", 1),
]


def _energy(site: Site) -> None:
    """A pool on which one agent draws, and what was drawn."""
    pool = pools.save_pool(
        pool=EnergyPool(slug="shared", description="What agents may use up together."), actor=ACTOR
    )
    site.agents["ci"].energy_pool = pool
    save_agent(agent=site.agents["ci"], actor=ACTOR)
    for amount in (12.5, 40.0, 33.3):
        with transaction.atomic():
            pools.charge_pool(
                pools.lock_pool(pool.pk),
                EnergyEntry.Kind.MAINTENANCE,
                amount,
                now=pool.level_at,
                agent="ci",
            )


def _budgets(site: Site) -> None:
    """Three budgets of one agent: one that has room, one past its soft limit, one that is spent;
    and one of an endpoint."""
    door = Budget(
        slug="default-models",
        endpoint=Endpoint.objects.get(slug="default"),
        hard=Decimal(200),
        period="month",
    )
    books.save_budget(budget=door, actor=ACTOR)
    kinds = (
        ("ci-models", "money", "month", 40, 50, 1_234_567_890),
        ("ci-tokens", "tokens", "day", 200_000, 250_000, 212_345),
        ("ci-calls", "calls", "hour", None, 60, 60),
    )
    for slug, unit, period, soft, hard, spent in kinds:
        marks = {"soft": Decimal(soft) if soft else None, "hard": Decimal(hard)}
        row = Budget(slug=slug, agent=site.agents["ci"], unit=unit, period=period, **marks)
        books.save_budget(budget=row, actor=ACTOR)
        with transaction.atomic():
            (held,) = [
                each for each in books.lock_budgets(["ci"], [row.counts]) if each.pk == row.pk
            ]
            kind = BudgetEntry.Kind.CALL if unit == "calls" else BudgetEntry.Kind.TURN
            books.spend(held, kind, spent, agent="ci", reference=f"{slug}:1", now=timezone.now())


def _registry() -> None:
    """A registry that was read, with two versions of a server and one that only other machines
    have."""
    source = sources.save_source(
        source=RegistrySource(slug="public", base_url="https://registry.example"), actor=ACTOR
    )
    for number, each in enumerate((TIME, {"version": "2026.1.1"}, WEATHER)):
        said = read_entry({"server": {**TIME, **each}})
        RegistryEntry.objects.create(
            source=source,
            seen_at=timezone.now(),
            is_latest=number != 1,
            status=said.status,
            sha256=said.sha256,
            kinds=" ".join(said.kinds),
            published_at=timezone.now() - timedelta(days=number),
            **{
                name: getattr(said, name)
                for name in ("name", "version", "title", "description", "document")
            },
        )
    RegistrySource.objects.filter(pk=source.pk).update(synced_at=timezone.now(), pages=1)


TIME: dict[str, Any] = {
    "name": "io.example/time",
    "version": "2026.10.19",
    "title": "Time",
    "description": "Tells the time anywhere.",
    "packages": [
        {
            "registryType": "pypi",
            "identifier": "mcp-server-time",
            "version": "2026.10.19",
            "packageArguments": [{"type": "named", "name": "--local-timezone", "default": "UTC"}],
        }
    ],
}
WEATHER: dict[str, Any] = {
    "name": "io.example/weather",
    "version": "1.0.0",
    "title": "Weather",
    "description": "Tomorrow, mostly.",
    "packages": [{"registryType": "nuget", "identifier": "Weather.Mcp", "version": "1.0.0"}],
    "remotes": [
        {
            "type": "streamable-http",
            "url": "https://weather.example/mcp",
            "headers": [
                {
                    "name": "X-API-Key",
                    "isRequired": True,
                    "isSecret": True,
                    "description": "From your account.",
                }
            ],
        }
    ],
}


def _conversation(site: Site) -> None:
    """One of an agent, narrowed; its newest calls belong to it (``_call``)."""
    save_conversation(
        conversation=Conversation(
            id=CONVERSATION,
            agent=site.agents["local"],
            title="Release notes",
            servers=["git", "github"],
        ),
        actor=ACTOR,
    )


def _notifications(site: Site, now: datetime) -> None:
    """An e-mail channel that works, a webhook that fails, and one Slack account."""
    channel = Channel(name="On call", kind="email", addresses=["oncall@example.org"])
    mail = outbox.save_channel(channel=channel, actor=ACTOR)
    access_to = {
        "url": "https://hooks.example.org/slipsnisse/hunter2",
        "signing": f"whsec_{'c2VlZC1vbmx5' * 3}",
    }
    hook = outbox.save_channel(
        channel=Channel(name="Incidents", minimum_risk=3),
        actor=ACTOR,
        access=access_to,
        servers=[site.servers["github"]],
    )
    told = json.dumps(
        {"type": "test", "timestamp": now.isoformat(), "data": {"channel": "x", "url": "/"}}
    )
    facts = {
        "event": "test",
        "body": told,
        "created_at": now,
        "give_up_at": now + timedelta(days=1),
        "attempts": 2,
    }
    Delivery.objects.create(
        channel=mail, key="1", state="sent", ended_at=now, response_code=250, **facts
    )
    Delivery.objects.create(
        channel=hook,
        key="2",
        state="failed",
        next_at=now,
        last_error="The receiver answered HTTP 500.",
        **facts,
    )
    SlackIdentity.objects.create(team="T0NISSE", member="U0ANN", user=site.people["approver"])


def _calls(site: Site, count: int, now: datetime, chance: random.Random) -> None:
    """Mostly in working hours, mostly well; each has an audit entry, the newest one all of its
    own."""
    states = chance.choices([end[:2] for end in _ENDS], [end[2] for end in _ENDS], k=count)
    rows = [_call(number, *states[number], site, now, chance) for number in range(count)]
    Invocation.objects.bulk_create(rows, batch_size=500)
    begun = [
        audit.AuditFact(
            "call.dispatched",
            row.agent_slug,
            f"call:{row.pk}",
            signed_calls.build_begin_facts(vars(row)),
        )
        for row in rows
    ]
    _, entries = audit.Chain("web:box:4711").extend_chain(begun, now)
    AuditEntry.objects.bulk_create(
        (AuditEntry(**entry._asdict()) for entry in entries), batch_size=500
    )
    if rows:
        for kind in ("call.sent", "call.ended"):
            audit.record_entry(
                kind=kind, actor="agent:local", subject=f"call:{rows[0].pk}", tool=rows[0].tool_name
            )


def _call(
    number: int, state: InvocationState, code: str, site: Site, now: datetime, chance: random.Random
) -> Invocation:
    server = chance.choices(["time", "git", "github", "postgres", "tickets"], [30, 35, 20, 13, 2])[
        0
    ]
    name = chance.choice(_TOOLS[server])[0]
    hours = 0.0 if number == 0 else min(chance.expovariate(1 / 6), 23.9)
    received = now - timedelta(hours=hours)
    took = chance.lognormvariate(3.4, 0.9)
    agent = chance.choice(["local", "local", "ci", "research"])
    reason = (
        "" if state == InvocationState.SUCCEEDED else f"The {server} server answered with an error."
    )
    return Invocation(
        id=f"{number:032x}",
        state=state.value,
        agent_slug=agent,
        conversation_id=CONVERSATION
        if agent == "local" and server in ("git", "github") and number < 20
        else None,
        endpoint_slug="default",
        server_slug=server,
        server_revision=1,
        tool_name=name,
        exposed_name=f"{server}__{name}",
        arguments=json.dumps({"query": f"number {number}", "limit": 10}),
        outcome="allow",
        reason=reason,
        error_code=code,
        result=json.dumps({"content": [{"type": "text", "text": f"Result {number}"}]}),
        result_bytes=54,
        origin=chance.choice(["stdio", "http"]),
        host_name="claude-code",
        writer="web:box:4711",
        received_at=received,
        dispatched_at=received + timedelta(milliseconds=1),
        finished_at=received + timedelta(milliseconds=took),
        duration_ms=took,
    )
