"""Records of expert tools: who answers (providers, models), what they are, and every run of them."""

from subagents.models.expert import ExpertTarget, ExpertTool, ExpertVersion
from subagents.models.maintenance import MAINTENANCE_TOPIC, MaintenanceMessage, MaintenanceRequest, Proposal
from subagents.models.provider import LanguageModel, Provider
from subagents.models.run import RUN_TOPIC, Attempt, Run, StoredOutput, ToolCall, Turn
from subagents.models.trial import TrialReport

__all__ = [
    "MAINTENANCE_TOPIC",
    "RUN_TOPIC",
    "Attempt",
    "ExpertTarget",
    "ExpertTool",
    "ExpertVersion",
    "LanguageModel",
    "MaintenanceMessage",
    "MaintenanceRequest",
    "Proposal",
    "Provider",
    "Run",
    "StoredOutput",
    "ToolCall",
    "TrialReport",
    "Turn",
]
