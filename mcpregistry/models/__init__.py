"""Records: fields, constraints and small questions about themselves. What happens is in
services."""

import mcpregistry.models.groups  # noqa: F401  (by it Django's groups have versions)
from mcpregistry.models.access import (
    AccessFinding,
    Agent,
    Configuration,
    Endpoint,
    Grant,
    Token,
    Workspace,
)
from mcpregistry.models.approval import ApprovalRequest, ApprovalSeat, ApprovalVote, Permit
from mcpregistry.models.audit import AuditArchive, AuditEntry, AuditSeal, AuditVerification
from mcpregistry.models.budget import (
    Budget,
    BudgetEntry,
    BudgetPeriod,
    BudgetReservation,
    RateLevel,
)
from mcpregistry.models.call_text import CallText, SavedFilter
from mcpregistry.models.conversation import Conversation, Message
from mcpregistry.models.credential import Credential
from mcpregistry.models.energy import EnergyEntry, EnergyPool, EnergyReservation, ToolUsage
from mcpregistry.models.feed import Change
from mcpregistry.models.figure import Figure
from mcpregistry.models.host_session import (
    HostConnection,
    HostMessage,
    HostSession,
    HostStream,
    HostSubscription,
)
from mcpregistry.models.host_task import HostTask
from mcpregistry.models.idempotency import KeptAnswer
from mcpregistry.models.imported import ImportedFile
from mcpregistry.models.install import Install
from mcpregistry.models.invitation import Invitation
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.login import LoginAttempts
from mcpregistry.models.notification import Channel, Delivery, SlackIdentity
from mcpregistry.models.policy import PolicyRule
from mcpregistry.models.project_file import ProjectFile
from mcpregistry.models.registry import RegistryEntry, RegistrySource
from mcpregistry.models.second_factor import RecoveryCode, SecondFactor
from mcpregistry.models.server import Connection, Server, ServerEvent
from mcpregistry.models.server_tests import ServerTest
from mcpregistry.models.session_owner import SessionOwner
from mcpregistry.models.site_process import SiteProcess
from mcpregistry.models.tool import Definition, Tool
from mcpregistry.models.usage import CountedSpan, SpanFailure, SpanUsage, UsageSums

__all__ = [
    "AccessFinding",
    "Agent",
    "ApprovalRequest",
    "ApprovalSeat",
    "ApprovalVote",
    "AuditArchive",
    "AuditEntry",
    "AuditSeal",
    "AuditVerification",
    "Budget",
    "BudgetEntry",
    "BudgetPeriod",
    "BudgetReservation",
    "CallText",
    "Change",
    "Channel",
    "Configuration",
    "Connection",
    "Conversation",
    "CountedSpan",
    "Credential",
    "Definition",
    "Delivery",
    "Endpoint",
    "EnergyEntry",
    "EnergyPool",
    "EnergyReservation",
    "Figure",
    "Grant",
    "HostConnection",
    "HostMessage",
    "HostSession",
    "HostStream",
    "HostSubscription",
    "HostTask",
    "ImportedFile",
    "Install",
    "Invitation",
    "Invocation",
    "KeptAnswer",
    "LoginAttempts",
    "Message",
    "Permit",
    "PolicyRule",
    "ProjectFile",
    "RateLevel",
    "RecoveryCode",
    "RegistryEntry",
    "RegistrySource",
    "SavedFilter",
    "SecondFactor",
    "Server",
    "ServerEvent",
    "ServerTest",
    "SessionOwner",
    "SiteProcess",
    "SlackIdentity",
    "SpanFailure",
    "SpanUsage",
    "Token",
    "Tool",
    "ToolUsage",
    "UsageSums",
    "Workspace",
]
