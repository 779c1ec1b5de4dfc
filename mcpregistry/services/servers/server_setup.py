"""Setting a server up, from what was pasted to its first call: each verb is one step that a person
takes.

Invariants:
* A step leaves whole rows behind, so it can be left there and taken up by anybody who may take the
  next one.
* A secret becomes a credential of this server alone, or is sealed with the server; none stands in
  its command or address.
* Nothing runs by it: the server is a draft until its launch is confirmed, a tool is served once its
  definition is approved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import AlreadyExists, ConfigInvalid, Conflict
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.servers.launch import list_credential_names
from mcpregistry.models import Agent, Definition, Endpoint, Grant, PolicyRule, Server, Tool
from mcpregistry.services.access import credentials, grants
from mcpregistry.services.definitions import behaviour, decisions
from mcpregistry.services.policy.rules import AUTO, check_rule, find_free_rule_name, save_rule
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

# before the starter rules, behind an auto-approval and every rule that a person writes
PRIORITY = AUTO - 10


@dataclass(frozen=True, slots=True)
class ServerDraft:
    """A server as a person has read it over, not saved. Its words name each secret as
    ``${cred:NAME}``.

    ``secrets``: the values by NAME. ``kept``: the names of those that become credentials; the
    others are sealed with the server.
    """

    server: Server
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept: Collection[str] = ()


@transaction.atomic
def add_draft_server(*, draft: ServerDraft, user: User, actor: str) -> Server:
    """Save it as a draft, with its secrets where they belong. Raises AlreadyExists, ConfigInvalid
    and Denied."""
    server = draft.server
    if Server.objects.filter(slug=server.slug).exists():
        raise AlreadyExists(
            error_texts.say_already_exists("server", server.slug),
            remedy="Choose another short name.",
            key=server.slug,
        )
    named = list_credential_names(server.texts())
    for name, value in draft.secrets.items():
        if name in named:
            put = _keep_as_credential if name in draft.kept else _keep_in_server
            _replace(server, f"${{cred:{name}}}", put(server, name, value, user, actor))
    return lifecycle.save_server(server=server, actor=actor)


def _keep_as_credential(server: Server, name: str, value: str, user: User, actor: str) -> str:
    return credentials.keep_secret(
        name=name, what=name, value=value, slug=server.slug, user=user, actor=actor
    )


def _keep_in_server(server: Server, name: str, value: str, *_: object) -> str:
    """With the server itself, where only its environment and headers are sealed."""
    if name in list_credential_names([*server.command, server.cwd, server.url]):
        raise ConfigInvalid(
            f"The secret {name} would be readable in the command or the address.",
            remedy="Store the secret as a credential, or pass the secret to the server in the environment or in a header.",
        )
    return value


def _replace(server: Server, reference: str, text: str) -> None:
    def put(value: str) -> str:
        return value.replace(reference, text)

    server.command = [*map(put, server.command)]
    server.cwd = put(server.cwd)
    server.url = put(server.url)
    server.env = _map_values(server.env, put)
    server.headers = _map_values(server.headers, put)


def _map_values(pairs: Mapping[str, str], put: Callable[[str], str]) -> dict[str, str]:
    return {name: put(value) for name, value in pairs.items()}


# Definitions and rules


def list_proposed_rules(server: Server) -> list[PolicyRule]:
    """The rules that may be made; none where the server has rules."""
    return [] if server.rules.exists() else make_possible_rules(server)


def make_possible_rules(server: Server) -> list[PolicyRule]:
    """Rules by what tools do, not saved: reading runs, writing and destroying ask."""
    said: tuple[tuple[str, str, RuleOutcome, str], ...] = (
        (
            "reading runs",
            "tool.read_only",
            RuleOutcome.ALLOW,
            "Tools that are confirmed to only read.",
        ),
        (
            "writing asks",
            'tool.kind == "tool" && !tool.read_only && !tool.destructive',
            RuleOutcome.ASK,
            "Tools that change something and are confirmed not to be destructive.",
        ),
        (
            "destroying asks",
            'tool.kind == "tool" && tool.destructive',
            RuleOutcome.ASK,
            "Tools that may be destructive, and tools without confirmed annotations.",
        ),
    )
    return [
        PolicyRule(
            name=f"{server.slug}: {name}",
            server=server,
            condition=when,
            outcome=outcome,
            priority=PRIORITY,
            note=note,
        )
        for name, when, outcome, note in said
    ]


def explain_unanswerable(rule: PolicyRule) -> str:
    """Why nobody could answer what the rule asks yet; empty where somebody can."""
    try:
        check_rule(rule)
    except ConfigInvalid as error:
        return str(error)
    return ""


@transaction.atomic
def accept_definitions(
    *,
    server: Server,
    definitions: Collection[int],
    vouched: Collection[int],
    rules: Iterable[PolicyRule],
    user: User,
    actor: str,
) -> int:
    """Approve these definitions (ids), confirm what the server claims in them of these tools (ids),
    and make the rules.

    Raises Conflict when a definition is no longer what its tool says, or somebody else has rejected
    it or made rules. Returns how many were approved.
    """
    found = _lock_as_shown(server, definitions)
    with audit.collect_entries():
        if found:
            decisions.approve_all(definitions=found, actor=actor, user=user)
        _confirm_claims(set(vouched) & {each.tool_id for each in found}, actor)
        _save_rules(server, [*rules], actor)
    return len(found)


def _lock_as_shown(server: Server, ids: Collection[int]) -> list[Definition]:
    """The definitions, if they can still be approved; their tools are held, so that nobody else
    decides meanwhile."""
    rows = Definition.objects.filter(pk__in=ids, tool__server=server)
    [*Tool.offers.select_for_update(of=("self",)).filter(pk__in=rows.values("tool")).order_by("pk")]
    found = [*rows.select_related("tool")]
    if len(found) < len(set(ids)) or any(each.tool.latest_id != each.pk for each in found):
        raise Conflict(
            "The server has changed its definitions since you reviewed them.",
            remedy="Review the definitions again, then decide.",
        )
    if any(each.decided_at and not each.approved for each in found):
        raise Conflict(
            "One of the definitions was rejected after you reviewed them.",
            remedy="Review the definitions again, then decide.",
        )
    return found


def _confirm_claims(tools: Collection[int], actor: str) -> None:
    for tool in Tool.offers.filter(pk__in=tools).select_related("pinned", "server"):
        if behaviour.read_claims(tool):
            behaviour.confirm_claims(tool=tool, actor=actor)


def _save_rules(server: Server, rules: Sequence[PolicyRule], actor: str) -> None:
    if rules and server.rules.exists():
        raise Conflict(
            "The server already has rules. Nothing was changed.",
            remedy="Review the rules of the server.",
        )
    for rule in rules:
        rule.name = find_free_rule_name(rule.name)
        # stricter than no rule; the page says who is missing
        save_rule(rule=rule, actor=actor, unanswered=True)


# Who may use it


@transaction.atomic
def grant_to_agents(
    *,
    server: Server,
    agents: Iterable[Agent],
    endpoints: Iterable[Endpoint] = (),
    everything: bool = False,
    user: User,
    actor: str,
) -> list[Grant]:
    """Let agents use the server's tools, or everything that it offers, and endpoints list it. The
    same grant is not made twice. Returns the new ones.
    """
    kind = "" if everything else TOOL
    holders: list[dict[str, Any]] = [
        *({"agent": each} for each in agents),
        *({"endpoint": each} for each in endpoints),
    ]
    made = []
    for holder in holders:
        same = Grant.objects.filter(
            **holder, server=server, kind=kind, argument_pins={}, expires_at=None, uri=""
        )
        if not same.exists():
            made.append(
                grants.save_grant(
                    grant=Grant(**holder, server=server, kind=kind), actor=actor, user=user
                )
            )
    return made
