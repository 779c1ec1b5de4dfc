"""How long a change of the configuration takes until calls meet it: ``python -m benchmarks.changes
[--postgres]``.

The site has 1,000 servers with 5 tools each and 10,000 agents, in a folder of its own. This process
follows the database as a web process or ``runmcp`` does; another process makes the changes, one at
a time. The time runs from the moment at which the change was committed until this process has the
snapshot that later calls are decided by.
"""

from __future__ import annotations

import argparse
import gc
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

AIM = 1.0  # second
AGENTS = 10_000
SERVERS = 1_000
TOOLS = 5
HANG = 60.0  # seconds
KINDS = ("a grant", "an agent disabled", "a tool disabled", "a rule")


def main(rounds: int) -> None:
    """Fill the site, make the changes, print the figures."""
    from benchmarks import filling
    from mcpregistry.calls.watch.changes import Feed
    from mcpregistry.calls.watch.configuration import LiveConfiguration

    filling.fill_configuration(
        filling.Sizes(calls=0, servers=SERVERS, tools=TOOLS, agents=AGENTS, pending=0),
        filling.now(),
    )
    feed = Feed()
    configuration = LiveConfiguration(feed)
    seen: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()
    configuration.listeners.append(lambda _: seen.put((time.monotonic(), time.process_time())))
    began = time.monotonic()
    configuration.start()
    gc.collect()
    gc.freeze()  # as a web process and runmcp do
    print(f"the first snapshot: {time.monotonic() - began:.2f} s")
    feed.start()
    print(
        f"aim: {AIM:.1f} s; load {os.getloadavg()[0]:.1f}; time from the commit of a change until calls are decided by the change:"
    )
    try:
        for kind in KINDS:
            _measure_changes(kind, rounds, seen)
    finally:
        feed.stop()


def _measure_changes(kind: str, rounds: int, seen: queue.SimpleQueue[tuple[float, float]]) -> None:
    waited = []
    used = []
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.changes", "--make", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdin
        assert maker.stdout
        assert maker.stdout.readline() == "ready\n"
        for _ in range(rounds):
            cpu = time.process_time()
            maker.stdin.write("change\n")
            maker.stdin.flush()
            committed = float(maker.stdout.readline())
            at, spent = seen.get(timeout=HANG)
            waited.append(at - committed)
            used.append(spent - cpu)
        maker.stdin.close()
    print(
        f"  {kind:22} median {statistics.median(waited):.2f} s, longest {max(waited):.2f} s, "
        f"CPU {statistics.median(used):.2f} s ({rounds} changes)"
    )


def make_changes(kind: str) -> None:
    """Make one change for each line of the input, and answer with the time of its commit."""
    from mcpregistry.models import Agent, Grant, PolicyRule, Server, Tool

    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        match kind:
            case "a grant":
                agent = Agent.objects.get(slug=f"agent-{number + 500}")
                Grant.objects.create(agent=agent, server=Server.objects.get(slug="server-0001"))
            case "an agent disabled":
                agent = Agent.objects.get(slug=f"agent-{number + 700}")
                agent.enabled = False
                agent.save()
            case "a tool disabled":
                tool = Tool.objects.order_by("pk")[number]
                tool.enabled = False
                tool.save()
            case _:
                PolicyRule.objects.create(
                    name=f"rule {number}", condition="args.path == 'x'", outcome="deny"
                )
        print(time.monotonic(), flush=True)


def _run() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--postgres",
        action="store_true",
        help="Use a temporary PostgreSQL server instead of SQLite.",
    )
    parser.add_argument("--rounds", type=int, default=10, help="Number of changes of each kind.")
    parser.add_argument("--make", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django
    from django.core.management import call_command

    if chosen.make:
        django.setup()
        make_changes(chosen.make)
        return
    with ExitStack() as stack:
        os.environ["SLIPSNISSE_VAR"] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="slipsnisse-changes-")
        )
        os.environ.pop("DATABASE_URL", None)
        Path(os.environ["SLIPSNISSE_VAR"]).mkdir(exist_ok=True)
        if chosen.postgres:
            from tests import postgres

            os.environ["DATABASE_URL"] = stack.enter_context(postgres.running(None)).url
        django.setup()
        call_command("migrate", verbosity=0)
        main(chosen.rounds)


if __name__ == "__main__":
    _run()
