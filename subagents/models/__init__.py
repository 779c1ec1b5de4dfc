"""Records of expert tools: who answers (providers, models), what they are, and every run of
them."""

from subagents.models.effort import EFFORT_TOPIC, CycleLog, EffortAgent, Exchange
from subagents.models.expert import ExpertTarget, ExpertTool, ExpertVersion
from subagents.models.headend import HEADEND_TOPIC, Headend, HeadendKind, HeadendRequest
from subagents.models.maintenance import (
    MAINTENANCE_TOPIC,
    MaintenanceMessage,
    MaintenanceRequest,
    Proposal,
)
from subagents.models.provider import LanguageModel, Provider
from subagents.models.run import (
    RUN_TOPIC,
    Attempt,
    Run,
    StoredOutput,
    ToolCall,
    TracedRequest,
    Turn,
)
from subagents.models.trial import TrialReport

__all__ = [
    "EFFORT_TOPIC",
    "HEADEND_TOPIC",
    "MAINTENANCE_TOPIC",
    "RUN_TOPIC",
    "Attempt",
    "CycleLog",
    "EffortAgent",
    "Exchange",
    "ExpertTarget",
    "ExpertTool",
    "ExpertVersion",
    "Headend",
    "HeadendKind",
    "HeadendRequest",
    "LanguageModel",
    "MaintenanceMessage",
    "MaintenanceRequest",
    "Proposal",
    "Provider",
    "Run",
    "StoredOutput",
    "ToolCall",
    "TracedRequest",
    "TrialReport",
    "Turn",
]
