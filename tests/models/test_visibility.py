"""Who may see which records: people by permission, agents what is their own."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.utils import timezone

from mcpregistry.models import Agent, ApprovalRequest, Invocation
from subagents.models import ExpertTool, ExpertVersion, Run
from tests.services.rows import ended

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _records() -> None:
    expert = ExpertTool.objects.create(
        name="digest", agent=Agent.objects.create(slug="expert.digest")
    )
    version = ExpertVersion.objects.create(expert=expert, number=1, hash="h", body="{}")
    for agent in ("ann", "bob"):
        call = ended(agent, agent_slug=agent)
        ApprovalRequest.objects.create(
            id=agent,
            call=call,
            rule_name="r",
            quorum=1,
            execute_seconds=1,
            risk="low",
            risk_rank=1,
            waiting_as="hold",
            asked_at=timezone.now(),
            decide_by=timezone.now(),
        )
        Run.objects.create(id=agent, version=version, caller=agent, created_at=timezone.now())


def seen(who: User | AnonymousUser | Agent) -> tuple[set[str], set[str], set[str]]:
    """Whose calls, held calls and runs."""
    return (
        {row.agent_slug for row in Invocation.objects.visible_to(who)},
        {row.call.agent_slug for row in ApprovalRequest.objects.visible_to(who)},
        {row.caller for row in Run.objects.visible_to(who)},
    )


def test_an_agent_sees_what_is_its_own():
    assert seen(Agent(slug="ann")) == ({"ann"}, {"ann"}, {"ann"})
    assert seen(Agent(slug="eve")) == (set(), set(), set())


def test_people_see_by_their_permissions():
    viewer, decider, runner, nobody = map(
        User.objects.create_user, ("viewer", "decider", "runner", "nobody")
    )
    viewer.groups.add(Group.objects.get(name="viewer"))
    decider.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    runner.user_permissions.add(Permission.objects.get(codename="run_expert"))
    everything = {"ann", "bob"}
    assert seen(viewer) == (everything, everything, everything)
    assert seen(decider) == (set(), everything, set())
    assert seen(runner) == (set(), set(), everything)
    assert seen(nobody) == seen(AnonymousUser()) == (set(), set(), set())


def test_an_account_that_is_switched_off_sees_nothing():
    assert seen(User.objects.create_superuser("root", is_active=False)) == (set(), set(), set())
