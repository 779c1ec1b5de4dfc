"""The one table of who may do what over REST. An operation that is not in it cannot be served.

A person needs a Django permission; the four roles (``services/access/roles.py``) are made of these.
The token of an agent may call tools, read its own list, and look after its own held calls, nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperationRule:
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


TABLE: dict[str, OperationRule] = {
    "GET /servers": OperationRule("view_server"),
    "POST /servers": OperationRule("add_server"),
    "POST /servers/read": OperationRule("add_server"),
    "GET /servers/{slug}": OperationRule("view_server"),
    "PATCH /servers/{slug}": OperationRule("change_server"),
    "DELETE /servers/{slug}": OperationRule("delete_server"),
    "GET /servers/{slug}/launch": OperationRule("confirm_server"),
    "POST /servers/{slug}/confirm": OperationRule("confirm_server"),
    "POST /servers/{slug}/enable": OperationRule("change_server"),
    "POST /servers/{slug}/disable": OperationRule("change_server"),
    "POST /servers/{slug}/keep-secrets": OperationRule("change_configuration"),
    "POST /servers/{slug}/refresh": OperationRule("test_server"),
    "POST /servers/{slug}/connect": OperationRule("test_server"),
    "POST /servers/{slug}/disconnect": OperationRule("test_server"),
    "POST /servers/{slug}/reconnect": OperationRule("test_server"),
    "GET /servers/{slug}/tests": OperationRule("view_servertest"),
    "POST /servers/{slug}/tests": OperationRule("test_server"),
    "GET /servers/{slug}/tests/{test_id}": OperationRule("view_servertest"),
    "GET /servers/{slug}/events": OperationRule("view_serverevent"),
    "GET /servers/{slug}/status": OperationRule("view_server"),
    "GET /installs": OperationRule("view_install"),
    "POST /installs": OperationRule("add_install"),
    "GET /installs/{install_id}": OperationRule("view_install"),
    "POST /installs/{install_id}/approve": OperationRule("approve_install"),
    "POST /installs/{install_id}/use": OperationRule("change_server"),
    "DELETE /installs/{install_id}": OperationRule("delete_install"),
    "POST /servers/{slug}/roll-back": OperationRule("change_server"),
    "GET /tools": OperationRule("view_tool"),
    "GET /tools/{name}": OperationRule("view_tool"),
    "PATCH /tools/{name}": OperationRule("change_tool"),
    "GET /tools/{name}/definitions": OperationRule("view_definition"),
    "POST /tools/{name}/call": OperationRule("call_tool", agent=True),
    "GET /definitions": OperationRule("view_definition"),
    "GET /definitions/{definition_id}": OperationRule("view_definition"),
    "POST /definitions/{definition_id}/approve": OperationRule("approve_definition"),
    "POST /definitions/{definition_id}/reject": OperationRule("approve_definition"),
    "POST /definitions/{definition_id}/revert": OperationRule("approve_definition"),
    "GET /drift": OperationRule("view_definition"),
    "GET /endpoints": OperationRule("view_endpoint"),
    "POST /endpoints": OperationRule("add_endpoint"),
    "GET /endpoints/{slug}": OperationRule("view_endpoint"),
    "PATCH /endpoints/{slug}": OperationRule("change_endpoint"),
    "DELETE /endpoints/{slug}": OperationRule("delete_endpoint"),
    "GET /endpoints/{slug}/tools": OperationRule("view_endpoint", agent=True),
    "GET /agents": OperationRule("view_agent"),
    "POST /agents": OperationRule("add_agent"),
    "GET /agents/{slug}": OperationRule("view_agent"),
    "PATCH /agents/{slug}": OperationRule("change_agent"),
    "DELETE /agents/{slug}": OperationRule("delete_agent"),
    "GET /agents/{slug}/tokens": OperationRule("view_token"),
    "POST /agents/{slug}/tokens": OperationRule("add_token"),
    "DELETE /agents/{slug}/tokens/{token_id}": OperationRule("delete_token"),
    "GET /grants": OperationRule("view_grant"),
    "POST /grants": OperationRule("add_grant"),
    "GET /grants/{grant_id}": OperationRule("view_grant"),
    "DELETE /grants/{grant_id}": OperationRule("delete_grant"),
    "GET /host-sessions": OperationRule("view_hostsession"),
    "GET /host-sessions/{session_id}": OperationRule("view_hostsession"),
    "POST /host-sessions/{session_id}/end": OperationRule("change_hostsession"),
    "GET /conversations": OperationRule("view_conversation", agent=True),
    "POST /conversations": OperationRule("add_conversation", agent=True),
    "GET /conversations/{conversation_id}": OperationRule("view_conversation", agent=True),
    "PATCH /conversations/{conversation_id}": OperationRule("change_conversation"),
    "POST /conversations/{conversation_id}/end": OperationRule("change_conversation", agent=True),
    "GET /conversations/{conversation_id}/messages": OperationRule("view_message", agent=True),
    "POST /conversations/{conversation_id}/messages": OperationRule("add_message", agent=True),
    "GET /registries": OperationRule("view_registrysource"),
    "POST /registries": OperationRule("add_registrysource"),
    "GET /registries/{slug}": OperationRule("view_registrysource"),
    "PATCH /registries/{slug}": OperationRule("change_registrysource"),
    "DELETE /registries/{slug}": OperationRule("delete_registrysource"),
    "POST /registries/{slug}/sync": OperationRule("sync_registrysource"),
    "GET /registry-entries": OperationRule("view_registryentry"),
    "GET /registry-entries/{entry_id}": OperationRule("view_registryentry"),
    "POST /registry-entries/{entry_id}/add": OperationRule("add_server"),
    "GET /registry-entries/{entry_id}/digest": OperationRule("add_server"),
    "GET /budgets": OperationRule("view_budget", agent=True),
    "POST /budgets": OperationRule("add_budget"),
    "GET /budgets/{slug}": OperationRule("view_budget", agent=True),
    "PATCH /budgets/{slug}": OperationRule("change_budget"),
    "DELETE /budgets/{slug}": OperationRule("delete_budget"),
    "GET /budgets/{slug}/entries": OperationRule("view_budgetentry", agent=True),
    "GET /energy": OperationRule("view_energypool", agent=True),
    "POST /energy": OperationRule("add_energypool"),
    "GET /energy/{slug}": OperationRule("view_energypool", agent=True),
    "PATCH /energy/{slug}": OperationRule("change_energypool"),
    "DELETE /energy/{slug}": OperationRule("delete_energypool"),
    "GET /energy/{slug}/entries": OperationRule("view_energyentry", agent=True),
    "POST /energy/{slug}/grant": OperationRule("change_energypool"),
    "GET /usage": OperationRule("view_invocation"),
    "GET /usage/failures": OperationRule("view_invocation"),
    "GET /invocations": OperationRule("view_invocation"),
    "GET /invocations/{invocation_id}": OperationRule("view_invocation"),
    "GET /approvals": OperationRule("view_approvalrequest"),
    "GET /approvals/{approval_id}": OperationRule("view_approvalrequest", agent=True),
    "GET /approvals/{approval_id}/result": OperationRule("view_approvalrequest", agent=True),
    "POST /approvals/{approval_id}/approve": OperationRule("decide_approval"),
    "POST /approvals/{approval_id}/reject": OperationRule("decide_approval"),
    "POST /approvals/{approval_id}/lift-refusal": OperationRule("decide_approval"),
    "POST /approvals/{approval_id}/withdraw": OperationRule("call_tool", agent=True),
    "GET /channels": OperationRule("view_channel"),
    "POST /channels": OperationRule("add_channel"),
    "GET /channels/{channel_id}": OperationRule("view_channel"),
    "PATCH /channels/{channel_id}": OperationRule("change_channel"),
    "DELETE /channels/{channel_id}": OperationRule("delete_channel"),
    "POST /channels/{channel_id}/test": OperationRule("change_channel"),
    "GET /deliveries": OperationRule("view_delivery"),
    "GET /deliveries/{delivery_id}": OperationRule("view_delivery"),
    "POST /deliveries/{delivery_id}/redeliver": OperationRule("change_channel"),
    "GET /rules": OperationRule("view_policyrule"),
    "POST /rules": OperationRule("add_policyrule"),
    "POST /rules/starter": OperationRule("add_policyrule"),
    # it answers with arguments of calls
    "POST /rules/test": OperationRule("view_policyrule", also=("view_invocation",)),
    "GET /rules/{rule_id}": OperationRule("view_policyrule"),
    "PATCH /rules/{rule_id}": OperationRule("change_policyrule"),
    "POST /rules/{rule_id}/live": OperationRule("change_policyrule"),
    "DELETE /rules/{rule_id}": OperationRule("delete_policyrule"),
    "POST /tools/{name}/auto-approval": OperationRule("add_policyrule"),
    "DELETE /tools/{name}/auto-approval": OperationRule("delete_policyrule"),
    "POST /servers/{slug}/auto-approval": OperationRule("add_policyrule"),
    "DELETE /servers/{slug}/auto-approval": OperationRule("delete_policyrule"),
    "GET /tools/{name}/annotations": OperationRule("view_tool"),
    "PUT /tools/{name}/annotations": OperationRule("approve_definition"),
    "GET /permits": OperationRule("view_permit"),
    "DELETE /permits/{permit_id}": OperationRule("decide_approval"),
    "GET /access": OperationRule("view_grant", also=("view_agent", "view_tool", "view_policyrule")),
    "GET /access/proposals": OperationRule("view_invocation", also=("view_grant",)),
    "POST /access/proposals/{grant_id}": OperationRule(
        "change_grant", also=("add_grant", "delete_grant", "view_grant", "view_invocation")
    ),
    "GET /context-bill": OperationRule(
        "view_invocation", also=("view_agent", "view_tool", "view_grant")
    ),
    "POST /context-bill/hide": OperationRule(
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
    "GET /why": OperationRule("view_policyrule"),
    "POST /why": OperationRule("view_policyrule"),
    "GET /audit": OperationRule("view_auditentry"),
    "GET /audit/verification": OperationRule("view_auditentry"),
    "GET /config/export": OperationRule("change_server"),
    "GET /config/schema": OperationRule("view_server"),
    "POST /config/import": OperationRule("change_server", also=("add_server",)),
    "GET /status": OperationRule("view_server"),
    "GET /status/servers": OperationRule("view_server"),
}
