"""What a serious action would do, in sentences that are counted before anybody is asked: agents,
tools, calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    Endpoint,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    Token,
    Tool,
)

_LATELY = timedelta(hours=24)
_LOOKED_AT = 1_000  # of an endpoint's newest calls
_TOLD = 10  # records that are told one by one; of the others how many they are


@dataclass(frozen=True, slots=True)
class Touched:
    """How many agents may use a server, how many of its tools serve, how many of its calls wait for
    people."""

    agents: int
    tools: int
    held: int


def one_by_one(tell: Callable[[Any], list[str]], rows: Sequence[Any]) -> list[str]:
    """What will happen to each of several records, in the words of its own button; of many, to the
    first."""
    found = [f"{row}: {' '.join(tell(row))}" for row in rows[:_TOLD]]
    more = len(rows) - _TOLD
    if more <= 0:
        return found
    return [
        *found,
        _("This also applies to the other selected records (%(count)s).") % {"count": more},
    ]


def count_affected(server: Server) -> Touched:
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
    what = count_affected(server)
    return [
        _("%(agents)s can no longer see or call %(tools)s.")
        % {"agents": _agents(what.agents), "tools": _tools(what.tools)},
        *_not_run(what.held),
        _(
            "Its connections are closed. Its settings, grants and approvals are kept, and have an effect "
            "again after you enable it."
        ),
    ]


def auto_approving(server: Server) -> list[str]:
    """Granted calls of the whole server run without being asked about."""
    what = count_affected(server)
    harmless = (
        Tool.offers.serving()
        .filter(server=server, enabled=True, read_only=True, open_world=False)
        .count()
    )
    found = [
        _(
            "%(agents)s can call %(tools)s without an approval, and also tools of this server that are approved later. Only "
            "rules that a user wrote can still hold or deny these calls."
        )
        % {"agents": _agents(what.agents), "tools": _tools(what.tools)}
    ]
    if what.tools > harmless:
        text = ngettext(
            "%(count)s of these tools is not confirmed as read-only and closed-world.",
            "%(count)s of these tools are not confirmed as read-only and closed-world.",
            what.tools - harmless,
        )
        found.append(text % {"count": what.tools - harmless})
    if what.held:
        text = ngettext(
            "%(count)s call that waits now still needs a decision.",
            "%(count)s calls that wait now still need a decision.",
            what.held,
        )
        found.append(text % {"count": what.held})
    return found


def approving_waiting(server: Server) -> list[str]:
    """Every definition of the server that waits is approved."""
    waiting = server.tools.waiting()
    what = count_affected(server)
    alarms = waiting.filter(latest__severity__gte=2).count()
    found = [_describe_approved(waiting.count()), _can_call(what.agents)]
    return [*found, _alarms(alarms)] if alarms else found


def revoking_tokens(tokens: Sequence[Token]) -> list[str]:
    """Those of them that still open something do no more."""
    live = [token for token in tokens if token.revoked_at is None]
    return one_by_one(lambda token: revoking_token(token, live)[:2], live) + [
        _("This cannot be undone.")
    ] * bool(live)


def revoking_token(token: Token, with_it: Sequence[Token] = ()) -> list[str]:
    """The token opens nothing any more, nor do those that are revoked with it."""
    others = (
        Token.objects.filter(agent=token.agent_id, user=token.user_id, revoked_at=None)
        .filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        .exclude(pk__in=[token.pk, *(each.pk for each in with_it)])
        .count()
    )
    used = _("It was never used.")
    if token.last_used_at:
        used = _("It was last used on %(time)s UTC.") % {
            "time": f"{token.last_used_at:%Y-%m-%d %H:%M}"
        }
    refused = _("The token of '%(owner)s' is refused from now on.") % {
        "owner": token.agent or token.user
    }
    text = ngettext(
        "'%(owner)s' has %(count)s other token, which still works.",
        "'%(owner)s' has %(count)s other tokens, which still work.",
        others,
    )
    if not others:
        text = _(
            "'%(owner)s' has no other token, so its programs are refused until they get a new one."
        )
    left = text % {"owner": token.agent or token.user, "count": others}
    return [f"{refused} {used}", left, _("This cannot be undone.")]


def revoking_permit(permit: Permit) -> list[str]:
    """Calls that the permit let run are asked about again."""
    left = _("The number of its uses was not limited.")
    if permit.uses_left is not None:
        left = _("Uses left: %(count)s.") % {"count": permit.uses_left}
    text = _("Calls to %(tool)s by '%(agent)s' need an approval again.")
    return [
        f"{text % {'tool': permit.tool, 'agent': permit.agent}} {left}",
        _("This cannot be undone. You can add a new permit when you approve the next call."),
    ]


def switching_off_agent(agent: Agent) -> list[str]:
    """The agent is switched off: who connects as it is refused."""
    live = agent.tokens.filter(
        Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None
    ).count()
    text = ngettext(
        "'%(agent)s' sees no tools from now on, and its %(count)s token is refused.",
        "'%(agent)s' sees no tools from now on, and its %(count)s tokens are refused.",
        live,
    )
    return [
        text % {"agent": agent, "count": live},
        *_not_run(ApprovalRequest.objects.waiting().filter(call__agent_slug=agent.slug).count()),
        _("Its grants, tokens and rules are kept, and have an effect again after you enable it."),
    ]


def switching_off_endpoint(endpoint: Endpoint) -> list[str]:
    """The endpoint is switched off: hosts are told that it does not exist."""
    calls = Invocation.objects.filter(
        endpoint_slug=endpoint.slug, received_at__gte=timezone.now() - _LATELY
    )
    agents = len(
        set(calls.order_by("-received_at").values_list("agent_slug", flat=True)[:_LOOKED_AT])
    )
    return [
        _(
            "Hosts get a “not found” error for '%(endpoint)s'. %(agents)s made calls there in the last 24 hours."
        )
        % {"endpoint": endpoint, "agents": _agents(agents)},
        *_not_run(
            ApprovalRequest.objects.waiting().filter(call__endpoint_slug=endpoint.slug).count()
        ),
        _("Its grants and settings are kept, and have an effect again after you enable it."),
    ]


def _not_run(held: int) -> list[str]:
    text = ngettext(
        "%(count)s call that waits for a decision will not run, even if it is approved.",
        "%(count)s calls that wait for a decision will not run, even if they are approved.",
        held,
    )
    return [text % {"count": held}] if held else []


def _agents(number: int) -> str:
    return ngettext("%(count)s agent", "%(count)s agents", number) % {"count": number}


def _tools(number: int) -> str:
    return ngettext("%(count)s tool", "%(count)s tools", number) % {"count": number}


def _describe_approved(number: int) -> str:
    text = ngettext(
        "%(count)s definition is offered to agents exactly as it is now.",
        "%(count)s definitions are offered to agents exactly as they are now.",
        number,
    )
    return text % {"count": number}


def _can_call(agents: int) -> str:
    text = ngettext(
        "%(count)s agent has a grant for the server and can call them.",
        "%(count)s agents have a grant for the server and can call them.",
        agents,
    )
    return text % {"count": agents}


def _alarms(number: int) -> str:
    text = ngettext(
        "The scanner raised an alarm about %(count)s of them. Read it first.",
        "The scanner raised an alarm about %(count)s of them. Read these first.",
        number,
    )
    return text % {"count": number}


def _read_them() -> str:
    return _("A scanner does not find everything. Approve only what you have read.")


def approving_selected(tools: Sequence[Tool]) -> list[str]:
    """The newest definition of each tool that was chosen in the list is approved."""
    waiting = [
        tool for tool in tools if tool.present and tool.latest_id not in (None, tool.pinned_id)
    ]
    alarms = sum(1 for tool in waiting if tool.latest is not None and tool.latest.severity >= 2)
    found = [_describe_approved(len(waiting))]
    if len(tools) > len(waiting):
        text = ngettext(
            "%(count)s of the tools that you chose has no definition that waits for approval.",
            "%(count)s of the tools that you chose have no definition that waits for approval.",
            len(tools) - len(waiting),
        )
        found.append(text % {"count": len(tools) - len(waiting)})
    if alarms:
        found.append(_alarms(alarms))
    return [*found, _read_them()]


def rejecting_selected(tools: Sequence[Tool]) -> list[str]:
    """The newest definition of each tool that was chosen in the list is refused."""
    text = _(
        "The newest definition of %(tools)s is never offered to agents. If a definition was approved "
        "before and the server returns to it, agents can use it again."
    )
    return [text % {"tools": _tools(len(tools))}]


def disabling_selected(tools: Sequence[Tool]) -> list[str]:
    """Tools that were chosen in the list are hidden."""
    serving = [tool for tool in tools if tool.enabled]
    names = {(tool.server.slug, tool.key) for tool in serving}
    waiting = ApprovalRequest.objects.waiting().values_list("call__server_slug", "call__tool_name")
    held = sum(1 for each in waiting if each in names)
    text = _("No agent can see or call %(tools)s until you enable them again.")
    return [text % {"tools": _tools(len(serving))}, *_not_run(held)]


def switching_off(rules: Sequence[PolicyRule]) -> list[str]:
    """Rules that were chosen in the list decide nothing any more."""
    live = [rule for rule in rules if rule.live]
    stopping = sum(1 for rule in live if rule.outcome != RuleOutcome.ALLOW)
    text = ngettext(
        "%(count)s rule has no effect until you enable it again.",
        "%(count)s rules have no effect until you enable them again.",
        len(live),
    )
    found = [text % {"count": len(live)}]
    if stopping:
        text = ngettext(
            "%(count)s of them denies or asks. Other rules or the site's default then decide on these calls.",
            "%(count)s of them deny or ask. Other rules or the site's default then decide on these calls.",
            stopping,
        )
        found.append(text % {"count": stopping})
    return found


def approving_clean(server: Server, count: int) -> list[str]:
    """Those definitions of the server that wait and gave no alarm are approved, ``count`` of
    them."""
    return [
        ngettext(
            "%(count)s definition of %(server)s is offered to agents exactly as it was shown.",
            "%(count)s definitions of %(server)s are offered to agents exactly as they were shown.",
            count,
        )
        % {"count": count, "server": server.slug},
        _can_call(count_affected(server).agents),
        _read_them(),
    ]


def disabling_servers(servers: Sequence[Server]) -> list[str]:
    """Servers that were chosen in the list are switched off."""
    return one_by_one(disabling, servers)


def revoking_permits(permits: Sequence[Permit]) -> list[str]:
    """Permits that were chosen in the list let nothing run any more."""
    return one_by_one(revoking_permit, permits)
