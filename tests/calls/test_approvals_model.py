"""Held calls against a reference model: whatever people, rules and processes do, in whatever order.

The model knows nothing of databases: a few dictionaries and the rules of the game. The real side is
an engine on a database, with a server that only keeps a journal.

By hand, with as many examples as wanted: ``EXAMPLES=500 pytest -o timeout=0
tests/calls/test_approvals_model.py``. The suite needs few and always the same, since each single
happening has a test of its own, for every way of waiting (``tests/fault``).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from mcpregistry.calls.call import Call, CallRequest
from mcpregistry.calls.engine import Engine
from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.downstream.runtime import LoopThread
from mcpregistry.models import Agent, Invocation, PolicyRule, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.approvals.refusals import RefusedBefore
from mcpregistry.services.approvals.votes import AlreadyDecided, vote
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.upkeep.invariants import calls
from tests.calls.conftest import ACTOR, add_server, tool

PEOPLE = ("bob", "eve", "dan")
VALUES = ({"n": 0}, {"n": 1})
EDITS = (None, None, None, {"n": 1}, {"n": 9})
COUNT = iter(range(10**6))
EXAMPLES = 15
EXAMPLES_IN_GATE = 7


def text(arguments: dict[str, int]) -> str:
    return json.dumps(arguments, separators=(",", ":"))


@dataclass
class Modelled:
    """One held call as the rules of the game see it."""

    ticket: HeldCallTicket
    asked: str
    terms: tuple[int, int, int]  # revision of the server, version of the rule, quorum
    ran: str = ""
    state: InvocationState = InvocationState.PENDING
    told: bool = False
    votes: dict[str, str] = field(default_factory=dict)

    @property
    def joinable(self) -> bool:
        return self.state is not InvocationState.CANCELLED and not (
            self.state in TERMINAL and self.told
        )


class Site:
    """The real side."""

    def __init__(self) -> None:
        self.server = add_server("echo", tool("echo"))
        self.loop = LoopThread()
        self.engine = Engine("web")
        self.loop.run(self.engine.start())
        self.journal: list[tuple[str, str]] = []
        self.engine.pipeline.execution.dispatchers = {"downstream": self._receive}

    async def _receive(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        on_sent()
        self.journal.append((call.id, call.arguments_json))
        return {"content": []}

    def close(self) -> None:
        self.loop.run(self.engine.stop())
        self.loop.stop()


class Machine(RuleBasedStateMachine):
    site: Site
    held = Bundle("held")

    @initialize(target=held, quorum=st.sampled_from((1, 1, 2)), holds=st.sampled_from((0, 300)))
    def begin(self, quorum: int, holds: int) -> Any:
        """Every example has its own agent, people and rule; the site is the same."""
        self.name = f"a{next(COUNT)}"
        agent = agents.save_agent(agent=Agent(slug=self.name), actor=ACTOR)
        grants.grant_access(agent=agent, server=self.site.server, actor=ACTOR)
        self.rule = PolicyRule.objects.create(
            name=self.name, agent=agent, outcome="ask", quorum=quorum, refusal_seconds=holds
        )
        self.refusals_hold = bool(holds)
        self.people = {each: User.objects.create_user(f"{each}-{self.name}") for each in PEOPLE}
        for user in self.people.values():
            user.groups.add(Group.objects.get(name="approver"))
        self.version = 0
        self.quorum = quorum
        self.calls: list[Modelled] = []
        self.ran: list[tuple[str, str]] = []
        self.site.journal.clear()
        return self._ask(VALUES[0])

    # What happens

    @rule(target=held, arguments=st.sampled_from(VALUES))
    def ask(self, arguments: dict[str, int]) -> Any:
        return self._ask(arguments)

    def _ask(self, arguments: dict[str, int]) -> Any:
        self.site.engine.live.refresh()
        request = CallRequest(
            self.site.engine.get_catalogue("default", self.name), "echo__echo", arguments, "http"
        )
        call = self.site.engine.pipeline.judge(request).call
        alike = [each for each in self.calls if each.asked == text(arguments)]
        same = [each for each in alike if each.joinable and self._stands(each)]
        asking = self.site.engine.approvals.requests.ask(call, "hold")
        if (
            not same
            and self.refusals_hold
            and any(each.state is InvocationState.REJECTED for each in alike)
        ):
            with pytest.raises(RefusedBefore):
                self.site.loop.run(asking)
            return multiple()
        ticket = self.site.loop.run(asking)
        assert ticket.joined == bool(same)
        if same:
            assert ticket.id == same[0].ticket.id
            return multiple()
        self.calls.append(Modelled(ticket, text(arguments), self._terms(), text(arguments)))
        return self.calls[-1]

    @rule(call=held, who=st.sampled_from(PEOPLE), edit=st.sampled_from(EDITS))
    def approve(self, call: Modelled, who: str, edit: dict[str, int] | None) -> None:
        ran = text(edit) if edit is not None else call.ran
        expected = self._refusal(call, who)
        if expected is None and call.votes.get(who) == ran:
            expected = Conflict
        if not self._vote(expected, call, who, approve=True, arguments=edit):
            return
        call.ran = ran
        call.votes[who] = ran
        if len(self._counted(call)) >= call.terms[2]:
            call.state = InvocationState.READY

    @rule(call=held, who=st.sampled_from(PEOPLE))
    def reject(self, call: Modelled, who: str) -> None:
        if self._vote(self._refusal(call, who), call, who, approve=False):
            call.state = InvocationState.REJECTED

    @rule(call=held)
    def cancel(self, call: Modelled) -> None:
        after = held_calls.cancel(request_id=call.ticket.id, reason="Enough", actor=ACTOR)
        if call.state in (InvocationState.PENDING, InvocationState.READY):
            call.state = InvocationState.CANCELLED
        assert after is call.state

    @rule(call=held)
    def time_passes(self, call: Modelled) -> None:
        held_calls.expire(request_id=call.ticket.id, now=datetime.now(UTC) + timedelta(hours=1))
        if call.state in (InvocationState.PENDING, InvocationState.READY):
            call.state = InvocationState.EXPIRED

    @rule(who=st.sampled_from(PEOPLE))
    def switch_a_person(self, who: str) -> None:
        user = self.people[who]
        user.is_active = not user.is_active
        user.save()

    @rule()
    def edit_the_server(self) -> None:
        server = Server.objects.get(pk=self.site.server.pk)
        server.request_timeout += 1
        lifecycle.save_server(server=server, actor=ACTOR)

    @rule()
    def edit_the_rule(self) -> None:
        self.version += 1
        PolicyRule.objects.filter(pk=self.rule.pk).update(execute_seconds=600 + self.version)

    @rule(call=held, times=st.integers(1, 3))
    def wake_workers(self, call: Modelled, times: int) -> None:
        """The message may come more than once, and for calls that are not ready at all."""

        async def all_at_once() -> None:
            settle = self.site.engine.approvals.runner.settle_call
            await asyncio.gather(*(settle(call.ticket.call_id) for _ in range(times)))

        self._runs(call)
        self.site.loop.run(all_at_once())

    @rule(call=held, times=st.integers(1, 3))
    def all_agree_and_it_runs(self, call: Modelled, times: int) -> None:
        """What chance alone would seldom bring about."""
        for who in PEOPLE:
            self.approve(call=call, who=who, edit=None)
        self.wake_workers(call=call, times=times)

    @rule(call=held)
    def the_caller_comes_back(self, call: Modelled) -> None:
        if call.state is InvocationState.PENDING:
            return
        self._runs(call)
        outcome = self.site.loop.run(self.site.engine.approvals.runner.run(call.ticket))
        assert outcome.state is call.state
        assert (outcome.result is not None) == (call.state is InvocationState.SUCCEEDED)
        call.told = True

    # What must be so after every step

    @invariant()
    def the_records_are_as_the_model_says(self) -> None:
        if not hasattr(self, "calls"):
            return
        states = held_calls.load_call_states([each.ticket.call_id for each in self.calls])
        assert states == {each.ticket.call_id: each.state for each in self.calls}
        assert self.site.journal == self.ran

    def teardown(self) -> None:
        found = calls.check_invariants(timezone.now())
        assert [f"{each.rule} {each.examples}" for each in found if each.violations] == []
        for each in getattr(self, "calls", []):
            held_calls.cancel(request_id=each.ticket.id, reason="The example is over", actor=ACTOR)
        if hasattr(self, "rule"):
            self.rule.delete()

    # The rules of the game

    def _terms(self) -> tuple[int, int, int]:
        return Server.objects.get(pk=self.site.server.pk).revision, self.version, self.quorum

    def _stands(self, call: Modelled) -> bool:
        return call.terms == self._terms()

    def _counted(self, call: Modelled) -> list[str]:
        return [
            who for who, on in call.votes.items() if on == call.ran and self.people[who].is_active
        ]

    def _runs(self, call: Modelled) -> None:
        if call.state is not InvocationState.READY:
            return
        if not self._stands(call) or len(self._counted(call)) < call.terms[2]:
            call.state = InvocationState.VOID
            return
        call.state = InvocationState.SUCCEEDED
        self.ran.append((call.ticket.call_id, call.ran))

    def _refusal(self, call: Modelled, who: str) -> type[Exception] | None:
        if call.state is not InvocationState.PENDING:
            return AlreadyDecided
        return None if self.people[who].is_active else Denied

    def _vote(
        self, expected: type[Exception] | None, call: Modelled, who: str, **facts: Any
    ) -> bool:
        user = User.objects.get(pk=self.people[who].pk)
        if expected is None:
            vote(request_id=call.ticket.id, user=user, via="web", **facts)
            return True
        with pytest.raises(expected):
            vote(request_id=call.ticket.id, user=user, via="web", **facts)
        return False


@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.usefixtures("live_db")
def test_held_calls_follow_the_model(request):
    """To try more examples, and others each time: ``EXAMPLES=200 python -m pytest
    tests/calls/test_approvals_model.py``."""
    usual = EXAMPLES_IN_GATE if request.config.getoption("--gate") else EXAMPLES
    Machine.site = Site()
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=int(os.environ.get("EXAMPLES", usual)),
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                derandomize="EXAMPLES" not in os.environ,
            ),
        )
    finally:
        Machine.site.close()
    assert not Invocation.objects.exclude(state__in=[*TERMINAL]).exists()
    assert Invocation.objects.filter(state=InvocationState.SUCCEEDED).exists(), (
        "the examples never got as far as a call that ran"
    )
