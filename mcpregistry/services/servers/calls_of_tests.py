"""Whether a test or a trial of a server may call a tool: the rules decide about it as they decide about the call of an agent.

Both have no agent and ask no person. So rules for all agents apply, and a call about which a rule asks is not made.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from django.utils import timezone

from mcpregistry.domain.errors import Denied
from mcpregistry.domain.policy.decision import Outcome, Question, decide
from mcpregistry.domain.specs import AgentSpec, EndpointSpec, ToolSpec
from mcpregistry.domain.text.canonical import canonical
from mcpregistry.models import Server, Tool
from mcpregistry.services.configuration.snapshot import snapshot_now
from mcpregistry.services.records import audit

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


def admit_trial_call(server_id: int, name: str, arguments: Mapping[str, Any]) -> str:
    """Record a trial's call that may be made now, and return an empty text; otherwise return why it is not made.

    A trial calls tools that nobody has approved yet. If no rule fits and the site asks by default, the call is made: the
    person who orders the trial is responsible for it. If a rule asks or denies, the call is not made.
    """
    snapshot = snapshot_now()
    serving = snapshot.servers.get(server_id)
    if serving is None:
        return "the server is no longer active"
    tool = Tool.objects.filter(server=server_id, name=name).first()
    if tool is not None and not tool.enabled:
        return "an operator has disabled it"
    tried = _as_tried(server_id, name, tool)
    question = Question(NOBODY, NOWHERE, serving, tried, arguments, now=timezone.now().timestamp(), origin="trial")
    decision = decide(snapshot.policy, question)
    by_default = decision.outcome is Outcome.ASK and decision.rule_id is None
    if decision.outcome is not Outcome.ALLOW and not by_default:
        does = "ask a person first" if decision.outcome is Outcome.ASK else "deny it"
        return f"the rules {does} ({decision.reason})"
    hashed = sha256(canonical(arguments).encode()).hexdigest()
    audit.record(
        kind="server.trial_call", actor="worker", subject=f"server:{serving.slug}", call=name, arguments=hashed
    )
    return ""


def _as_tried(server_id: int, name: str, tool: Tool | None) -> ToolSpec:
    """Return the tool as rules see it: with what a person has confirmed of it, without claims of its server."""
    return ToolSpec(
        id=tool.pk if tool else 0,
        server_id=server_id,
        name=name,
        definition_hash="",
        data={},
        idempotent=bool(tool and tool.idempotent),
        read_only=tool.read_only if tool else None,
        destructive=tool.destructive if tool else None,
        open_world=tool.open_world if tool else None,
    )
