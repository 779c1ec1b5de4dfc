"""Agents, and the endpoints and workspaces by which hosts come in as one."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain import error_texts
from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Endpoint, Workspace
from mcpregistry.services.configuration.capabilities import check_capabilities
from mcpregistry.services.configuration.dependents import end_dependents
from mcpregistry.services.configuration.rule_inputs import check_rule_inputs
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit


@transaction.atomic
def save_agent(*, agent: Agent, actor: str, rights: Rights = deny_all_rights) -> Agent:
    """Create or change an agent. Raises ``ConfigInvalid``, and Denied as ``check_rule_inputs``."""
    before = take_current(agent)
    if not isinstance(agent.capabilities, list) or not all(
        isinstance(c, str) for c in agent.capabilities
    ):
        raise ConfigInvalid(
            "Capabilities must be a list of names.",
            remedy=error_texts.advise_form("a list", '["mcp_integration"]'),
        )
    check_capabilities(agent.capabilities)
    check_rule_inputs(agent, before, rights=rights)
    kind = "agent.created" if agent._state.adding else "agent.changed"
    save_checked(agent)
    audit.record_entry(
        kind=kind, actor=actor, subject=f"agent:{agent.slug}", capabilities=agent.capabilities
    )
    return agent


@transaction.atomic
def save_endpoint(*, endpoint: Endpoint, actor: str, rights: Rights = deny_all_rights) -> Endpoint:
    """Create or change an endpoint. Raises ``ConfigInvalid``, and Denied as
    ``check_rule_inputs``."""
    before = take_current(endpoint)
    check_rule_inputs(endpoint, before, rights=rights)
    kind = "endpoint.created" if endpoint._state.adding else "endpoint.changed"
    save_checked(endpoint)
    audit.record_entry(
        kind=kind, actor=actor, subject=f"endpoint:{endpoint.slug}", naming=endpoint.naming_style
    )
    return endpoint


@transaction.atomic
def save_workspace(*, workspace: Workspace, actor: str) -> Workspace:
    """Create or change a workspace. Raises ``ConfigInvalid``."""
    take_current(workspace)
    kind = "workspace.created" if workspace._state.adding else "workspace.changed"
    save_checked(workspace)
    facts = {"endpoint": workspace.endpoint.slug, "agent": workspace.agent.slug}
    audit.record_entry(kind=kind, actor=actor, subject=f"workspace:{workspace.directory}", **facts)
    return workspace


@transaction.atomic
def delete_workspace(*, workspace: Workspace, actor: str) -> None:
    """Delete a workspace."""
    audit.record_entry(
        kind="workspace.deleted", actor=actor, subject=f"workspace:{workspace.directory}"
    )
    workspace.delete()


@transaction.atomic
def delete_agent(*, agent: Agent, actor: str, rights: Rights = deny_all_rights) -> None:
    """Delete an agent with its tokens, grants and workspaces; the records of its calls stay.

    Raises Conflict as ``end_dependents``.
    """
    end_dependents(agent, actor=actor, rights=rights)
    audit.record_entry(kind="agent.deleted", actor=actor, subject=f"agent:{agent.slug}")
    agent.delete()


@transaction.atomic
def delete_endpoint(*, endpoint: Endpoint, actor: str, rights: Rights = deny_all_rights) -> None:
    """Delete an endpoint with its grants and workspaces; hosts that are connected to it lose it.

    Raises Conflict as ``end_dependents``.
    """
    end_dependents(endpoint, actor=actor, rights=rights)
    audit.record_entry(kind="endpoint.deleted", actor=actor, subject=f"endpoint:{endpoint.slug}")
    endpoint.delete()
