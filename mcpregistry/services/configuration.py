"""Workspaces, named credentials and the site's own settings; and the end of agents and endpoints."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Configuration, Credential, Endpoint, Workspace
from mcpregistry.services import audit
from mcpregistry.services.records import save_checked


@transaction.atomic
def save_workspace(*, workspace: Workspace, actor: str) -> Workspace:
    kind = "workspace.changed" if workspace.pk else "workspace.created"
    save_checked(workspace)
    facts = {"endpoint": workspace.endpoint.slug, "agent": workspace.agent.slug}
    audit.record(kind=kind, actor=actor, subject=f"workspace:{workspace.directory}", **facts)
    return workspace


@transaction.atomic
def delete_workspace(*, workspace: Workspace, actor: str) -> None:
    audit.record(kind="workspace.deleted", actor=actor, subject=f"workspace:{workspace.directory}")
    workspace.delete()


@transaction.atomic
def save_credential(*, credential: Credential, actor: str, value: str | None = None) -> Credential:
    """Create or change a credential; ``value`` None keeps the stored one. The value is never audited."""
    kind = "credential.changed" if credential.pk else "credential.created"
    if value is not None:
        if "\x00" in value or "\n" in value or "\r" in value:
            raise ConfigInvalid("A credential holds a NUL or a line break.", remedy="Enter the bare secret.")
        credential.value = value
    save_checked(credential)
    audit.record(kind=kind, actor=actor, subject=f"credential:{credential.name}", new_value=value is not None)
    return credential


@transaction.atomic
def delete_credential(*, credential: Credential, actor: str) -> None:
    """Servers that refer to it start without that value, and say so in their errors."""
    audit.record(kind="credential.deleted", actor=actor, subject=f"credential:{credential.name}")
    credential.delete()


@transaction.atomic
def save_configuration(*, configuration: Configuration, actor: str) -> Configuration:
    # The form may be older than the last change of the configuration; its revision must not go back.
    configuration.revision = Configuration.objects.select_for_update().get(id=1).revision
    save_checked(configuration)
    facts = {
        "payloads_days": configuration.keep_payloads_days,
        "calls_days": configuration.keep_calls_days,
        "default_outcome": configuration.default_outcome,
    }
    audit.record(kind="configuration.changed", actor=actor, subject="configuration", **facts)
    return configuration


@transaction.atomic
def delete_agent(*, agent: Agent, actor: str) -> None:
    """Its tokens, grants and workspaces go with it; the records of its calls stay."""
    audit.record(kind="agent.deleted", actor=actor, subject=f"agent:{agent.slug}")
    agent.delete()


@transaction.atomic
def delete_endpoint(*, endpoint: Endpoint, actor: str) -> None:
    """Hosts that are connected to it lose it; its grants and workspaces go with it."""
    audit.record(kind="endpoint.deleted", actor=actor, subject=f"endpoint:{endpoint.slug}")
    endpoint.delete()
