"""What an energy pool costs: calls a second of an agent without one, of one with, and of one whose
results tell it.

    python -m benchmarks.energy [--calls 300] [--rounds 4]

One web process, one stdio server. The three take turns, so that what drifts is in all of them;
SQLite, or the database that DATABASE_URL names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import site
from benchmarks.gateway import ECHO, STDIO

KINDS = ("no pool", "a pool", "a pool, cost reported")
# of each round: calls a second, milliseconds of CPU a call
Figures = dict[str, list[tuple[float, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--calls", type=int, default=300, help="Number of calls of each kind in each round."
    )
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    var = site.prepare()
    try:
        tokens = _furnished()
        port = site.free_port()
        with site.gateway(port) as web:
            for at_once in (1, 10):
                _printed(
                    at_once,
                    _measured(port, web.pid, tokens, at_once, options.calls, options.rounds),
                )
    finally:
        shutil.rmtree(var, ignore_errors=True)


def _furnished() -> Mapping[str, str]:
    """Three agents with the same grant; two draw on a pool that refills faster than they can
    spend."""
    from mcpregistry.models import Agent, Endpoint, EnergyPool, Server
    from mcpregistry.services.access import agents, grants, tokens
    from mcpregistry.services.energy import pools

    site.register("stdio", ECHO, transport="stdio", command=STDIO)
    agents.save_endpoint(endpoint=Endpoint(slug="told", tell_energy=True), actor="bench")
    pool = EnergyPool(slug="bench", capacity=1e9, regeneration=1e6)
    pool = pools.save_pool(pool=pool, actor="bench")
    found = {}
    for number, kind in enumerate(KINDS):
        agent = Agent(slug=f"bench{number}", energy_pool=pool if number else None)
        agent = agents.save_agent(agent=agent, actor="bench")
        grants.grant_access(agent=agent, server=Server.objects.get(slug="stdio"), actor="bench")
        found[kind] = tokens.issue_token(name="bench", actor="bench", agent=agent)[1]
    return found


def _measured(
    port: int, pid: int, tokens: Mapping[str, str], at_once: int, calls: int, rounds: int
) -> Figures:
    found: Figures = {kind: [] for kind in KINDS}
    for turn in range(rounds + 1):
        for kind in KINDS:
            endpoint = "told" if kind == KINDS[-1] else "bench"
            url = f"http://127.0.0.1:{port}/mcp/{endpoint}"
            argv = [
                "-m",
                "benchmarks.load",
                url,
                tokens[kind],
                "stdio__echo",
                str(at_once),
                str(calls),
            ]
            spent = site.cpu_seconds(pid)
            said = subprocess.run(
                [sys.executable, *argv],
                cwd=site.ROOT,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            if turn:  # the first loads whatever a first call loads
                cpu = (site.cpu_seconds(pid) - spent) * 1000 / calls
                found[kind].append((json.loads(said.stdout)["calls_per_second"], cpu))
    return found


def _printed(at_once: int, found: Figures) -> None:
    bare = _middle(found[KINDS[0]], 0)
    print(
        f"\n{at_once} at once (medians of rounds){'calls/s':>14}{'':8}{'CPU ms a call':>14}   calls/s of each round"
    )
    for kind in KINDS:
        middle = _middle(found[kind], 0)
        cpu = _middle(found[kind], 1)
        rounds = " ".join(f"{each:.0f}" for each, _ in found[kind])
        print(
            f"  {kind:30}{middle:14.0f}{100 * middle / bare:6.0f} %{cpu:14.2f}   {rounds}",
            flush=True,
        )


def _middle(rounds: list[tuple[float, float]], place: int) -> float:
    return statistics.median(each[place] for each in rounds)


if __name__ == "__main__":
    main()
