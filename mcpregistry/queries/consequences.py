"""What a serious action would do, in sentences that are counted before anybody is asked: agents, tools, calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain.policy.decision import Outcome
from mcpregistry.models import Agent, ApprovalRequest, Endpoint, Invocation, Permit, PolicyRule, Server, Token, Tool

_LATELY = timedelta(hours=24)
_LOOKED_AT = 1_000  # of an endpoint's newest calls
_TOLD = 10  # records that are told one by one; of the others how many they are


@dataclass(frozen=True, slots=True)
class Touched:
    """How many agents may use a server, how many of its tools serve, how many of its calls wait for people."""

    agents: int
    tools: int
    held: int


def one_by_one(tell: Callable[[Any], list[str]], rows: Sequence[Any]) -> list[str]:
    """What will happen to each of several records, in the words of its own button; of many, to the first."""
    found = [f"{row}: {' '.join(tell(row))}" for row in rows[:_TOLD]]
    more = len(rows) - _TOLD
    return [*found, f"The same for {more} more."] if more > 0 else found


def touched(server: Server) -> Touched:
    """Three queries, however large the server is."""
    now = timezone.now()
    lasting = Q(grants__expires_at=None) | Q(grants__expires_at__gt=now)
    about = Q(grants__server=server) | Q(grants__tool__server=server)
    return Touched(
        agents=Agent.objects.filter(lasting & about, enabled=True).distinct().count(),
        tools=Tool.offers.serving().filter(server=server, enabled=True).count(),
        held=ApprovalRequest.objects.waiting().filter(call__server_slug=server.slug).count(),
    )


def disabling(server: Server) -> list[str]:
    """The server is switched off."""
    what = touched(server)
    return [
        f"{_count(what.tools, 'tool')} can no longer be seen or called, by {_count(what.agents, 'agent')} at once.",
        *_not_run(what.held),
        "Its connections are closed. Settings, grants and approvals stay for when it is enabled again.",
    ]


def auto_approving(server: Server) -> list[str]:
    """Granted calls of the whole server run without being asked about."""
    what = touched(server)
    harmless = Tool.offers.serving().filter(server=server, enabled=True, read_only=True, open_world=False).count()
    found = [
        f"{_count(what.agents, 'agent')} may call {_count(what.tools, 'tool')}, and those that it offers and somebody approves "
        "later, without a person being asked, unless a rule that a person wrote says otherwise."
    ]
    if what.tools > harmless:
        found.append(
            f"Of {what.tools - harmless} of them nobody has confirmed that they only read and reach nothing outside."
        )
    if what.held:
        found.append(
            f"{_count(what.held, 'call')} that {_wait(what.held)} now still need{'s' * (what.held == 1)} a decision."
        )
    return found


def approving_waiting(server: Server) -> list[str]:
    """Every definition of the server that waits is approved."""
    waiting, what = server.tools.waiting(), touched(server)
    alarms = waiting.filter(latest__severity__gte=2).count()
    found = [f"{_count(waiting.count(), 'definition')} will be served exactly as they are now; {_count(what.agents, 'agent')} "
             "with a grant for the server may call them."]  # fmt: skip
    if alarms:
        found.append(f"The scanner gave an alarm about {alarms} of them: read those first.")
    return found


def revoking_tokens(tokens: Sequence[Token]) -> list[str]:
    """Those of them that still open something do no more."""
    live = [token for token in tokens if token.revoked_at is None]
    return one_by_one(lambda token: revoking_token(token, live)[:2], live) + ["This cannot be undone."] * bool(live)


def revoking_token(token: Token, with_it: Sequence[Token] = ()) -> list[str]:
    """The token opens nothing any more, nor do those that are revoked with it."""
    others = (
        Token.objects.filter(agent=token.agent_id, user=token.user_id, revoked_at=None)
        .filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        .exclude(pk__in=[token.pk, *(each.pk for each in with_it)])
        .count()
    )
    used = f"It was last used {token.last_used_at:%Y-%m-%d %H:%M} UTC." if token.last_used_at else "It was never used."
    kind = "agent" if token.agent else "person"
    left = f"{_count(others, 'other token')} of the {kind} go{'es' * (others == 1)} on working." if others else ""
    return [
        f"Whoever connects as '{token.agent or token.user}' with this token is refused from now on. {used}",
        left or f"The {kind} has no other token: what uses this one is cut off until it gets a new one.",
        "This cannot be undone.",
    ]


def revoking_permit(permit: Permit) -> list[str]:
    """Calls that the permit let run are asked about again."""
    left = "any number of" if permit.uses_left is None else str(permit.uses_left)
    return [
        f"'{permit.agent}' is asked about again for {permit.tool}; {left} uses were left.",
        "It cannot be given back. A new one can be given with the next approval.",
    ]


def switching_off_agent(agent: Agent) -> list[str]:
    """The agent is switched off: who connects as it is refused."""
    live = agent.tokens.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None).count()
    return [
        f"Every list of '{agent}' is empty from now on, and {_count(live, 'token')} of it {_is(live)} refused.",
        *_not_run(ApprovalRequest.objects.waiting().filter(call__agent_slug=agent.slug).count()),
        "Its grants, tokens and rules stay for when it is enabled again.",
    ]


def switching_off_endpoint(endpoint: Endpoint) -> list[str]:
    """The endpoint is switched off: hosts are told that it does not exist."""
    calls = Invocation.objects.filter(endpoint_slug=endpoint.slug, received_at__gte=timezone.now() - _LATELY)
    agents = len(set(calls.order_by("-received_at").values_list("agent_slug", flat=True)[:_LOOKED_AT]))
    return [
        f"Hosts are told that '{endpoint}' does not exist. {_count(agents, 'agent')} called something there in the last "
        "24 hours.",
        *_not_run(ApprovalRequest.objects.waiting().filter(call__endpoint_slug=endpoint.slug).count()),
        "What it lists and shows stays for when it is enabled again.",
    ]


def _not_run(held: int) -> list[str]:
    said = f"{_count(held, 'call')} that {_wait(held)} for a decision will not run, even if approved."
    return [said] if held else []


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def approving_selected(tools: Sequence[Tool]) -> list[str]:
    """The newest definition of each tool that was chosen in the list is approved."""
    waiting = [tool for tool in tools if tool.present and tool.latest_id not in (None, tool.pinned_id)]
    alarms = sum(1 for tool in waiting if tool.latest is not None and tool.latest.severity >= 2)
    servers = len({tool.server_id for tool in waiting})
    found = [
        f"{_count(len(waiting), 'definition')} of {_count(servers, 'server')} will be served exactly as they are now."
    ]
    if len(tools) > len(waiting):
        found.append(f"{_count(len(tools) - len(waiting), 'tool')} that you chose have nothing that waits.")
    if alarms:
        found.append(f"The scanner gave an alarm about {alarms} of them: read those first.")
    return [*found, "A scanner does not find everything: approve what you have read."]


def rejecting_selected(tools: Sequence[Tool]) -> list[str]:
    """The newest definition of each tool that was chosen in the list is refused."""
    return [
        f"The newest definition of {_count(len(tools), 'tool')} will never be served; one approved before goes on where "
        "the server still offers it."
    ]


def disabling_selected(tools: Sequence[Tool]) -> list[str]:
    """Tools that were chosen in the list are hidden."""
    serving = [tool for tool in tools if tool.enabled]
    names = {(tool.server.slug, tool.key) for tool in serving}
    waiting = ApprovalRequest.objects.waiting().values_list("call__server_slug", "call__tool_name")
    held = sum(1 for each in waiting if each in names)
    found = [f"{_count(len(serving), 'tool')} can no longer be seen or called by any agent, until enabled again."]
    return [*found, f"{_count(held, 'call')} that {_wait(held)} for a decision will not run."] if held else found


def switching_off(rules: Sequence[PolicyRule]) -> list[str]:
    """Rules that were chosen in the list decide nothing any more."""
    live = [rule for rule in rules if rule.live]
    stopping = sum(1 for rule in live if rule.outcome != Outcome.ALLOW)
    found = [f"{_count(len(live), 'rule')} will decide nothing until switched on again."]
    if stopping:
        found.append(
            f"{stopping} of them deny or ask: what they stopped goes as other rules say, or as it goes where no rule fits."
        )
    return found


def approving_clean(server: Server, count: int) -> list[str]:
    """Those definitions of the server that wait and gave no alarm are approved, ``count`` of them."""
    return [
        f"{_count(count, 'definition')} of {server.slug} will be served exactly as they were shown; "
        f"{_count(touched(server).agents, 'agent')} with a grant for the server may call them.",
        "A scanner does not find everything: approve what you have read.",
    ]


def disabling_servers(servers: Sequence[Server]) -> list[str]:
    """Servers that were chosen in the list are switched off."""
    return one_by_one(disabling, servers)


def revoking_permits(permits: Sequence[Permit]) -> list[str]:
    """Permits that were chosen in the list let nothing run any more."""
    return one_by_one(revoking_permit, permits)
