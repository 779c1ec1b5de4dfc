"""Records: fields, constraints and small questions about themselves. What happens is in services."""

from mcpregistry.models.access import Agent, Configuration, Endpoint, Grant, Token, Workspace
from mcpregistry.models.approval import ApprovalRequest, ApprovalVote, Permit
from mcpregistry.models.audit import AuditEntry
from mcpregistry.models.idempotency import KeptAnswer
from mcpregistry.models.imported import ImportedFile
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.notification import Channel, Delivery, SlackIdentity
from mcpregistry.models.policy import PolicyRule
from mcpregistry.models.server import Connection, Credential, Server, ServerEvent, ServerTest
from mcpregistry.models.task import Task
from mcpregistry.models.tool import Definition, Tool

__all__ = [
    "Agent",
    "ApprovalRequest",
    "ApprovalVote",
    "AuditEntry",
    "Channel",
    "Configuration",
    "Connection",
    "Credential",
    "Definition",
    "Delivery",
    "Endpoint",
    "Grant",
    "ImportedFile",
    "Invocation",
    "KeptAnswer",
    "Permit",
    "PolicyRule",
    "Server",
    "ServerEvent",
    "ServerTest",
    "SlackIdentity",
    "Task",
    "Token",
    "Tool",
    "Workspace",
]
