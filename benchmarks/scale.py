"""Every page and list of a site with a long record: how long it takes, how many questions it asks,
and the slowest of them.

python -m benchmarks.scale [--calls 100000] [--postgres] [--over 300] [--only PART] [--worst 20]
[--plans]

The site is made by ``filling.py`` in a folder of its own; ``--keep FOLDER`` keeps it, or takes the
one that is there (SQLite). Pages are asked through Django's test client, as an administrator:
nothing of the network is in the figures. The CPU time is the one to compare on a machine that does
other things as well: that of this process and, on PostgreSQL, of its connection's backend.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROUNDS = 3
QUICK = 100.0
WORST = 20
MINUTE = 60.0
_TRIVIAL = "/account/second-factor/"  # the frame of every page, and nothing of the record
_RECORD = ("mcpregistry_invocation", "mcpregistry_auditentry")
_LEFT_OUT = ("/config/export", "/openapi.json")  # documents, not lists


@dataclass(frozen=True, slots=True)
class Taken:
    """What one address took."""

    address: str
    status: int
    milliseconds: float
    cpu_ms: float
    queries: int
    slowest: str
    slowest_ms: float
    kilobytes: float
    # processor's time of a page that reads nothing, looked at within the same minute
    trivial_ms: float = 0.0
    # lines of plans that go through the whole of the calls or of the log
    scans: tuple[str, ...] = ()


def main(chosen: argparse.Namespace) -> int:
    """Fill, ask, print. Returns how many addresses took more than ``--over`` milliseconds of
    CPU."""
    from benchmarks import filling
    from mcpregistry.models import Invocation
    from mcpregistry.services.configuration.snapshot import load_snapshot, set_followed_store

    if not Invocation.objects.exists():
        began = time.perf_counter()
        filling.fill(
            filling.Sizes(calls=chosen.calls, pending=min(1_000, chosen.calls // 10)), filling.now()
        )
        print(f"filled in {time.perf_counter() - began:.0f} s", flush=True)
    found = []
    configuration = load_snapshot()
    set_followed_store(lambda: configuration)  # as a web process does
    gc.collect()
    # as a web process does: else some addresses have the whole site walked through in their time
    gc.freeze()
    trivial = 0.0
    measured = -MINUTE
    for address in addresses():
        if chosen.only not in address:
            continue
        if time.monotonic() - measured > MINUTE:
            taken(_TRIVIAL, chosen.token)
            trivial = taken(_TRIVIAL, chosen.token).cpu_ms
            measured = time.monotonic()
        found.append(replace(taken(address, chosen.token), trivial_ms=trivial))
        print(line(found[-1]), flush=True)
    slow = [each for each in found if each.cpu_ms > chosen.over]
    refused = sum(each.status >= 400 for each in found)
    print(
        f"\n{len(found)} addresses, {len(slow)} above {chosen.over:.0f} ms of CPU, {refused} refused"
    )
    for each in found:
        if each.scans:
            print(f"scans: {each.address}: {'; '.join(each.scans)}")
    for each in sorted(found, key=lambda each: -each.cpu_ms)[: chosen.worst]:
        print("\n" + line(each))
        print(f"  {each.slowest_ms:.0f} ms: {each.slowest[:600]}")
        if chosen.plans:
            print("  " + plan(each.slowest).replace("\n", "\n  "))
    return len(slow)


def line(each: Taken) -> str:
    """One row of the table."""
    return (
        f"{each.milliseconds:8.0f} ms {each.cpu_ms:7.0f} CPU {each.queries:4} queries, slowest {each.slowest_ms:7.1f} ms "
        f"{each.kilobytes:6.0f} KB {each.status} trivial {each.trivial_ms:4.0f} {each.address}"
    )


def taken(address: str, token: str) -> Taken:
    """The address, asked three times unless it is quick; figures of the middle one."""
    from django.db import connection, reset_queries
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(raise_request_exception=False, SERVER_NAME="localhost")
    rest = address.startswith("/api/") or address == "/metrics"
    if rest:
        client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    else:
        from django.contrib.auth.models import User

        client.force_login(User.objects.get(username="admin"))
    rounds = []
    for _ in range(ROUNDS):
        reset_queries()  # Django keeps the last 9,000, and counts no more
        began = time.perf_counter()
        cpu = _cpu()
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address)
            size = (
                len(answer.content)
                if hasattr(answer, "content")
                else len(b"".join(answer.streaming_content))
            )
        slowest = max(
            asked.captured_queries,
            key=lambda query: float(query["time"]),
            default={"sql": "", "time": "0"},
        )
        rounds.append(
            Taken(
                address,
                answer.status_code,
                (time.perf_counter() - began) * 1000,
                (_cpu() - cpu) * 1000,
                len(asked),
                slowest["sql"],
                float(slowest["time"]) * 1000,
                size / 1000,
            )
        )
        if rounds[-1].milliseconds < QUICK:
            break
    middle = statistics.median_low(each.milliseconds for each in rounds)
    found = next(each for each in rounds if each.milliseconds == middle)
    return replace(found, scans=tuple(scans(query["sql"] for query in asked.captured_queries)))


def _cpu() -> float:
    """Seconds of CPU of this process and of the backend that serves its connection, which runs on
    this machine."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return time.process_time()
    connection.ensure_connection()
    backend = Path(f"/proc/{connection.connection.info.backend_pid}/stat").read_text()
    user, system = backend.rpartition(")")[2].split()[11:13]
    return time.process_time() + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def scans(queries: Iterable[str]) -> list[str]:
    """Lines of their plans by which the whole of the calls or of the log is read; indexes of few
    rows do not count."""
    lines = []
    for sql in dict.fromkeys(queries):
        if any(f'"{table}"' in sql for table in _RECORD):
            lines += [each.strip() for each in plan(sql).splitlines() if _is_scan(each.strip())]
    return lines


def _is_scan(line: str) -> bool:
    if not line.startswith(
        ("SCAN", "Seq Scan", "Parallel Seq Scan", "->  Seq Scan", "->  Parallel Seq Scan")
    ):
        return False
    return (
        any(f"{word} {table}" in line for table in _RECORD for word in ("SCAN", "on"))
        and "call_o" not in line
    )


def plan(sql: str) -> str:
    """How the database answers it."""
    from django.db import connection

    if not sql.lstrip().upper().startswith("SELECT"):
        return ""
    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    with connection.cursor() as cursor:
        cursor.execute(
            explain + sql.replace("%", "%%") if connection.vendor == "postgresql" else explain + sql
        )
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


# What there is to ask


def addresses() -> Iterator[str]:
    """Every list of the admin with each filter and search, every page of the navigation, every list
    of REST."""
    yield from _seeing()
    yield from _pages()
    yield from _admin_lists()
    yield from _rest()
    yield "/metrics"


def _seeing() -> Iterator[str]:
    from django.urls import reverse

    from mcpregistry.models import Grant
    from mcpregistry.queries.usage import PERIODS, By

    narrowings = (
        "",
        "&server=server-0000",
        "&agent=agent-000",
        "&endpoint=default",
        "&search=tool_1",
    )
    for period in PERIODS:
        yield from (f"{reverse('usage:index')}?by={by}&period={period}" for by in By)
        yield from (
            f"{reverse('usage:index')}?by=tool&period={period}{each}" for each in narrowings[1:]
        )
        yield from (f"{reverse('usage:failures')}?period={period}{each}" for each in narrowings)
    for days in ("1", "7", "30", "90"):
        yield from (
            f"{reverse('analyzer')}?days={days}{each}"
            for each in ("", "&page=3", "&page=50", "&agent=agent-100")
        )
        pinned = Grant.objects.filter(tool__isnull=False).order_by("pk").first()
        if pinned:
            yield f"{reverse('analyzer')}?days={days}&grant={pinned.pk}"
    yield from (
        reverse("context-bill") + each
        for each in ("?agent=agent-000&endpoint=default", "?endpoint=default")
    )
    yield from (
        reverse("who") + each for each in ("?server=server-0000", "?agent=agent-000", "?risk=high")
    )
    yield from (
        reverse("find") + each for each in ("?q=server-0001", "?q=tool_1", "?q=nothing-like-it")
    )


def _pages() -> Iterator[str]:
    from django.urls import reverse

    from controlplane.navigation import AREAS
    from mcpregistry.models import ApprovalRequest

    pages = (page for area in AREAS for page in area.pages)
    yield from (reverse(page.url) for page in pages if not page.url.endswith("_changelist"))
    yield from (reverse("admin:index") + f"?period={each}" for each in ("week", "month"))
    yield reverse("approvals:live")
    held = ApprovalRequest.objects.select_related("call").order_by("asked_at").first()
    if held is not None:
        yield reverse("approvals:detail", args=[held.pk])
        for name in ("approvals:queue", "approvals:history"):
            for key, value in (
                ("agent", held.call.agent_slug),
                ("server", held.call.server_slug),
                ("search", "nothing"),
            ):
                yield f"{reverse(name)}?{urlencode({key: value})}"
    yield reverse("approvals:history") + "?end=rejected"


def _admin_lists() -> Iterator[str]:
    from django.contrib import admin
    from django.urls import reverse

    for model, site in sorted(
        admin.site._registry.items(), key=lambda pair: pair[0]._meta.label_lower
    ):
        meta = model._meta
        where = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
        yield where
        yield where + "?p=3"
        if site.search_fields:
            yield from (f"{where}?q={words}" for words in ("server-0001", "nothing-like-it"))
        yield from (where + choice for choice in _choices(site, where))
        if row := model._default_manager.order_by("pk").last():
            yield reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def _choices(site: Any, where: str) -> Iterator[str]:
    """Each filter's choices: the second, which is the first that narrows, and the last."""
    from django.contrib.auth.models import User
    from django.test import RequestFactory

    request = RequestFactory().get(where)
    request.user = User.objects.get(username="admin")
    for spec in site.get_changelist_instance(request).filter_specs:
        texts = [
            choice["query_string"]
            for choice in spec.choices(site.get_changelist_instance(request))
            if "query_string" in choice
        ]
        yield from dict.fromkeys([*texts[1:2], *texts[-1:]] if len(texts) > 1 else texts)


def _rest() -> Iterator[str]:
    from mcpregistry.api.v1 import api

    for where, operations in api.get_openapi_schema()["paths"].items():
        if "get" not in operations or "{" in where or where.endswith(_LEFT_OUT):
            continue
        yield where
        for parameter in operations["get"].get("parameters", ()):
            if parameter["in"] == "query":
                yield from (
                    f"{where}?{urlencode({parameter['name']: each})}" for each in _values(parameter)
                )
    yield from _rest_of_one()


def _rest_of_one() -> Iterator[str]:
    from mcpregistry.models import Invocation

    yield "/api/v1/servers/server-0000"
    yield "/api/v1/servers/server-0000/status"
    yield f"/api/v1/invocations/{Invocation.objects.order_by('received_at').values_list('pk', flat=True).first()}"


_SAMPLES = {
    "agent": ("agent-000", "agent-199", "nobody"),
    "server": ("server-0000", "server-0999", "nothing"),
    "endpoint": ("default", "nothing"),
    "tool": ("tool_1", "server-0001__tool_1", "nothing"),
    "request_id": ("nothing",),
    "conversation": ("nothing",),
    "kind": ("call.succeeded", "server.saved", "nothing.at.all"),
    "actor": ("agent-000", "user:admin", "nobody"),
    "subject": ("server:server-0001", "nothing"),
    "rule": ("Ask about tool_1", "nothing"),
    "limit": ("200",),
    "since": ("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"),
    "until": ("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"),
    "state": ("succeeded", "pending", "rejected", "decided"),
}


def _values(parameter: dict[str, Any]) -> Iterable[str]:
    named = _enum(parameter.get("schema", {}))
    return named or _SAMPLES.get(parameter["name"], ())


def _enum(schema: dict[str, Any]) -> list[str]:
    found = [str(each) for each in schema.get("enum", ())]
    for part in schema.get("anyOf", ()):
        found += _enum(part)
    return found


# The site


def _chosen() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument(
        "--postgres",
        action="store_true",
        help="Use a temporary PostgreSQL server instead of SQLite.",
    )
    parser.add_argument(
        "--database",
        default="",
        help="URL of a running PostgreSQL database that is empty or contains this site.",
    )
    parser.add_argument(
        "--over",
        type=float,
        default=300.0,
        help="CPU time in milliseconds above which an address counts as slow.",
    )
    parser.add_argument(
        "--worst", type=int, default=WORST, help="Number of addresses that are listed at the end."
    )
    parser.add_argument("--only", default="", help="Measure only addresses that contain this text.")
    parser.add_argument(
        "--plans",
        action="store_true",
        help="Show the query plan of the slowest query of each slow address.",
    )
    parser.add_argument("--keep", default="", help="Folder for the site. The folder is kept.")
    return parser.parse_args()


def _run() -> int:
    chosen = _chosen()
    with ExitStack() as stack:
        folder = chosen.keep or tempfile.mkdtemp(prefix="slipsnisse-scale-")
        if not chosen.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
        os.environ |= {"SLIPSNISSE_VAR": folder, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        os.environ.pop("DATABASE_URL", None)
        if chosen.database:
            os.environ["DATABASE_URL"] = chosen.database
        elif chosen.postgres:
            from tests import postgres

            data = Path(folder) / "postgres"
            server = stack.enter_context(postgres.running(data if data.exists() else None))
            os.environ["DATABASE_URL"] = server.url
            if chosen.keep and not data.exists():
                stack.callback(lambda: (server.stop(), shutil.copytree(server.data, data)))
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        stack.callback(_leave)
        chosen.token = _token()
        return main(chosen)


def _token() -> str:
    from django.contrib.auth.models import User

    from mcpregistry.services.access import tokens

    user, _ = User.objects.get_or_create(
        username="admin", defaults={"is_superuser": True, "is_staff": True}
    )
    return tokens.issue_token(name="scale", actor="bench", user=user)[1]


def _leave() -> None:
    from django.db import connections

    connections.close_all()
    for each in connections.all():
        if hasattr(each, "close_pool"):
            each.close_pool()


if __name__ == "__main__":
    sys.exit(min(_run(), 1))
