"""The policy that an engine decides by: the live rules, and an alarm when a condition gives no
answer."""

from __future__ import annotations

import asyncio
import time

import structlog

from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.db import db_call
from mcpregistry.domain.policy.decision import Decision, PolicyQuestion
from mcpregistry.services.policy.rules import CONDITION_FAILED
from mcpregistry.services.records import audit

log = structlog.get_logger(__name__)

_QUIET = 60.0  # seconds until the same rule is told again


class LivePolicy:
    """Decides by the rules of the current snapshot; to be called on the event loop."""

    def __init__(self, live: LiveConfiguration) -> None:
        self._live = live
        self._told: dict[int, float] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def __call__(self, question: PolicyQuestion) -> Decision:
        """The current rules' decision; a condition without an answer is noted, once a minute for
        each rule."""
        decision = self._live.current.policy(question)
        for rule_id, name, why in decision.failed:
            self._report_failure(question, rule_id, name, why)
        return decision

    def _report_failure(self, question: PolicyQuestion, rule_id: int, name: str, why: str) -> None:
        now = time.monotonic()
        if now - self._told.get(rule_id, -_QUIET) < _QUIET:
            return
        self._told[rule_id] = now
        log.warning("policy.condition_failed", rule=name, why=why, tool=question.tool.name)
        tool = f"{question.server.slug}::{question.tool.name}"
        task = asyncio.get_running_loop().create_task(
            _record_failure(rule_id, name, why, tool, question.agent.slug)
        )
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


async def _record_failure(rule_id: int, name: str, why: str, tool: str, agent: str) -> None:
    """In the audit log, where /metrics and the rule's page find it."""
    facts = {"rule": name, "why": why, "tool": tool, "agent": agent}
    try:
        await db_call(
            audit.record_entry,
            kind=CONDITION_FAILED,
            actor="policy",
            subject=f"rule:{rule_id}",
            **facts,
        )
    except Exception:  # an alarm that cannot be written must not stop calls; it is in the log
        log.exception("policy.alarm_not_written", rule=name)
