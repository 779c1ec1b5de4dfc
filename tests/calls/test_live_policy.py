"""The live rules decide about real calls, and a change of them counts; a condition without an
answer raises an alarm."""

from __future__ import annotations

from typing import Any

from mcpregistry.db import db_call
from mcpregistry.domain.policy.decision import PolicyQuestion
from mcpregistry.models import AuditEntry, Configuration, PolicyRule, Tool
from mcpregistry.services.policy.rules import (
    CONDITION_FAILED,
    auto_approve,
    save_rule,
    select_failures,
)
from tests.calls.conftest import ACTOR, Site, add_server, tool
from tests.waiting import until


def save(**fields: Any) -> PolicyRule:
    return save_rule(rule=PolicyRule(**fields), actor=ACTOR)


async def counts(here: Site, rules: int) -> None:
    await until(lambda: len(here.engine.live.current.rules) == rules)


async def test_a_rule_made_while_running_decides(site: Any, journal: Any):
    add = await db_call(add_server, "echo", tool("echo"), env={"FAKE_JOURNAL": str(journal)})
    assert add.slug == "echo"
    here: Site = await site()
    assert (await here.call("echo__echo", {"amount": 1})).state == "succeeded"
    await db_call(
        save, name="No big ones", outcome="deny", condition="has(args.amount) && args.amount > 100"
    )
    await counts(here, 1)
    denied = await here.call("echo__echo", {"amount": 101})
    assert (denied.state, denied.error_code) == ("denied", "DENIED")
    assert "No big ones" in denied.message
    assert (await here.call("echo__echo", {"amount": 100})).state == "succeeded"
    assert len(here.sent()) == 2


async def test_a_condition_without_an_answer_asks_and_raises_one_alarm(site: Any, journal: Any):
    await db_call(add_server, "echo", tool("echo"), env={"FAKE_JOURNAL": str(journal)})
    rule = await db_call(save, name="odd", outcome="allow", condition="args.amount > 100")
    here: Site = await site()
    for _ in range(3):
        catalogue = here.engine.get_catalogue("default", "ann")
        entry = catalogue.find("echo__echo")
        assert entry is not None

        question = PolicyQuestion(
            catalogue.agent,
            catalogue.endpoint,
            entry.offer.server,
            entry.offer.tool,
            {"secret": "hunter2"},
        )
        decision = here.engine.pipeline.policy(question)
        assert decision.outcome == "ask"
        assert decision.failed

    def alarms() -> list[str]:
        return list(AuditEntry.objects.filter(kind=CONDITION_FAILED).values_list("body", flat=True))

    found = await until(lambda: db_call(alarms))
    assert len(found) == 1
    assert "hunter2" not in found[0]
    assert await db_call(lambda: select_failures(rule).count()) == 1


async def test_without_a_rule_a_call_is_asked_about(site: Any, journal: Any):
    await db_call(add_server, "echo", tool("echo"), env={"FAKE_JOURNAL": str(journal)})
    await db_call(lambda: Configuration.objects.update(default_outcome="ask"))
    here: Site = await site()
    catalogue = here.engine.get_catalogue("default", "ann")
    entry = catalogue.find("echo__echo")
    assert entry is not None
    decision = here.engine.pipeline.policy(
        PolicyQuestion(
            catalogue.agent, catalogue.endpoint, entry.offer.server, entry.offer.tool, {}
        )
    )
    assert (decision.outcome, decision.reason) == ("ask", "no rule matches")
    await db_call(lambda: auto_approve(tool=Tool.objects.get(), actor=ACTOR))
    await counts(here, 1)
    assert (await here.call("echo__echo", {})).state == "succeeded"
