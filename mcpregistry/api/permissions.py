"""The one table of who may do what over REST. An operation that is not in it cannot be served.

A person needs a Django permission; the four roles (``services/access/roles.py``) are made of these.
The token of an agent may call tools, read its own list, and look after its own held calls, nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use one operation.

    ``person``: the permission a person needs (of the app ``mcpregistry`` unless it names another).
    ``agent``: whether an agent's token is good enough. ``also``: more permissions that the person
    needs.
    """

    person: str
    agent: bool = False
    also: tuple[str, ...] = ()

    @property
    def permissions(self) -> dict[str, str]:
        """What the person needs, all of it, by the names that the table has."""
        return {
            name: name if "." in name else f"mcpregistry.{name}"
            for name in (self.person, *self.also)
        }


TABLE: dict[str, Rule] = {
    "GET /servers": Rule("view_server"),
    "POST /servers": Rule("add_server"),
    "POST /servers/read": Rule("add_server"),
    "GET /servers/{slug}": Rule("view_server"),
    "PATCH /servers/{slug}": Rule("change_server"),
    "DELETE /servers/{slug}": Rule("delete_server"),
    "GET /servers/{slug}/launch": Rule("confirm_server"),
    "POST /servers/{slug}/confirm": Rule("confirm_server"),
    "POST /servers/{slug}/enable": Rule("change_server"),
    "POST /servers/{slug}/disable": Rule("change_server"),
    "POST /servers/{slug}/keep-secrets": Rule("change_configuration"),
    "POST /servers/{slug}/refresh": Rule("test_server"),
    "POST /servers/{slug}/connect": Rule("test_server"),
    "POST /servers/{slug}/disconnect": Rule("test_server"),
    "POST /servers/{slug}/reconnect": Rule("test_server"),
    "GET /servers/{slug}/tests": Rule("view_servertest"),
    "POST /servers/{slug}/tests": Rule("test_server"),
    "GET /servers/{slug}/tests/{test_id}": Rule("view_servertest"),
    "GET /servers/{slug}/events": Rule("view_serverevent"),
    "GET /servers/{slug}/status": Rule("view_server"),
    "GET /installs": Rule("view_install"),
    "POST /installs": Rule("add_install"),
    "GET /installs/{install_id}": Rule("view_install"),
    "POST /installs/{install_id}/approve": Rule("approve_install"),
    "POST /installs/{install_id}/use": Rule("change_server"),
    "DELETE /installs/{install_id}": Rule("delete_install"),
    "POST /servers/{slug}/roll-back": Rule("change_server"),
    "GET /tools": Rule("view_tool"),
    "GET /tools/{name}": Rule("view_tool"),
    "PATCH /tools/{name}": Rule("change_tool"),
    "GET /tools/{name}/definitions": Rule("view_definition"),
    "POST /tools/{name}/call": Rule("call_tool", agent=True),
    "GET /definitions": Rule("view_definition"),
    "GET /definitions/{definition_id}": Rule("view_definition"),
    "POST /definitions/{definition_id}/approve": Rule("approve_definition"),
    "POST /definitions/{definition_id}/reject": Rule("approve_definition"),
    "POST /definitions/{definition_id}/revert": Rule("approve_definition"),
    "GET /drift": Rule("view_definition"),
    "GET /endpoints": Rule("view_endpoint"),
    "POST /endpoints": Rule("add_endpoint"),
    "GET /endpoints/{slug}": Rule("view_endpoint"),
    "PATCH /endpoints/{slug}": Rule("change_endpoint"),
    "DELETE /endpoints/{slug}": Rule("delete_endpoint"),
    "GET /endpoints/{slug}/tools": Rule("view_endpoint", agent=True),
    "GET /agents": Rule("view_agent"),
    "POST /agents": Rule("add_agent"),
    "GET /agents/{slug}": Rule("view_agent"),
    "PATCH /agents/{slug}": Rule("change_agent"),
    "DELETE /agents/{slug}": Rule("delete_agent"),
    "GET /agents/{slug}/tokens": Rule("view_token"),
    "POST /agents/{slug}/tokens": Rule("add_token"),
    "DELETE /agents/{slug}/tokens/{token_id}": Rule("delete_token"),
    "GET /grants": Rule("view_grant"),
    "POST /grants": Rule("add_grant"),
    "GET /grants/{grant_id}": Rule("view_grant"),
    "DELETE /grants/{grant_id}": Rule("delete_grant"),
    "GET /host-sessions": Rule("view_hostsession"),
    "GET /host-sessions/{session_id}": Rule("view_hostsession"),
    "POST /host-sessions/{session_id}/end": Rule("change_hostsession"),
    "GET /conversations": Rule("view_conversation", agent=True),
    "POST /conversations": Rule("add_conversation", agent=True),
    "GET /conversations/{conversation_id}": Rule("view_conversation", agent=True),
    "PATCH /conversations/{conversation_id}": Rule("change_conversation"),
    "POST /conversations/{conversation_id}/end": Rule("change_conversation", agent=True),
    "GET /conversations/{conversation_id}/messages": Rule("view_message", agent=True),
    "POST /conversations/{conversation_id}/messages": Rule("add_message", agent=True),
    "GET /registries": Rule("view_registrysource"),
    "POST /registries": Rule("add_registrysource"),
    "GET /registries/{slug}": Rule("view_registrysource"),
    "PATCH /registries/{slug}": Rule("change_registrysource"),
    "DELETE /registries/{slug}": Rule("delete_registrysource"),
    "POST /registries/{slug}/sync": Rule("sync_registrysource"),
    "GET /registry-entries": Rule("view_registryentry"),
    "GET /registry-entries/{entry_id}": Rule("view_registryentry"),
    "POST /registry-entries/{entry_id}/add": Rule("add_server"),
    "GET /registry-entries/{entry_id}/digest": Rule("add_server"),
    "GET /budgets": Rule("view_budget", agent=True),
    "POST /budgets": Rule("add_budget"),
    "GET /budgets/{slug}": Rule("view_budget", agent=True),
    "PATCH /budgets/{slug}": Rule("change_budget"),
    "DELETE /budgets/{slug}": Rule("delete_budget"),
    "GET /budgets/{slug}/entries": Rule("view_budgetentry", agent=True),
    "GET /energy": Rule("view_energypool", agent=True),
    "POST /energy": Rule("add_energypool"),
    "GET /energy/{slug}": Rule("view_energypool", agent=True),
    "PATCH /energy/{slug}": Rule("change_energypool"),
    "DELETE /energy/{slug}": Rule("delete_energypool"),
    "GET /energy/{slug}/entries": Rule("view_energyentry", agent=True),
    "POST /energy/{slug}/grant": Rule("change_energypool"),
    "GET /usage": Rule("view_invocation"),
    "GET /usage/failures": Rule("view_invocation"),
    "GET /invocations": Rule("view_invocation"),
    "GET /invocations/{invocation_id}": Rule("view_invocation"),
    "GET /approvals": Rule("view_approvalrequest"),
    "GET /approvals/{approval_id}": Rule("view_approvalrequest", agent=True),
    "GET /approvals/{approval_id}/result": Rule("view_approvalrequest", agent=True),
    "POST /approvals/{approval_id}/approve": Rule("decide_approval"),
    "POST /approvals/{approval_id}/reject": Rule("decide_approval"),
    "POST /approvals/{approval_id}/lift-refusal": Rule("decide_approval"),
    "POST /approvals/{approval_id}/withdraw": Rule("call_tool", agent=True),
    "GET /channels": Rule("view_channel"),
    "POST /channels": Rule("add_channel"),
    "GET /channels/{channel_id}": Rule("view_channel"),
    "PATCH /channels/{channel_id}": Rule("change_channel"),
    "DELETE /channels/{channel_id}": Rule("delete_channel"),
    "POST /channels/{channel_id}/test": Rule("change_channel"),
    "GET /deliveries": Rule("view_delivery"),
    "GET /deliveries/{delivery_id}": Rule("view_delivery"),
    "POST /deliveries/{delivery_id}/redeliver": Rule("change_channel"),
    "GET /rules": Rule("view_policyrule"),
    "POST /rules": Rule("add_policyrule"),
    "POST /rules/starter": Rule("add_policyrule"),
    # it answers with arguments of calls
    "POST /rules/test": Rule("view_policyrule", also=("view_invocation",)),
    "GET /rules/{rule_id}": Rule("view_policyrule"),
    "PATCH /rules/{rule_id}": Rule("change_policyrule"),
    "POST /rules/{rule_id}/live": Rule("change_policyrule"),
    "DELETE /rules/{rule_id}": Rule("delete_policyrule"),
    "POST /tools/{name}/auto-approval": Rule("add_policyrule"),
    "DELETE /tools/{name}/auto-approval": Rule("delete_policyrule"),
    "POST /servers/{slug}/auto-approval": Rule("add_policyrule"),
    "DELETE /servers/{slug}/auto-approval": Rule("delete_policyrule"),
    "GET /tools/{name}/annotations": Rule("view_tool"),
    "PUT /tools/{name}/annotations": Rule("approve_definition"),
    "GET /permits": Rule("view_permit"),
    "DELETE /permits/{permit_id}": Rule("decide_approval"),
    "GET /access": Rule("view_grant", also=("view_agent", "view_tool", "view_policyrule")),
    "GET /access/proposals": Rule("view_invocation", also=("view_grant",)),
    "POST /access/proposals/{grant_id}": Rule(
        "change_grant", also=("add_grant", "delete_grant", "view_grant", "view_invocation")
    ),
    "GET /context-bill": Rule("view_invocation", also=("view_agent", "view_tool", "view_grant")),
    "POST /context-bill/hide": Rule(
        "change_grant",
        also=(
            "add_grant",
            "delete_grant",
            "view_grant",
            "view_agent",
            "view_tool",
            "view_invocation",
        ),
    ),
    "GET /why": Rule("view_policyrule"),
    "POST /why": Rule("view_policyrule"),
    "GET /audit": Rule("view_auditentry"),
    "GET /audit/verification": Rule("view_auditentry"),
    "GET /config/export": Rule("change_server"),
    "GET /config/schema": Rule("view_server"),
    "POST /config/import": Rule("change_server", also=("add_server",)),
    "GET /status": Rule("view_server"),
    "GET /status/servers": Rule("view_server"),
}
