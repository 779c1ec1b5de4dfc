"""How each kind of the document is saved: by the services that pages and REST use.

Each function returns the row; None where it could not be made, which was noted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from django.contrib.auth.models import Group
from django.db.models import Model

from controlplane.configuration.document_values import Entry, serialize_value
from controlplane.configuration.record_kinds import find_permissions, kind_of
from mcpregistry.domain.caller_rights import Rights
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import (
    Agent,
    Configuration,
    Endpoint,
    PolicyRule,
    RegistrySource,
    Server,
    Tool,
)
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.budgets import books
from mcpregistry.services.configuration import site as settings_of
from mcpregistry.services.configuration.rule_inputs import check_rule_inputs
from mcpregistry.services.configuration.saving import take_current
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.energy import pools
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit
from mcpregistry.services.registry import sources
from mcpregistry.services.servers import lifecycle
from subagents.effort import agents as effort
from subagents.models import LanguageModel
from subagents.services import experts, providers
from subagents.services.headends import configuring as headends

ACTOR = "importconfig"


class DocumentImport(Protocol):
    """What ``reading`` knows of the document while it is taken."""

    actor: str
    rights: Rights

    def confirms(self, entry: Entry) -> bool:
        """Whether what was decided there counts here."""

    def many(self, model: type[Model], names: Any) -> list[Any]:
        """The rows of these names."""

    def note(self, text: str) -> None:
        """Tell whoever imports."""

    def run_later(self, name: str, finish: Callable[[], None]) -> None:
        """Do this at the end of the section."""

    @property
    def missing(self) -> list[str]:
        """The secrets of this row that nobody gave."""


def _save_role(taking: DocumentImport, row: Group, entry: Entry) -> Group:
    row.save()
    row.permissions.set(find_permissions(entry.get("permissions", [])))
    return row


def _configuration(taking: DocumentImport, row: Configuration, entry: Entry) -> Configuration:
    return settings_of.save_configuration(configuration=row, actor=taking.actor)


def _credential(taking: DocumentImport, row: Any, entry: Entry) -> Any:
    return credentials.save_credential(
        credential=row, actor=taking.actor, value=row.value or None, scope=entry.get("scope", [])
    )


def _server(taking: DocumentImport, row: Server, entry: Entry) -> Server:
    row = lifecycle.save_server(server=row, actor=taking.actor, rights=taking.rights)
    if taking.confirms(entry) and not row.launch_confirmed:
        row = lifecycle.confirm_launch(
            server=row, actor=taking.actor, launch_hash=row.launch_hash()
        )
    if entry.get("confirmed") and not row.launch_confirmed:
        taking.note(f"servers/{row.slug}: the launch must be confirmed.")
    on = entry.get("enabled") is not False
    if on == row.enabled:
        return row
    switch = lifecycle.enable_server if on else lifecycle.disable_server
    return switch(server=row, actor=taking.actor)


def _save_tool(taking: DocumentImport, row: Tool, entry: Entry) -> Tool:
    body = _definition(entry.get("definition"))
    if body.get("name") != row.name:
        raise ConfigInvalid(
            "the name in the definition differs from the name of the tool.",
            remedy="Correct one of the two names.",
        )
    known = [each.data for each in (row.pinned, row.latest) if row.pk and each is not None]
    tool = (
        row
        if body in known
        else observe.record_described_tool(server=row.server, key=row.key, body=body)
    )
    if taking.confirms(entry) and tool.latest is not None:
        tool = decisions.approve(definition=tool.latest, actor=taking.actor)
    for column in _TOOL.fields():
        setattr(tool, column.name, getattr(row, column.name))
    before = take_current(tool, own=decisions.SEEN_OR_DECIDED)
    tool.full_clean()
    check_rule_inputs(tool, before, rights=taking.rights)
    tool.save()
    facts = {column.name: serialize_value(getattr(tool, column.name)) for column in _TOOL.fields()}
    facts["own_description"] = hash_parts(tool.own_description) if tool.own_description else ""
    audit.record_entry(kind="tool.changed", actor=taking.actor, subject=f"tool:{tool}", **facts)
    return tool


def _definition(said: Any) -> dict[str, Any]:
    try:
        body = json.loads(said) if isinstance(said, str) else said
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ConfigInvalid(
            "the entry of the tool has no definition.",
            remedy="Remove the entry from the document. The site reads the tool from its server.",
        )
    return body


def _provider(taking: DocumentImport, row: Any, entry: Entry) -> Any:
    row = providers.save_provider(provider=row, actor=taking.actor)
    if taking.confirms(entry) and row.draft_problem() is not None:
        row = providers.confirm_destination(
            provider=row, actor=taking.actor, shown=row.destination_hash()
        )
    if entry.get("confirmed") and row.draft_problem() is not None:
        taking.note(f"providers/{row.slug}: the destination of its key must be confirmed.")
    return row


def _expert(taking: DocumentImport, row: Any, entry: Entry) -> Any:
    """Callers that are new come when all others are gone: in between, experts could call each other
    in a circle."""
    targets = taking.many(LanguageModel, entry.get("models"))
    row = experts.save_expert(expert=row, targets=targets, actor=taking.actor, rights=taking.rights)
    users = taking.many(Agent, entry.get("users"))
    places = taking.many(Endpoint, entry.get("endpoints"))
    before = [*row.users.all()]
    if gone := {*before} - {*users}:
        experts.offer(
            expert=row,
            agents=[each for each in before if each not in gone],
            endpoints=places,
            actor=taking.actor,
        )
    if not gone or {*users} - {*before}:
        taking.run_later(
            row.name,
            lambda: experts.offer(expert=row, agents=users, endpoints=places, actor=taking.actor),
        )
    return row


def _channel(taking: DocumentImport, row: Any, entry: Entry) -> Any:

    if taking.missing:
        taking.note(
            f"channels/{row.name}: left out, because these secrets are missing: {', '.join(taking.missing)}."
        )
        return None
    return outbox.save_channel(
        channel=row,
        actor=taking.actor,
        servers=taking.many(Server, entry.get("servers")),
        rules=taking.many(PolicyRule, entry.get("rules")),
    )


def _save_registry(taking: DocumentImport, row: RegistrySource, entry: Entry) -> RegistrySource:
    """A token that is the stored one was not entered by the file's author: it may not move to
    another address by it."""
    stored = RegistrySource.objects.filter(pk=row.pk).first()
    kept = bool(taking.missing) or (stored is not None and stored.token == row.token)
    return sources.save_source(source=row, actor=taking.actor, token=None if kept else row.token)


def _slack_person(taking: DocumentImport, row: Any, entry: Entry) -> Any:
    return outbox.save_slack_identity(identity=row, actor=taking.actor) if row.user_id else None


_TOOL = kind_of("tools")
SAVERS: dict[str, Callable[[DocumentImport, Any, Entry], Any]] = {
    "roles": _save_role,
    "configuration": _configuration,
    "credentials": _credential,
    "servers": _server,
    "tools": _save_tool,
    "energy_pools": lambda taking, row, entry: pools.save_pool(pool=row, actor=taking.actor),
    "registries": _save_registry,
    "agents": lambda taking, row, entry: agents.save_agent(
        agent=row, actor=taking.actor, rights=taking.rights
    ),
    "budgets": lambda taking, row, entry: books.save_budget(budget=row, actor=taking.actor),
    "endpoints": lambda taking, row, entry: agents.save_endpoint(
        endpoint=row, actor=taking.actor, rights=taking.rights
    ),
    "workspaces": lambda taking, row, entry: agents.save_workspace(
        workspace=row, actor=taking.actor
    ),
    "providers": _provider,
    "models": lambda taking, row, entry: providers.save_model(model=row, actor=taking.actor),
    "experts": _expert,
    "effort_agents": lambda taking, row, entry: effort.save_effort_agent(
        row=row, actor=taking.actor
    ),
    "headends": lambda taking, row, entry: headends.save_headend(row=row, actor=taking.actor),
    "rules": lambda taking, row, entry: rules.save_rule(
        rule=row, actor=taking.actor, unanswered=True
    ),
    "grants": lambda taking, row, entry: grants.save_grant(grant=row, actor=taking.actor),
    "channels": _channel,
    "slack_people": _slack_person,
}

# Those that can be taken away again; the others (roles, tools, the site itself) end in their own
# ways.
DELETERS: dict[str, Callable[[DocumentImport, Any], object]] = {
    "credentials": lambda taking, row: credentials.delete_credential(
        credential=row, actor=taking.actor
    ),
    "servers": lambda taking, row: lifecycle.delete_server(
        server=row, actor=taking.actor, rights=taking.rights
    ),
    "energy_pools": lambda taking, row: pools.delete_pool(pool=row, actor=taking.actor),
    "registries": lambda taking, row: sources.delete_source(source=row, actor=taking.actor),
    "agents": lambda taking, row: agents.delete_agent(
        agent=row, actor=taking.actor, rights=taking.rights
    ),
    "budgets": lambda taking, row: books.delete_budget(budget=row, actor=taking.actor),
    "endpoints": lambda taking, row: agents.delete_endpoint(
        endpoint=row, actor=taking.actor, rights=taking.rights
    ),
    "workspaces": lambda taking, row: agents.delete_workspace(workspace=row, actor=taking.actor),
    "providers": lambda taking, row: providers.delete_provider(provider=row, actor=taking.actor),
    "models": lambda taking, row: providers.delete_model(model=row, actor=taking.actor),
    "experts": lambda taking, row: experts.delete_expert(
        expert=row, actor=taking.actor, rights=taking.rights
    ),
    "effort_agents": lambda taking, row: effort.delete_effort_agent(row=row, actor=taking.actor),
    "headends": lambda taking, row: headends.delete_headend(row=row, actor=taking.actor),
    "rules": lambda taking, row: rules.delete_rule(rule=row, actor=taking.actor),
    "grants": lambda taking, row: grants.withdraw_grant(grant=row, actor=taking.actor),
    "channels": lambda taking, row: outbox.delete_channel(channel=row, actor=taking.actor),
    "slack_people": lambda taking, row: outbox.delete_slack_identity(
        identity=row, actor=taking.actor
    ),
}
