"""Two users save one record at the same time. Neither save undoes the changes of the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.db import close_old_connections

from mcpregistry.domain.errors import NotFound
from mcpregistry.models import (
    Agent,
    Budget,
    Channel,
    Configuration,
    Conversation,
    Credential,
    Endpoint,
    EnergyPool,
    Grant,
    PolicyRule,
    RegistrySource,
    Server,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.models.tracked import TrackedModel
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.budgets import books
from mcpregistry.services.configuration import site
from mcpregistry.services.conversations import lifecycle as conversations
from mcpregistry.services.definitions import behaviour, decisions
from mcpregistry.services.energy import pools
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.registry import sources
from mcpregistry.services.servers import lifecycle
from subagents.effort import agents as effort
from subagents.models import EffortAgent, ExpertTool, Headend, LanguageModel, Provider
from subagents.services import experts, providers
from subagents.services.headends import configuring as headends
from tests.fakes.lived import populated
from tests.fakes.seed import govern
from tests.waiting import HANG_LIMIT

ACTOR = "test"
SOON = datetime(2038, 1, 2, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """A kind of records: the service that saves it, a column that one user changes, and columns
    that another one writes."""

    model: type[TrackedModel]
    save: Callable[[Any], object]
    mine: dict[str, Any]
    others: dict[str, Any]
    # the service that writes these; otherwise it is ``save``
    by_others: Callable[[Any], object] | None = None
    find: dict[str, Any] | None = None


def _observe_lease(row: EffortAgent) -> None:
    EffortAgent.objects.filter(pk=row.pk).update(fence=7, worker="worker@here", focus="c")


def _move_models(row: ExpertTool) -> None:
    ExpertTool.objects.filter(pk=row.pk).update(enabled=False, awaited_tools=[])


CASES = {
    "server switched off": Case(
        Server,
        lambda row: lifecycle.save_server(server=row, actor=ACTOR),
        {"description": "mine"},
        {"lifecycle": "disabled"},
        lambda row: lifecycle.disable_server(server=row, actor=ACTOR),
        {"slug": "git"},
    ),
    "server of a changed credential": Case(
        Server,
        lambda row: lifecycle.save_server(server=row, actor=ACTOR),
        {"description": "mine"},
        {"revision": 2},
        lambda row: credentials.save_credential(
            credential=Credential.objects.get(name="git-forge"), value="x", actor=ACTOR
        ),
        {"slug": "git"},
    ),
    "server whose confirmation is withdrawn": Case(
        Server,
        lambda row: lifecycle.save_server(server=row, actor=ACTOR),
        {"idle_timeout": 60.0},
        {"confirmed_launch": "", "lifecycle": "draft"},
        lambda row: lifecycle.withdraw_launch(server=row, actor=ACTOR),
        {"slug": "git"},
    ),
    "agent": Case(
        Agent,
        lambda row: agents.save_agent(agent=row, actor=ACTOR),
        {"description": "mine"},
        {"enabled": False, "capabilities": ["mcp_git::*"]},
    ),
    "endpoint": Case(
        Endpoint,
        lambda row: agents.save_endpoint(endpoint=row, actor=ACTOR),
        {"name": "mine"},
        {"enabled": False},
    ),
    "workspace": Case(
        Workspace,
        lambda row: agents.save_workspace(workspace=row, actor=ACTOR),
        {"directory": "/srv/mine"},
        {"agent_id": "ci"},
    ),
    "grant": Case(
        Grant,
        lambda row: grants.save_grant(grant=row, actor=ACTOR),
        {"note": "mine"},
        {"expires_at": SOON},
    ),
    "configuration": Case(
        Configuration,
        lambda row: site.save_configuration(configuration=row, actor=ACTOR),
        {"keep_calls_days": 7},
        {"sub_agent_enabled": False, "variable_scope": {"TOKEN": ["server:git"]}},
    ),
    "credential": Case(
        Credential,
        lambda row: credentials.save_credential(credential=row, actor=ACTOR),
        {"description": "mine"},
        {"value": "theirs", "scope": []},
        lambda row: credentials.save_credential(
            credential=row, actor=ACTOR, value="theirs", scope=[]
        ),
    ),
    "energy pool": Case(
        EnergyPool,
        lambda row: pools.save_pool(pool=row, actor=ACTOR),
        {"description": "mine"},
        {"capacity": 5.0},
    ),
    "budget": Case(
        Budget,
        lambda row: books.save_budget(budget=row, actor=ACTOR),
        {"hard": Decimal(900)},
        {"enabled": False},
    ),
    "tool": Case(
        Tool,
        lambda row: decisions.save_tool(tool=row, actor=ACTOR),
        {"idempotent": True},
        {"enabled": False},
        find={"name": "git_log"},
    ),
    "tool that is rejected": Case(
        Tool,
        lambda row: decisions.save_tool(tool=row, actor=ACTOR),
        {"idempotent": True},
        {"pinned_id": None},
        lambda row: decisions.reject(definition=row.latest, actor=ACTOR),
        {"name": "git_log"},
    ),
    "tool whose behaviour is confirmed": Case(
        Tool,
        lambda row: decisions.save_tool(tool=row, actor=ACTOR),
        {"idempotent": True},
        {"read_only": True},
        lambda row: behaviour.confirm_annotations(
            tool=row, actor=ACTOR, read_only=True, destructive=False, open_world=False
        ),
        {"name": "git_log"},
    ),
    "registry": Case(
        RegistrySource,
        lambda row: sources.save_source(source=row, actor=ACTOR),
        {"by_clock": True},
        {"propose_versions": True},
    ),
    "rule": Case(
        PolicyRule,
        lambda row: rules.save_rule(rule=row, actor=ACTOR),
        {"note": "mine"},
        {"enabled": False},
        lambda row: rules.switch_rule(rule=row, enabled=False, actor=ACTOR),
        {"name": "Pushes ask"},
    ),
    "rule that is made live": Case(
        PolicyRule,
        lambda row: rules.save_rule(rule=row, actor=ACTOR),
        {"note": "mine"},
        {"draft": False, "enabled": True},
        lambda row: rules.make_live(rule=row, actor=ACTOR),
        {"name": "A draft"},
    ),
    "channel": Case(
        Channel,
        lambda row: outbox.save_channel(channel=row, actor=ACTOR),
        {"minimum_risk": 2},
        {"enabled": False},
        find={"name": "Incidents"},
    ),
    "channel with another address": Case(
        Channel,
        lambda row: outbox.save_channel(channel=row, actor=ACTOR),
        {"minimum_risk": 2},
        {"origin": "https://other.example"},
        lambda row: outbox.save_channel(
            channel=row, actor=ACTOR, access={"url": "https://other.example/hook"}
        ),
        {"name": "Incidents"},
    ),
    "person in Slack": Case(
        SlackIdentity,
        lambda row: outbox.save_slack_identity(identity=row, actor=ACTOR),
        {"member": "U0MINE"},
        {"team": "T0OTHER"},
    ),
    "conversation": Case(
        Conversation,
        lambda row: conversations.save_conversation(conversation=row, actor=ACTOR),
        {"title": "mine"},
        {"servers": ["git"]},
    ),
    "provider": Case(
        Provider,
        lambda row: providers.save_provider(provider=row, actor=ACTOR),
        {"timeout": 30.0},
        {"enabled": False},
    ),
    "provider that is tested": Case(
        Provider,
        lambda row: providers.save_provider(provider=row, actor=ACTOR),
        {"timeout": 30.0},
        {"test_answer": "yes"},
        lambda row: providers.note_test(provider_id=row.pk, answer="yes", error="", took_ms=1),
    ),
    "model": Case(
        LanguageModel,
        lambda row: providers.save_model(model=row, actor=ACTOR),
        {"max_output": 100},
        {"enabled": False},
    ),
    "headend": Case(
        Headend,
        lambda row: headends.save_headend(row=row, actor=ACTOR),
        {"concurrency": 3},
        {"enabled": False},
    ),
    "expert tool": Case(
        ExpertTool,
        lambda row: experts.save_expert(
            expert=row, targets=[LanguageModel.objects.get()], actor=ACTOR
        ),
        {"description": "mine"},
        {"enabled": False, "awaited_tools": []},
        _move_models,
    ),
    "hosted agent": Case(
        EffortAgent,
        lambda row: effort.save_effort_agent(row=row, actor=ACTOR),
        {"cycle_seconds": 5.0},
        {"fence": 7, "worker": "worker@here", "focus": "c"},
        _observe_lease,
    ),
}


@pytest.fixture
def rows(db: None) -> None:
    found = populated(calls=0)
    govern(found)
    ExpertTool.objects.update(awaited_tools=["git::git_push"])
    rules.save_rule(rule=PolicyRule(name="A draft", draft=True, outcome="deny"), actor=ACTOR)


def _find(case: Case) -> Any:
    manager = Tool.offers if case.model is Tool else case.model._default_manager
    return manager.filter(**(case.find or {})).order_by("pk")[0]


@pytest.mark.exhaustive(one_in=45)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_saving_keeps_what_others_have_changed(rows: None, case: Case) -> None:
    others = dict(case.others)
    if others.get("agent_id") == "ci":
        others["agent_id"] = Agent.objects.get(slug="ci").pk
    row = _find(case)
    theirs = _find(case)
    if case.by_others is None:
        case.save(theirs.change(**others))
    else:
        case.by_others(theirs)
    for name, value in case.mine.items():
        setattr(row, name, value)
    case.save(row)
    stored = case.model._base_manager.get(pk=row.pk)
    assert {name: getattr(stored, name) for name in case.mine} == case.mine
    assert {name: getattr(stored, name) for name in others} == others
    assert {name: getattr(row, name) for name in others} == others  # what the caller is answered


def test_every_configurable_kind_has_a_case() -> None:
    configurable = {model for model in apps.get_models() if issubclass(model, TrackedModel)}
    assert {case.model for case in CASES.values()} == configurable


@pytest.mark.django_db
def test_value_that_is_set_on_purpose_is_written_in_any_case() -> None:
    row = agents.save_agent(agent=Agent(slug="ann", enabled=False), actor=ACTOR)
    agents.save_agent(agent=Agent.objects.get(pk=row.pk).change(enabled=True), actor=ACTOR)
    agents.save_agent(agent=row.change(enabled=False), actor=ACTOR)
    assert not Agent.objects.get(pk=row.pk).enabled


@pytest.mark.django_db
def test_list_that_is_changed_in_place_is_saved() -> None:
    agents.save_agent(agent=Agent(slug="ann", capabilities=["mcp_a::*"]), actor=ACTOR)
    row = Agent.objects.get(slug="ann")
    row.capabilities.append("mcp_b::*")
    agents.save_agent(agent=row, actor=ACTOR)
    assert Agent.objects.get(slug="ann").capabilities == ["mcp_a::*", "mcp_b::*"]


@pytest.mark.django_db
def test_deleted_row_is_not_made_again() -> None:
    row = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    agents.delete_agent(agent=Agent.objects.get(pk=row.pk), actor=ACTOR)
    row.description = "mine"
    with pytest.raises(NotFound):
        agents.save_agent(agent=row, actor=ACTOR)
    assert not Agent.objects.exists()


@pytest.mark.django_db
def test_history_shows_no_change_that_nobody_made() -> None:
    row = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    agents.save_agent(agent=Agent.objects.get(pk=row.pk).change(enabled=False), actor=ACTOR)
    row.description = "mine"
    agents.save_agent(agent=row, actor=ACTOR)
    newest = Agent.history.first()
    assert (newest.description, newest.enabled) == ("mine", False)


@pytest.mark.both_databases
def test_disabling_at_the_same_time_as_another_change_is_never_lost(live_db: None) -> None:
    for number in range(5):
        _change_and_disable(
            lifecycle.save_server(server=Server(slug=f"git{number}", command=["true"]), actor=ACTOR)
        )


def _change_and_disable(server: Server) -> None:
    """Both have read the row before either of them writes."""
    both_have_read = threading.Barrier(2, timeout=HANG_LIMIT)
    failures: list[BaseException] = []

    def in_thread(change: Callable[[Server], object]) -> None:
        try:
            row = Server.objects.get(pk=server.pk)
            both_have_read.wait()
            change(row)
        except BaseException as error:
            failures.append(error)
        finally:
            close_old_connections()

    def describe(row: Server) -> None:
        row.description = "mine"
        lifecycle.save_server(server=row, actor=ACTOR)

    def disable(row: Server) -> None:
        lifecycle.disable_server(server=row, actor=ACTOR)

    threads = [threading.Thread(target=in_thread, args=(change,)) for change in (describe, disable)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_LIMIT)
    server.refresh_from_db()
    assert failures == []
    assert (server.description, server.lifecycle) == ("mine", "disabled")
