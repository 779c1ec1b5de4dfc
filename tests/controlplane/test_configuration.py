"""The whole configuration as a document: what is exported makes the same site elsewhere, and
nothing twice."""

from __future__ import annotations

import base64
import json
import stat
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.configuration import document_export, document_import
from controlplane.configuration.document_values import Secrets
from controlplane.configuration.record_kinds import KINDS
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats import text
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Budget,
    Channel,
    Configuration,
    Credential,
    Endpoint,
    EnergyPool,
    Grant,
    Permit,
    PolicyRule,
    RegistrySource,
    Server,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.models.registry import READ
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.models.signed_books import HEAD_COLUMNS
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.budgets import books
from mcpregistry.services.energy import pools
from mcpregistry.services.registry import sources
from mcpregistry.services.servers import lifecycle
from subagents.effort import agents as effort
from subagents.models import EffortAgent, ExpertTool, Headend, LanguageModel, Provider
from subagents.services import experts, providers
from subagents.services.headends import configuring as headends
from tests.fakes.remembered import remembered
from tests.fakes.seed import populate
from tests.origin import Origin

ACTOR = "user:test"
SIGNING = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
_PASSING = {  # times, places in this database, and what was merely seen
    "id",
    "uid",
    "created_at",
    "updated_at",
    "confirmed_at",
    "confirmed_launch",
    "next_check_at",
    "check_until",
    "first_seen_at",
    "last_seen_at",
    "server_revision",
    "revision",
    "last_ok_at",
    "last_error",
    "last_error_code",
    "last_error_at",
    "consecutive_failures",
    "unavailable_since",
    "protocol_era",
    "server_info",
    "server_instructions",
    "refreshed_at",
    "left_out",
    "last_connected_at",
    "features",
    "launch_by",
    "test_asked_at",
    "tested_at",
    "test_model",
    "test_answer",
    "test_error",
    "test_ms",
    "source",
    "level",
    "level_at",
    *HEAD_COLUMNS,
    *READ,
}


def furnished() -> None:
    """A site with rows of every kind, every optional column of some, and odd texts."""
    remembered("tests/controlplane/test_configuration.py", _furnish)
    group = Group.objects.create(name="night shift")
    group.permissions.set(
        Permission.objects.filter(codename__in=["view_server", "decide_approval"])
    )


def _furnish() -> None:
    populate(calls=0)
    site = Configuration.objects.get()
    site.variable_scope = {"TOKEN": ["server:odd"]}
    site.keep_calls_days = 77
    site.save()
    credentials.save_credential(
        credential=Credential(name="hub"), actor=ACTOR, value="s3cret", scope=["server:odd"]
    )
    odd = Server(
        slug="odd",
        name="Ödd “one”",
        description="a: b\n- c # d",
        command=["/bin/echo", "--", "~", "no", "1e3"],
        max_tools=10,
        max_definition_bytes=2_000_000,
        request_timeout=0.5,
        shared_by="session",
        max_sessions=3,
        asks_roots=True,
        sampling_expert="expert",
    )
    odd.env = {"TOKEN": "${TOKEN}", "HUB": "${cred:hub}", "PLAIN": "p4ss"}
    odd.extra = {"x": {"y": "z"}}
    lifecycle.disable_server(server=lifecycle.save_server(server=odd, actor=ACTOR), actor=ACTOR)
    ann = User.objects.get(username="approver")
    energy = pools.save_pool(
        pool=EnergyPool(slug="rationed", capacity=50.0, regeneration=0.25, on_empty="wait"),
        actor=ACTOR,
    )
    sources.save_source(
        source=RegistrySource(
            slug="own", base_url="https://registry.example", allowed_networks=["10.0.0.0/8"]
        ),
        actor=ACTOR,
    )
    agent = agents.save_agent(
        agent=Agent(
            slug="odd-one",
            owner=ann,
            energy_pool=energy,
            calls_per_minute=3,
            capabilities=["mcp_git::*"],
        ),
        actor=ACTOR,
    )
    books.save_budget(
        budget=Budget(
            slug="odd-money",
            agent=agent,
            hard=Decimal("2.5"),
            period="week",
            time_zone="Europe/Oslo",
        ),
        actor=ACTOR,
    )
    place = agents.save_endpoint(
        endpoint=Endpoint(slug="odd-place", instructions="Be\nbrief.", hold_seconds=9), actor=ACTOR
    )
    agents.save_workspace(
        workspace=Workspace(directory="/srv/odd", endpoint=place, agent=agent), actor=ACTOR
    )
    tool = (
        Tool.objects.filter(pinned__isnull=False)
        .select_related("server", "pinned")
        .order_by("pk")[0]
    )
    assert tool.pinned is not None
    Tool.objects.filter(pk=tool.pk).update(
        read_only=True, call_cost=Decimal("0.250000"), call_energy=1.5
    )
    soon = timezone.now() + timedelta(days=3)
    grants.save_grant(
        grant=Grant(
            agent=agent, tool=tool, argument_pins={"a": [1, None]}, expires_at=soon, note="n"
        ),
        actor=ACTOR,
    )
    grants.save_grant(grant=Grant(endpoint=place, server=tool.server), actor=ACTOR)
    prompt = Tool.offers.get(kind="prompt", server__slug="git")
    grants.save_grant(grant=Grant(agent=agent, server=prompt.server, kind=""), actor=ACTOR)
    grants.save_grant(grant=Grant(endpoint=place, tool=prompt), actor=ACTOR)
    PolicyRule.objects.create(name="a prompt", tool=prompt, outcome="allow")
    rule = PolicyRule.objects.create(
        name="odd: rule", agent=agent, tool=tool, outcome="ask", quorum=1, condition='"a" == "b"'
    )
    _told(tool, rule, ann)
    _expert(agent, place)
    Permit.objects.create(
        agent=agent,
        tool=tool,
        definition_hash=tool.pinned.hash,
        server_revision=tool.server.revision,
        argument_pins={"b": 1},
        expires_at=soon,
        uses_left=3,
        created_by=ann,
    )


def _told(tool: Tool, rule: PolicyRule, person: User) -> None:
    """A channel for one server and one rule, and who somebody is in Slack."""
    channel = Channel(name="hook", minimum_risk=2, events=["asked"])
    channel.access = {"url": "https://h.example.org/k3y", "signing": SIGNING}
    channel.save()
    channel.servers.set([tool.server])
    channel.rules.set([rule])
    SlackIdentity.objects.create(team="T1", member="U1", user=person)


def _expert(agent: Agent, place: Endpoint) -> None:
    """Make a provider with a model, an expert tool that this agent may call at this endpoint, and a
    hosted agent."""
    provider = Provider(
        slug="own", kind="compatible", base_url="https://llm.example.org/v1", options={"top_p": 0.5}
    )
    provider = providers.save_provider(
        provider=provider, actor=ACTOR, key="k3y", headers={"X-A": "h3ader"}
    )
    model = providers.save_model(
        model=LanguageModel(provider=provider, name="m/x", input_price=Decimal("0.1")), actor=ACTOR
    )
    expert = experts.save_expert(
        expert=ExpertTool(
            name="odd_expert", description="d", arguments={"q": {"type": "string"}}, max_cost=None
        ),
        targets=[model],
        actor=ACTOR,
    )
    experts.offer(expert=expert, agents=[agent], endpoints=[place], actor=ACTOR)
    effort.save_effort_agent(
        row=EffortAgent(expert=expert, enabled=False, cycle_seconds=2.5), actor=ACTOR
    )
    headends.save_headend(
        row=Headend(
            slug="chat",
            kind="openai",
            endpoint=place,
            path="team-a/v1",
            enabled=False,
            concurrency=3,
            longest_queue=7,
            patience_seconds=11,
            aliases={"gpt": "digest"},
            background_prompts=True,
        ),
        actor=ACTOR,
    )


def exported() -> tuple[str, dict[str, Any]]:
    """The file as text, and the secrets that it refers to."""
    secrets = Secrets()
    return text.dump(document_export.document(secrets), as_yaml=True), secrets.found


def rows() -> dict[str, list[str]]:
    """What the tables say, apart from how the document is written."""
    found = {}
    for kind in KINDS:
        columns = [
            c
            for c in kind.model._meta.concrete_fields
            if not c.is_relation and c.name not in _PASSING | {*find_sealed_columns(kind.model)}
        ]
        held = find_sealed_columns(kind.model).values()
        all_of = kind.rows() if kind.rows else kind.model._default_manager.all()
        found[kind.section] = sorted(
            json.dumps(
                [
                    {c.name: c.value_from_object(row) for c in columns},
                    {name: getattr(row, name) for name in held},
                ],
                default=str,
                sort_keys=True,
            )
            for row in all_of
        )
    return found


@pytest.fixture
def people(django_db_setup: Origin) -> Any:
    """Empties the site as if it were new, but for accounts, which do not travel."""

    def emptied() -> None:
        names = [
            (user.username, user.is_superuser, [group.name for group in user.groups.all()])
            for user in User.objects.all()
        ]
        django_db_setup.restore()
        for name, superuser, groups in names:
            user = User.objects.create_user(name, is_superuser=superuser)
            user.groups.set(Group.objects.filter(name__in=groups))

    return emptied


@pytest.mark.usefixtures("live_db")
def test_what_is_exported_makes_the_same_site_and_once_more_changes_nothing(people):
    furnished()
    before = rows()
    (file, secrets) = exported()
    for secret in ("s3cret", "p4ss", "k3y", "h3ader"):
        assert secret not in file
    assert set(text.load(file.encode(), "")) == {
        "slipsnisse",
        "version",
        *(kind.section for kind in KINDS),
    }, "of every kind one"
    assert set(secrets) >= {
        "credentials/hub/value",
        "servers/odd/env/PLAIN",
        "providers/own/key",
        "channels/hook/access/url",
    }
    people()
    document = text.load(file.encode(), "site.yaml")
    report = document_import.take(document, secrets, confirm=True)
    assert report.notes == []
    assert exported() == (file, secrets)
    assert rows() == before
    again = document_import.take(document, {}, confirm=True)
    assert (again.made, again.changed, again.kept, again.notes) == ([], [], [], [])
    assert document_import.take(document, {}, confirm=False).changed == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_what_was_decided_there_waits_for_a_person_unless_the_importer_has_read_it(people):
    furnished()
    file, secrets = exported()
    people()
    document = text.load(file.encode(), "site.yaml")
    report = document_import.take(document, secrets, confirm=False)
    assert not Server.objects.active().exists()
    assert not Tool.objects.filter(pinned__isnull=False).exists()
    assert Provider.objects.get(slug="own").draft_problem() is not None
    active = [
        f"servers/{name}" for name, said in document["servers"].items() if said.get("confirmed")
    ]
    assert [note.split(":")[0] for note in report.notes if note.startswith("servers/")] == active
    assert len(active) > 2
    again = document_import.take(document, secrets, confirm=False)
    assert (again.made, again.changed) == ([], [])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_without_its_secrets_nothing_counts_as_confirmed_and_their_names_are_told(people):
    furnished()
    file, _ = exported()
    people()
    report = document_import.take(text.load(file.encode(), "site.yaml"), {}, confirm=True)
    assert (
        "servers/odd: enter the missing secrets: servers/odd/env/PLAIN, servers/odd/extra."
        in report.notes
    )
    assert "providers/own: the destination of its key must be confirmed." in report.notes
    assert (
        "channels/hook: left out, because these secrets are missing: channels/hook/access/signing, channels/hook/access/url."
        in report.notes
    )
    assert Server.objects.get(slug="odd").env == {"TOKEN": "${TOKEN}", "HUB": "${cred:hub}"}
    assert not Server.objects.get(slug="odd").launch_confirmed


@pytest.mark.usefixtures("live_db")
def test_a_launch_that_somebody_edited_in_the_file_waits_for_a_person():
    furnished()
    file, secrets = exported()
    document = text.load(file.encode(), "site.yaml")
    name, server = next(
        (name, said)
        for name, said in document["servers"].items()
        if said.get("confirmed") and said.get("command")
    )
    server["command"] = ["/bin/evil"]
    report = document_import.take(document, secrets, confirm=False)
    assert report.changed == [f"servers/{name}"]
    assert report.notes == [f"servers/{name}: the launch must be confirmed."]
    assert not Server.objects.get(slug=name).launch_confirmed


@pytest.mark.usefixtures("live_db")
def test_accounts_do_not_travel_and_rules_may_come_before_the_people_who_answer():
    document = {
        "slipsnisse": "site",
        "version": 1,
        "agents": {"ann": {"owner": "nobody-here"}},
        "rules": {"ask": {"outcome": "ask"}},
        "slack_people": {"T/U": {"user": "nobody-here"}},
    }
    Configuration.objects.update(keep_calls_days=77)
    report = document_import.take(document, {}, confirm=True)
    assert report.made == ["agents/ann", "rules/ask"]
    assert Configuration.objects.get().keep_calls_days == 77, (
        "of what a file does not have it says nothing"
    )
    assert report.notes == [
        'No user named "nobody-here". The field that names this user is left empty.',
        'No user named "nobody-here". The field that names this user is left empty.',
        "Rules ask for approvals, but no user can approve calls yet. Give a user the role approver.",
    ]
    assert AuditEntry.objects.filter(kind="site.imported").get().actor == "importconfig"


@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"version": 2},
            "the version 2, but this release reads version 1. Export the file again",
        ),
        ({"slipsnisse": "other"}, "not the configuration of a whole site"),
        ({"things": {}}, '"things" is not a valid section'),
        ({"permits": []}, '"permits" is not a valid section'),
        ({"servers": []}, "servers is not an object"),
        ({"grants": {}}, "grants is not a list"),
        ({"servers": {"a": 1}}, "servers/a: the entry is not an object"),
        (
            {"servers": {"a": {"comand": ["x"]}}},
            'servers/a: "comand" is not a valid key. Valid keys: ',
        ),
        (
            {"servers": {"a": {"max_tools": "many"}}},
            "servers/a: 'many' is not a valid value of max_tools",
        ),
        ({"servers": {"a": {"max_tools": 0}}}, "servers/a: "),
        (
            {"tools": {"none::t": {"definition": {"name": "t"}}}},
            'tools/none::t: No server named "none"',
        ),
        ({"grants": [{"agent": "none"}]}, 'grants/1: No agent named "none"'),
        (
            {"roles": {"night": {"permissions": ["mcpregistry.fly"]}}},
            'No permission named "mcpregistry.fly"',
        ),
        ({"rules": {"r": {"condition": "1 +"}}}, "rules/r: "),
        (
            {"rules": {"r": {"condition": 5}}},
            "rules/r: 5 is not a valid value of condition. Use a text",
        ),
        (
            {"servers": {"a": {"description": {"x": 1}}}},
            "servers/a: {'x': 1} is not a valid value of description. Use a text",
        ),
        (
            {"servers": {"a": {"max_tools": True}}},
            "servers/a: True is not a valid value of max_tools. Use a whole number",
        ),
        ({"agents": {"b": {"enabled": "yes"}}}, "agents/b: enabled must be true or false"),
        ({"servers": {"a": {"command": 5}}}, "servers/a: "),
        (
            {
                "servers": {
                    "a": {
                        "allowed_networks": {"x": 1},
                        "transport": "http",
                        "url": "https://a.example.org",
                    }
                }
            },
            "servers/a: ",
        ),
        ({"agents": {"b": {"capabilities": "x"}}}, "agents/b: "),
        ({"agents": {"b": {"capabilities": [5]}}}, "agents/b: "),
        (
            {"grants": [{"agent": "ann", "expires_at": 5}]},
            "grants/1: 5 is not a valid value of expires_at. Use a time",
        ),
        ({"grants": [{"agent": "ann", "argument_pins": [1]}]}, "grants/1: "),
        ({"experts": {"e": {"arguments": [1]}}}, "experts/e: "),
        ({"channels": {"c": {"events": "asked"}}}, "channels/c: "),
        ({"configuration": {"variable_scope": [1]}}, "configuration/site: "),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_a_file_that_cannot_work_is_refused_with_its_place_and_nothing_is_saved(wrong, said):
    good = {"slipsnisse": "site", "version": 1, "agents": {"ann": {}}}
    with pytest.raises(ConfigInvalid) as refused:
        document_import.take(good | wrong, {}, confirm=True)
    assert said in str(refused.value)
    assert not Agent.objects.exists()
    assert not AuditEntry.objects.filter(kind="site.imported").exists()


@pytest.mark.usefixtures("live_db")
def test_a_grant_that_the_import_keeps_is_named(people):
    agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    document = text.load(exported()[0].encode(), "site.yaml")
    document["grants"] = [{"agent": "ann", "server": "git", "argument_pins": {"path": "/a"}}]
    saved("git", command=["true"])
    document_import.take(document, {}, confirm=True)
    document["grants"][0]["argument_pins"] = {"path": "/b"}
    report = document_import.take(document, {}, confirm=True)
    assert report.made == ["grants/1"]
    kept = next(each for each in report.kept if each.startswith("grants: "))
    assert '"agent":"ann"' in kept
    assert '"argument_pins":{"path":"/a"}' in kept


def saved(slug: str, **columns: Any) -> Server:
    """A server of this site."""
    env = columns.pop("env", {})
    row = Server(slug=slug, **columns)
    row.env = env
    return lifecycle.save_server(server=row, actor=ACTOR)


@pytest.mark.usefixtures("live_db")
def test_secrets_in_words_of_a_command_and_in_an_address_are_named_too(people):
    saved(
        "a",
        command=["/bin/echo", "--token", "hunter2hunter2", "--api-key=xyzzy99", "--name", "plain"],
    )
    saved("b", transport="http", url="https://x.example.org/mcp?api_key=hunter2hunter2")
    saved("c", command=["/bin/echo"], env={"secret": "${cred:hub}"})
    saved(
        "d",
        command=[
            "/bin/echo",
            "postgresql://app:hunter2hunter2@db/prod",
            "-H",
            "Authorization: Bearer hunter2hunter2",
        ],
    )
    (file, secrets) = exported()
    before = rows()
    assert "hunter2" not in file
    assert "xyzzy99" not in file
    assert "plain" in file
    people()
    document_import.take(text.load(file.encode(), "site.yaml"), secrets, confirm=True)
    assert rows() == before
    assert exported() == (file, secrets)


@pytest.mark.usefixtures("live_db")
def test_a_secret_is_sent_nowhere_else_by_an_edited_file():
    saved("good", command=["/bin/echo"], env={"TOKEN": "t0psecret"})
    saved("evil", command=["/bin/cat"], env={"X": "own"})
    file, secrets = exported()
    document = text.load(file.encode(), "site.yaml")
    document["servers"]["evil"]["env"]["X"] = {"secret": "servers/good/env/TOKEN"}
    with pytest.raises(
        ConfigInvalid, match='servers/evil: the secret "servers/good/env/TOKEN" is not allowed here'
    ):
        document_import.take(document, secrets, confirm=True)
    assert Server.objects.get(slug="evil").env == {"X": "own"}


@pytest.mark.usefixtures("live_db")
def test_permits_stay_on_the_site_where_they_were_given():
    """A permit is bound to the rule that asked, and what it is bound to has keys of this
    database."""
    furnished()
    assert "permits" not in text.load(exported()[0].encode(), "site.yaml")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_once_more_changes_nothing_though_accounts_and_secrets_are_missing(people):
    furnished()
    file, _ = exported()
    django_people = User.objects.filter(username="approver")
    people()
    django_people.delete()
    document = text.load(file.encode(), "site.yaml")
    # which are left out, and told of each time, until they have their secrets
    document["channels"] = {}
    document["slack_people"] = {}
    assert document_import.take(document, {}, confirm=True).made
    again = document_import.take(document, {}, confirm=True)
    assert (again.made, again.changed) == ([], [])


@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize(
    "wrong",
    [
        {"roles": {"night": {"permissions": 5}}},
        {"servers": {"a": {"transport": "x", "command": ["/bin/echo"]}}},
        {"servers": {"a": {"command": ["/bin/echo"], "enabled": "no"}}},
        {"credentials": {"c": {"value": 5}}},
        {"credentials": {"c": {"scope": 5}}},
        {"agents": {"a": {"owner": []}}},
        {"endpoints": {"e": {"name": None}}},
        {"experts": {"e": {"models": 5}}},
        {"channels": {"c": {"access": 5}}},
        {"slack_people": {"t/u": {"user": []}}},
        {
            "servers": {"a": {"command": ["/bin/echo"]}},
            "tools": {"a::t": {"definition": {"name": "other"}}},
        },
        {
            "servers": {"a": {"command": ["/bin/echo"]}},
            "tools": {"a::t": {"definition": {"name": "t"}, "call_cost": -1}},
        },
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_values_of_the_wrong_kind_are_told_with_their_place(wrong):
    with pytest.raises(ConfigInvalid, match=rf"{list(wrong)[-1]}/"):
        document_import.take({"slipsnisse": "site", "version": 1} | wrong, {}, confirm=True)
    assert not Server.objects.exists()


def test_whatever_configures_a_site_is_in_its_document():
    """A new model is either a kind of the document, or named here as none."""
    no_configuration = {
        "auth.Permission",
        "auth.User",
        "mcpregistry.Token",
        "mcpregistry.SecondFactor",
        "mcpregistry.RecoveryCode",
        "mcpregistry.Invitation",
        "mcpregistry.Definition",
        "subagents.ExpertTarget",
        "subagents.ExpertVersion",
        "mcpregistry.ImportedFile",
        "mcpregistry.ProjectFile",
        "mcpregistry.Permit",
    }  # people, what proves them and what they permitted here; parts of other rows
    records = {
        "Connection",
        "ServerEvent",
        "ServerTest",
        "Invocation",
        "ApprovalRequest",
        "ApprovalSeat",
        "ApprovalVote",
        "AuditEntry",
        "AuditSeal",
        "AuditArchive",
        "AuditVerification",
        "HostTask",
        "Change",
        "Figure",
        "CountedSpan",
        "SpanUsage",
        "SpanFailure",
        "UsageSums",
        "AccessFinding",
        "CallText",
        "SavedFilter",
        "KeptAnswer",
        "LoginAttempts",
        "Delivery",
        "Run",
        "HeadendRequest",
        "Turn",
        "Attempt",
        "TracedRequest",
        "StoredOutput",
        "ToolCall",
        "MaintenanceRequest",
        "MaintenanceMessage",
        "Proposal",
        "TrialReport",
        "Conversation",
        "Message",
        "Exchange",
        "CycleLog",
        "EnergyEntry",
        "EnergyReservation",
        "ToolUsage",
        "HostSession",
        "HostMessage",
        "HostStream",
        "HostSubscription",
        "HostConnection",
        "SessionOwner",
        "SiteProcess",
        "BudgetPeriod",
        "BudgetEntry",
        "BudgetReservation",
        "RateLevel",
        "Install",
        "RegistryEntry",
    }
    ours = [
        model
        for app in ("auth", "mcpregistry", "subagents")
        for model in apps.get_app_config(app).get_models()
    ]
    told = {kind.model for kind in KINDS}
    left = {
        model._meta.label
        for model in ours
        if model not in told and not model.__name__.startswith("Historical")
    }
    assert {
        label for label in left - no_configuration if label.split(".")[1] not in records
    } == set()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_by_command_into_another_site_and_back_in_git(people, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLIPSNISSE_BACKUP_PASSPHRASE", "correct horse battery")
    monkeypatch.setattr(document_export, "WORK", 2)
    furnished()
    site = tmp_path / "site.yaml"
    sealed = tmp_path / "site.secrets"
    call_command("exportconfig", all=True, output=str(site), secrets=str(sealed))
    assert "s3cret" not in site.read_text() + sealed.read_text()
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
    people()
    call_command("importconfig", str(site), secrets=str(sealed), confirm=True, dry_run=True)
    said = capsys.readouterr().out
    assert "+  odd-one:" in said
    assert "(not saved)" in said
    assert not Agent.objects.exists()
    call_command("importconfig", str(site), secrets=str(sealed), confirm=True)
    call_command("exportconfig", all=True, output=str(tmp_path / "again.json"))
    call_command("exportconfig", all=True, output=str(tmp_path / "again.yaml"))
    assert (tmp_path / "again.yaml").read_text() == site.read_text()
    capsys.readouterr()
    call_command("importconfig", str(tmp_path / "again.json"), dry_run=True, confirm=True)
    assert capsys.readouterr().out.startswith("Nothing would change.\n")
    monkeypatch.setenv("SLIPSNISSE_BACKUP_PASSPHRASE", "another horse battery")
    with pytest.raises(SystemExit):
        call_command("importconfig", str(site), secrets=str(sealed))
    assert "does not open" in capsys.readouterr().err
    with pytest.raises(CommandError, match="cannot be used for the file of a whole site"):
        call_command("importconfig", str(site), check=True)
    (tmp_path / "plain.json").write_text('{"mcpServers": {}}')
    with pytest.raises(CommandError, match="--confirm require"):
        call_command("importconfig", str(tmp_path / "plain.json"), confirm=True)
