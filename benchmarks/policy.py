"""What a decision costs, in microseconds: ``python -m benchmarks.policy``.

Rules about one tool each, rules about every call, and a mix as a large site might have; every rule
has a condition that is false, the dearest case: nothing fits, so every candidate must be asked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from mcpregistry.domain.policy.decision import PolicyQuestion, RuleOutcome
from mcpregistry.domain.policy.rules import Rules, RuleSpec
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec

AIM = 200.0  # microseconds that 1,000 compiled rules may add to a call
ROUNDS = 15
CALLS = 300

AGENT = AgentSpec(1, "bench", frozenset(), None, ())
ENDPOINT = EndpointSpec("default", "", "", "double", "none", False, False, ())
SERVER = ServerSpec(1, "shop", "Shop", 1, "stdio", "lazy", 30, 1 << 20, True)
TOOL = ToolSpec(1, 1, "order", "hash", {}, False)
ARGUMENTS = {
    "amount": 5,
    "path": "/srv/data/a.txt",
    "to": "ann@example.org",
    "options": {"dry_run": True, "tags": ["a"]},
}

Make = Callable[[int], RuleSpec]


def rule(number: int, condition: str, **scope: int) -> RuleSpec:
    return RuleSpec(number + 1, f"rule {number}", number % 50, RuleOutcome.DENY, condition, **scope)


def tool_scoped(number: int) -> RuleSpec:
    return rule(number, f"args.amount > {100 + number}", tool_id=number)


def of_every_call(number: int) -> RuleSpec:
    return rule(number, f"args.amount > {100 + number}")


def longer(number: int) -> RuleSpec:
    return rule(
        number, f'has(args.amount) && args.amount > {100 + number} && args.path.startsWith("/etc")'
    )


def of_the_tool(number: int) -> RuleSpec:
    return rule(number, f'tool.read_only && server.slug == "s{number}"')


def by_the_clock(number: int) -> RuleSpec:
    return rule(number, f"call.hour > {24 + number}")


def mixed(number: int) -> RuleSpec:
    """Of ten: six about a tool, two about a server, one about an agent, one about every call."""
    kind = number % 10
    condition = f"args.amount > {100 + number}"
    if kind < 6:
        return rule(number, condition, tool_id=number)
    if kind < 8:
        return rule(number, condition, server_id=number % 40)
    return rule(number, condition, agent_id=number % 20) if kind == 8 else of_every_call(number)


CASES: dict[str, Make] = {
    "mixed, as a large site": mixed,
    "about one tool each": tool_scoped,
    "of tool and server only": of_the_tool,
    "about every call": of_every_call,
    "about every call, by the clock": by_the_clock,
    "about every call, three tests": longer,
}


def microseconds(policy: Rules) -> float:
    """CPU time, the median of several rounds, after the first call of this agent and tool."""
    question = PolicyQuestion(
        AGENT, ENDPOINT, SERVER, TOOL, ARGUMENTS, now=time.time(), origin="http"
    )
    assert policy(question).outcome is RuleOutcome.ALLOW
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            policy(question)
        rounds.append((time.process_time() - began) / CALLS * 1e6)
    return statistics.median(rounds)


def main() -> None:
    counts = (0, 10, 100, 1_000)
    print(
        "CPU time of one decision in microseconds, by the number of compiled rules (each has a condition, and no rule matches)\n"
    )
    print(f"{'rules':<32}" + "".join(f"{count:>9,}" for count in counts) + f"{'compile ms':>12}")
    for name, make in CASES.items():
        took = []
        compiled = 0.0
        for count in counts:
            began = time.perf_counter()
            policy = Rules([make(number) for number in range(count)], RuleOutcome.ALLOW)
            compiled = (time.perf_counter() - began) * 1000
            took.append(microseconds(policy))
        added = took[-1] - took[0]
        verdict = "" if added <= AIM else f"   above the aim of {AIM:.0f}"
        print(
            f"{name:<32}"
            + "".join(f"{each:>9.1f}" for each in took)
            + f"{compiled:>12.1f}{verdict}"
        )


if __name__ == "__main__":
    main()
