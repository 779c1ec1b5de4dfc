"""Records: fields, constraints and small questions about themselves. What happens is in services."""

from mcpregistry.models.access import Agent, Configuration, Endpoint, Grant, Token, Workspace
from mcpregistry.models.audit import AuditEntry
from mcpregistry.models.idempotency import KeptAnswer
from mcpregistry.models.imported import ImportedFile
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.server import Connection, Credential, Server, ServerEvent, ServerTest
from mcpregistry.models.tool import Definition, Tool

__all__ = [
    "Agent",
    "AuditEntry",
    "Configuration",
    "Connection",
    "Credential",
    "Definition",
    "Endpoint",
    "Grant",
    "ImportedFile",
    "Invocation",
    "KeptAnswer",
    "Server",
    "ServerEvent",
    "ServerTest",
    "Token",
    "Tool",
    "Workspace",
]
