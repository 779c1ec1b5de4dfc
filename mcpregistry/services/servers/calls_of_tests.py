"""Whether a test of a server may call a tool: the rules decide about it as they decide about the call of an agent.

A test has no agent and asks nobody. So rules about all agents count, and only a call that runs without a question is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from mcpregistry.domain.errors import Denied
from mcpregistry.domain.policy.decision import Outcome, Question, decide
from mcpregistry.domain.specs import AgentSpec, EndpointSpec
from mcpregistry.models import Server, Tool
from mcpregistry.services.configuration.snapshot import snapshot_now

NOBODY = AgentSpec(id=0, slug="", capabilities=frozenset(), calls_per_minute=None, grants=())
NOWHERE = EndpointSpec(
    slug="", title="", instructions="", naming_style="double", description_style="", lists_only=False, hide_unavailable=False,
    grants=(),
)  # fmt: skip


def refuse_call(server: Server, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises Denied for a tool that is not approved, does not only read, or that the rules let nobody call unasked."""
    tool = Tool.objects.filter(server=server, name=name).select_related("pinned").first()
    annotations = tool.pinned.data.get("annotations") if tool and tool.pinned else None
    if tool is None or not isinstance(annotations, dict) or annotations.get("readOnlyHint") is not True:
        raise Denied(
            f"'{name}' is no approved tool that says it only reads, so a test may not call it.",
            remedy=f"Choose another, or vouch for it yourself: manage.py mcptest {server.slug} --call {name}",
        )
    snapshot = snapshot_now()
    serving, offered = snapshot.servers.get(server.pk), snapshot.offer(tool.pk)
    if serving is None or offered is None:
        raise Denied(
            f"'{name}' is not offered to agents now, so a test may not call it.",
            remedy="Enable the tool, and approve its newest definition.",
        )
    question = Question(NOBODY, NOWHERE, serving, offered, arguments, now=timezone.now().timestamp(), origin="test")
    decision = decide(snapshot.policy, question)
    if decision.outcome is not Outcome.ALLOW:
        raise Denied(
            f"The rules do not let a test call '{name}' ({decision.reason}).",
            remedy="Call it as an agent, with Try it on the tool's page: there the rules ask who has to be asked.",
        )
