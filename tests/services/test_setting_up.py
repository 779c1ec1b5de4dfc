"""Each step of setting a server up leaves whole rows, and what comes next is read off them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcpregistry.domain.errors import AlreadyExists, ConfigInvalid, Conflict, Denied
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Credential,
    Endpoint,
    PolicyRule,
    Server,
    ServerTest,
    Tool,
)
from mcpregistry.queries.setup_state import read_setup_state, to_decide
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle, server_setup
from mcpregistry.services.servers.server_setup import ServerDraft
from tests.fakes.seed import tool

pytestmark = [pytest.mark.django_db]

ACTOR = "user:test"
SECRET = "hunter2-very-secret"


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("root")


def server(slug: str = "tides", **fields: object) -> Server:
    return Server(**({"slug": slug, "command": ["uvx", "tides-mcp"]} | fields))


def add(user: User, made: Server, secrets: dict[str, str], kept: tuple[str, ...]) -> Server:
    server_setup.add_draft_server(draft=ServerDraft(made, secrets, kept), user=user, actor=ACTOR)
    return Server.objects.get(slug=made.slug)


def test_a_secret_becomes_a_credential_of_this_server_alone(admin: User) -> None:
    Credential.objects.create(name="tides-token")
    made = add(
        admin,
        server(command=["uvx", "x", "--token=${cred:tides-token}"]),
        {"tides-token": SECRET},
        ("tides-token",),
    )
    assert made.command == ["uvx", "x", "--token=${cred:tides-token-2}"]
    kept = Credential.objects.get(name="tides-token-2")
    assert (kept.value, kept.scope, made.lifecycle) == (SECRET, ["server:tides"], "draft")


def test_a_secret_is_sealed_with_the_server_only_where_nobody_reads_it(admin: User) -> None:
    nobody = User.objects.create_user("nobody")
    made = add(nobody, server(env={"TOKEN": "Bearer ${cred:t}"}), {"t": SECRET, "unused": "x"}, ())
    assert made.env == {"TOKEN": f"Bearer {SECRET}"}
    with pytest.raises(ConfigInvalid, match="be readable in"):
        add(admin, server("open", command=["uvx", "--token=${cred:t}"]), {"t": SECRET}, ())
    with pytest.raises(Denied):
        add(nobody, server("other", env={"TOKEN": "${cred:t}"}), {"t": SECRET}, ("t",))
    with pytest.raises(AlreadyExists):
        add(admin, server(), {}, ())
    assert [*Server.objects.values_list("slug", flat=True)] == ["tides"]
    assert not Credential.objects.exists()


def answered(made: Server) -> Server:
    """Confirmed, and read by a worker."""
    lifecycle.confirm_launch(server=made, actor=ACTOR, launch_hash=made.launch_hash())
    reading = tool("look", "Looks.", annotations={"readOnlyHint": True})
    observe.observe(server=made, listed=[reading, tool("wipe", "Wipes.")])
    Server.objects.filter(pk=made.pk).update(last_ok_at=timezone.now())
    return Server.objects.get(pk=made.pk)


def test_what_comes_next_is_read_off_the_rows(admin: User) -> None:
    made = add(admin, server(), {}, ())
    assert read_setup_state(made).step == "confirm"
    made = answered(made)
    test = ServerTest.objects.create(server=made, requested_at=timezone.now())
    assert (read_setup_state(made).step, read_setup_state(made).testing) == ("test", True)
    ServerTest.objects.filter(pk=test.pk).update(verdict="passed")
    assert read_setup_state(made).step == "definitions"
    decisions.approve_waiting(server=made, actor=ACTOR)
    assert read_setup_state(made).step == "access"
    agent = Agent.objects.create(slug="a")
    server_setup.grant_to_agents(server=made, agents=[agent], user=admin, actor=ACTOR)
    assert (read_setup_state(made).step, read_setup_state(made).agents) == ("", ("a",))
    made.command = ["uvx", "another"]
    lifecycle.save_server(server=made, actor=ACTOR)
    assert read_setup_state(Server.objects.get(pk=made.pk)).step == "confirm"


def test_definitions_claims_and_rules_are_accepted_together_or_not_at_all(admin: User) -> None:
    made = answered(add(admin, server(), {}, ()))
    waiting = {each.name: each for each in to_decide(made)}
    newest = [waiting["look"].latest_id, waiting["wipe"].latest_id]
    rules = server_setup.list_proposed_rules(made)
    assert [(rule.outcome, server_setup.explain_unanswerable(rule)) for rule in rules] == [
        ("allow", ""),
        ("ask", ""),
        ("ask", ""),
    ]
    observe.observe(server=made, listed=[tool("look", "Looks away."), tool("wipe", "Wipes.")])
    order = {"vouched": [waiting["look"].pk], "rules": rules, "user": admin, "actor": ACTOR}
    with pytest.raises(Conflict):
        server_setup.accept_definitions(server=made, definitions=newest, **order)
    assert not PolicyRule.objects.filter(server=made).exists()
    assert not Tool.objects.filter(server=made).serving().exists()
    assert server_setup.accept_definitions(server=made, definitions=newest[1:], **order) == 1
    assert [rule.name for rule in PolicyRule.objects.filter(server=made).order_by("pk")] == [
        "tides: reading runs",
        "tides: writing asks",
        "tides: destroying asks",
    ]
    assert server_setup.list_proposed_rules(made) == []


def test_what_others_decided_meanwhile_is_not_overruled(admin: User) -> None:
    made = answered(add(admin, server(), {}, ()))
    waiting = {each.name: each for each in to_decide(made)}
    look = waiting["look"]
    wipe = waiting["wipe"]
    assert look.latest is not None
    decisions.reject(definition=look.latest, actor=ACTOR)
    order = {"server": made, "user": admin, "actor": ACTOR}
    with pytest.raises(Conflict, match="rejected"):
        server_setup.accept_definitions(
            definitions=[look.latest_id, wipe.latest_id], vouched=[], rules=[], **order
        )
    assert not Tool.objects.filter(server=made).serving().exists()
    chosen = server_setup.make_possible_rules(made)
    server_setup.accept_definitions(definitions=[], vouched=[], rules=chosen[:1], **order)
    with pytest.raises(Conflict, match="rules"):
        server_setup.accept_definitions(
            definitions=[wipe.latest_id], vouched=[], rules=chosen[1:], **order
        )
    assert not Tool.objects.filter(server=made).serving().exists()


def test_claims_are_vouched_for_with_the_definition_that_makes_them_alone(admin: User) -> None:
    made = answered(add(admin, server(), {}, ()))
    waiting = {each.name: each for each in to_decide(made)}
    order = {
        "vouched": [waiting["look"].pk],
        "rules": [],
        "server": made,
        "user": admin,
        "actor": ACTOR,
    }
    decisions.approve_waiting(server=made, actor=ACTOR)
    server_setup.accept_definitions(definitions=[], **order)
    assert Tool.objects.get(pk=waiting["look"].pk).read_only is None
    before = AuditEntry.objects.count()
    server_setup.accept_definitions(definitions=[waiting["look"].latest_id], **order)
    assert Tool.objects.get(pk=waiting["look"].pk).read_only is True
    assert [*AuditEntry.objects.order_by("seq").values_list("kind", flat=True)][before:] == [
        "definition.approved",
        "tool.confirmed",
    ]


def test_a_rule_that_nobody_could_answer_says_so(admin: User) -> None:
    User.objects.all().delete()
    made = answered(add(User.objects.create_user("nobody"), server(), {}, ()))
    assert [
        "no active user" in server_setup.explain_unanswerable(rule)
        for rule in server_setup.list_proposed_rules(made)
    ] == [
        False,
        True,
        True,
    ]


def test_the_same_grant_is_not_made_twice(admin: User) -> None:
    made = add(admin, server(), {}, ())
    agent = Agent.objects.create(slug="a")
    narrow = Endpoint.objects.create(slug="narrow", scope="listed")
    order = {
        "server": made,
        "agents": [agent],
        "endpoints": [narrow],
        "user": admin,
        "actor": ACTOR,
    }
    assert len(server_setup.grant_to_agents(**order)) == 2
    assert server_setup.grant_to_agents(**order) == []
    assert [grant.kind for grant in server_setup.grant_to_agents(**order, everything=True)] == [
        "",
        "",
    ]
