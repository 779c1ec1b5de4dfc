"""A site with a long record, in minutes: the same rows for the same figures, on whatever database
the settings name.

Servers, tools, agents and grants are made by ``bulk_create``; calls and the two signed, chained
audit entries of each go straight into their tables (COPY on PostgreSQL). Calls are spread over 25
days, most by few agents to few servers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

BATCH = 5_000
PROGRESS = 50_000  # calls between two lines of output
WRITERS = 20
STATES = (
    ("succeeded", 9_000),
    ("tool_error", 500),
    ("denied", 300),
    ("not_sent", 80),
    ("unknown", 60),
    ("expired", 30),
    ("rejected", 20),
    ("cancelled", 10),
)
RESULT = '{"content":[{"type":"text","text":"' + "x" * 200 + '"}]}'
FAILURES = (
    "No file named '/srv/{}'.",
    "The service answered with status 503 after {} ms.",
    "Row {} is locked.",
)
# of the busiest servers: the busiest agent holds a grant for each of their tools, too
GRANTED_SINGLY = 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of what there is to be."""

    calls: int = 100_000
    servers: int = 1_000
    tools: int = 5  # of each server
    agents: int = 200
    pending: int = 1_000


def fill(sizes: Sizes, now: datetime) -> None:
    """Everything, into an empty site. ``now``: when the last call came."""
    chance = random.Random(1)
    fill_configuration(sizes, now)
    names = _Names(sizes, chance)
    _calls(names.calls(sizes.calls, now), "web")
    _held(names, sizes.pending, now)
    _settled(now)


def fill_configuration(sizes: Sizes, now: datetime) -> None:
    """Servers, tools, agents and grants, but no calls."""
    from mcpregistry.domain.definitions.definition import hash_definition
    from mcpregistry.domain.text.canonical import encode_lossy_json
    from mcpregistry.models import Agent, Definition, Endpoint, Grant, Server, Tool

    Server.objects.bulk_create(
        Server(slug=f"server-{n:04}", command=["no-such-program"], lifecycle="active")
        for n in range(sizes.servers)
    )
    named = [_listed(n) for n in range(sizes.tools)]
    servers = list(Server.objects.order_by("id"))
    Tool.objects.bulk_create(
        (
            Tool(server=s, name=each["name"], first_seen_at=now, last_seen_at=now)
            for s in servers
            for each in named
        ),
        batch_size=500,
    )
    bodies = {each["name"]: (hash_definition(each), encode_lossy_json(each)) for each in named}
    Definition.objects.bulk_create(
        (
            Definition(
                tool=tool,
                hash=bodies[tool.name][0],
                body=bodies[tool.name][1],
                seen_at=now,
                decided_at=now,
                approved=True,
            )
            for tool in Tool.objects.order_by("id")
        ),
        batch_size=500,
    )
    approved = dict(Definition.objects.values_list("tool_id", "id"))
    tools = list(Tool.objects.order_by("id"))
    for tool in tools:
        tool.pinned_id = approved[tool.pk]
        tool.latest_id = approved[tool.pk]
    Tool.objects.bulk_update(tools, ["pinned", "latest"], batch_size=300)
    Agent.objects.bulk_create(Agent(slug=f"agent-{n:03}") for n in range(sizes.agents))
    Endpoint.objects.get_or_create(slug="default")
    agents = list(Agent.objects.filter(slug__startswith="agent-").order_by("id"))
    Grant.objects.bulk_create(
        (Grant(agent=agent, server=server, kind="") for agent in agents[:1] for server in servers),
        batch_size=500,
    )
    Grant.objects.bulk_create(
        (
            Grant(agent=a, server=servers[(n * 7 + k) % len(servers)])
            for n, a in enumerate(agents[1:])
            for k in range(5)
        ),
        batch_size=500,
    )
    busiest = Tool.objects.filter(server__in=servers[:GRANTED_SINGLY])
    Grant.objects.bulk_create(
        (Grant(agent=agents[0], tool=tool) for tool in busiest), batch_size=500
    )
    Grant.objects.update(created_at=now - timedelta(days=60))  # old enough for the access analyzer


def _listed(number: int) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": f"The {name} to use."}
        for name in ("path", "text", "mode")
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return {
        "name": f"tool_{number}",
        "description": f"Does what tool {number} does. " * 4,
        "inputSchema": schema,
    }


class _Names:
    """Who calls what: few agents and servers make most of the calls."""

    def __init__(self, sizes: Sizes, chance: random.Random) -> None:
        self.sizes = sizes
        self.chance = chance

    def one(self, identifier: str, at: datetime, state: str) -> dict[str, Any]:
        chance = self.chance
        sizes = self.sizes
        server = f"server-{int(sizes.servers * chance.random() ** 3):04}"
        tool = f"tool_{chance.randrange(sizes.tools)}"
        took = chance.expovariate(1 / 80)
        sent = state not in ("denied", "expired", "rejected", "cancelled", "pending")
        return {
            "id": identifier,
            "state": state,
            "agent_slug": f"agent-{int(sizes.agents * chance.random() ** 2):03}",
            "endpoint_slug": "default",
            "server_slug": server,
            "server_revision": 1,
            "tool_name": tool,
            "exposed_name": f"{server}__{tool}",
            "definition_hash": "d" * 64,
            "binding": "b" * 64,
            "arguments": f'{{"mode":"read","path":"/srv/{identifier[:8]}"}}',
            "outcome": "ask" if state == "pending" else "allow",
            "reason": "A rule allows it.",
            "error_code": "" if state == "succeeded" else chance.choice(_CODES),
            "result": self.choose_result(identifier, state),
            "result_bytes": 240 if state == "succeeded" else 0,
            "origin": chance.choices(("http", "stdio", "rest", "run"), (70, 20, 9, 1))[0],
            "host_name": "claude-code",
            "requester": "admin" if chance.random() < 0.01 else "",
            "request_id": f"req-{identifier[:12]}" if chance.random() < 0.3 else "",
            "writer": "",
            "received_at": at,
            "dispatched_at": at + timedelta(milliseconds=2) if sent else None,
            "finished_at": None if state == "pending" else at + timedelta(milliseconds=took),
            "lease_until": at + timedelta(days=1) if state == "pending" else None,
            "fence": 0,
            "duration_ms": None if state == "pending" else took,
        }

    def choose_result(self, identifier: str, state: str) -> str:
        if state == "succeeded":
            return RESULT
        return self.failure(identifier) if state == "tool_error" else ""

    def failure(self, identifier: str) -> str:
        """The result of a call that failed."""
        return f'{{"content":[{{"type":"text","text":"{self.chance.choice(FAILURES).format(identifier[:8])}"}}],"isError":true}}'

    def calls(self, count: int, now: datetime) -> Iterator[dict[str, Any]]:
        """Ended calls, the oldest first."""
        names, weights = zip(*STATES, strict=True)
        step = timedelta(days=25) / max(count, 1)
        for number in range(count):
            state = self.chance.choices(names, weights)[0]
            yield self.one(_identifier(self.chance), now - step * (count - number), state)


_CODES = ("TIMEOUT", "CONNECTION_FAILED", "DENIED", "TOOL_FAILED")


def _identifier(chance: random.Random) -> str:
    return f"{chance.getrandbits(128):032x}"


def _calls(rows: Iterable[dict[str, Any]], process: str) -> None:
    """Calls with their entries, a batch a transaction; ``process``: what the writers of the chains
    are called."""
    from django.db import transaction

    from mcpregistry.models import AuditEntry, Invocation
    from mcpregistry.services.records.audit import AuditRow, Chain

    chains = {n: Chain(f"{process}{n}") for n in range(WRITERS)}
    remaining = iter(rows)
    began = time.perf_counter()
    done = 0
    while batch := list(islice(remaining, BATCH)):
        entries: list[AuditRow] = []
        for row in batch:
            number = int(row["id"][-4:], 16) % WRITERS
            row["writer"] = chains[number].writer
            chains[number], told = chains[number].extend_chain(_facts(row), row["received_at"])
            entries += told
        with transaction.atomic():
            _insert(
                Invocation._meta.db_table, list(batch[0]), [tuple(row.values()) for row in batch]
            )
            _insert(AuditEntry._meta.db_table, AuditRow._fields, entries)
        done += len(batch)
        if done % PROGRESS == 0:
            print(f"{done:,} calls in {time.perf_counter() - began:.0f} s", flush=True)


def _facts(row: dict[str, Any]) -> list[Any]:
    from mcpregistry.services.records.audit import AuditFact

    about = {
        "tool": f"{row['server_slug']}::{row['tool_name']}",
        "binding": row["binding"],
        "decision": row["outcome"],
    }
    first = "call.dispatched" if row["dispatched_at"] else "call.asked"
    ended = {**about, "state": row["state"], "error": row["error_code"]}
    return [
        AuditFact(kind, row["agent_slug"], f"call:{row['id']}", said)
        for kind, said in ((first, about), (f"call.{row['state']}", ended))
        if kind != "call.pending"
    ]


def _insert(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from django.db import connection

    from mcpregistry.services.records.sql import adapt_moment, build_insert

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        plain = [
            [adapt_moment(value) if isinstance(value, datetime) else value for value in row]
            for row in rows
        ]
        cursor.executemany(build_insert(table, columns), plain)


def _held(names: _Names, count: int, now: datetime) -> None:
    from mcpregistry.models import ApprovalRequest

    held = [
        names.one(_identifier(names.chance), now - timedelta(seconds=3 * number), "pending")
        for number in range(count)
    ]
    _calls(held, "worker")
    ApprovalRequest.objects.bulk_create(
        (
            ApprovalRequest(
                id=_identifier(names.chance),
                call_id=row["id"],
                rule_name=f"Ask about {row['tool_name']}",
                rule_fingerprint="f" * 64,
                risk="high",
                risk_rank=3,
                asked_at=row["received_at"],
                decide_by=now + timedelta(days=1),
            )
            for row in held
        ),
        batch_size=500,
    )


def _settled(now: datetime) -> None:
    """What the clock has done on a site that has run for so long: hours counted, grants analyzed,
    statistics made."""
    from django.db import connection

    from mcpregistry.services.policy import findings
    from mcpregistry.services.records import call_hours, usage_sums
    from mcpregistry.services.upkeep import statistics

    call_hours.count_due(now)
    usage_sums.refresh_sums(now)
    while findings.refresh_findings(now, seconds=float("inf")):
        pass
    statistics.refresh()
    if connection.vendor == "postgresql":  # whose autovacuum the throw-away server goes without
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")


def now() -> datetime:
    """To the second."""
    return datetime.now(UTC).replace(microsecond=0)
