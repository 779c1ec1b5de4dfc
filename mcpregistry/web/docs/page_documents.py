"""Which page of the docs explains which page of the site."""

from __future__ import annotations

from django.http import HttpRequest
from django.urls import reverse

# The name of a record, or the start of a page's own name: a document, with the anchor of a section
# where one fits.
_ADMIN = {
    "index": "first-hour",
    "mcpregistry_server": "adding-servers",
    "mcpregistry_servertest": "faults",
    "mcpregistry_serverevent": "faults",
    "mcpregistry_tool": "definitions",
    "mcpregistry_tool_try": "calls#try-a-tool",
    "mcpregistry_definition": "definitions",
    "mcpregistry_connection": "faults#processes",
    "mcpregistry_install": "installs",
    "mcpregistry_registry": "registry",
    "mcpregistry_agent": "first-hour#5-give-an-agent-access-to-the-server",
    "mcpregistry_grant": "first-hour#5-give-an-agent-access-to-the-server",
    "who": "access",
    "context-bill": "access#the-context-bill",
    "analyzer": "access#the-access-analyzer",
    "mcpregistry_token": "hosts",
    "mcpregistry_endpoint": "hosts",
    "connect": "hosts#connect-a-host",
    "mcpregistry_hostsession": "sharing#sessions",
    "mcpregistry_invitation": "people",
    "mcpregistry_budget": "budgets",
    "mcpregistry_energy": "energy",
    "mcpregistry_policyrule": "rules",
    "mcpregistry_permit": "approvals",
    "mcpregistry_approvalrequest": "approvals",
    "mcpregistry_invocation": "calls",
    "mcpregistry_auditentry": "audit",
    "mcpregistry_conversation": "conversations",
    "mcpregistry_channel": "notifications",
    "mcpregistry_delivery": "notifications",
    "mcpregistry_slackidentity": "notifications",
    "mcpregistry_workspace": "hosts#connect-a-host",
    "mcpregistry_projectfile": "project-files",
    "mcpregistry_credential": "settings",
    "mcpregistry_configuration": "settings",
    "auth_": "people",
    "password_change": "people",
    "history-": "history",
    "subagents_": "expert-tools",
    "subagents_headend": "headends",
    "subagents_effortagent": "conversations",
    "subagents_maintenance": "sub-agent",
    "subagents_proposal": "sub-agent",
    "subagents_trialreport": "sub-agent",
}
_OTHERS = {"approvals": "approvals", "definitions": "definitions", "usage": "usage", "docs": ""}


def find_document_url(request: HttpRequest) -> str:
    """The address of the document about the page of this request; the contents where none fits, ""
    on the docs themselves."""
    match = request.resolver_match
    if match is None:
        return reverse("docs:index")
    place = (
        _OTHERS.get(match.namespace)
        if match.namespace in _OTHERS
        else _of_admin(match.url_name or "")
    )
    if place == "":
        return ""
    slug, mark, anchor = (place or "").partition("#")
    return (
        f"{reverse('docs:document', args=[slug])}{mark}{anchor}" if slug else reverse("docs:index")
    )


def _of_admin(name: str) -> str | None:
    """By the longest key that the page's name begins with."""
    fitting = [key for key in _ADMIN if name.startswith(key)]
    return _ADMIN[max(fitting, key=len)] if fitting else None
