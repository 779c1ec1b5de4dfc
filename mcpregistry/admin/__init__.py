"""The pages of the site: one file per aggregate, on top of ``base``."""

from mcpregistry.admin import (
    access,
    audit,
    budgets,
    call,
    configuration,
    conversation,
    energy,
    install,
    notifications,
    operations,
    people,
    registry,
    rules,
    server,
    tool,
)

__all__ = [
    "access",
    "audit",
    "budgets",
    "call",
    "configuration",
    "conversation",
    "energy",
    "install",
    "notifications",
    "operations",
    "people",
    "registry",
    "rules",
    "server",
    "tool",
]
