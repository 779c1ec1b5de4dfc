"""Pages of the background sub-agent: asked by a form, watched, stopped; proposals are decided by
those who may."""

from __future__ import annotations

import pytest
from django.test import Client

from mcpregistry.models import Agent, EnergyPool, Server
from mcpregistry.services.energy import pools
from mcpregistry.services.servers import lifecycle
from subagents import energy
from subagents.domain.maintenance import Kind, RequestMessageKind, State
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest, Proposal
from tests.subagents.admin.test_pages import HOSTILE, client_as

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
LIST = "/admin/subagents/maintenancerequest/"
PROPOSALS = "/admin/subagents/proposal/"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subagents.maintenance.queue.send_task", lambda task: True)


@pytest.fixture
def server() -> Server:
    return lifecycle.save_server(server=Server(slug="git", command=["true"]), actor="test")


def ask(client: Client, **fields: str) -> str:
    return client.post(
        f"{LIST}add/", {"kind": "test_server", "server": "", "words": "", "priority": "2"} | fields
    ).content.decode()


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("kind", "fields", "params"),
    [
        ("test_server", {"server": "git"}, {"server": "git"}),
        ("search_servers", {"words": "history"}, {"query": "history", "limit": 10}),
        (
            "add_server",
            {"server": "new", "words": "why"},
            {"server": "new", "purpose": "why", "fields": {}},
        ),
        (
            "remove_server",
            {"server": "git", "words": "unused"},
            {"server": "git", "reason": "unused"},
        ),
        ("try_server", {"server": "git"}, {"server": "git"}),
        ("try_server", {"server": "git", "for_agent": "ci"}, {"server": "git", "for_agent": "ci"}),
    ],
)
def test_a_person_asks_by_a_form(
    server: Server, kind: str, fields: dict[str, str], params: dict[str, object]
) -> None:
    Agent.objects.create(slug="ci")
    ask(client_as("operator"), kind=kind, priority="3", **fields)
    made = MaintenanceRequest.objects.get()
    assert client_as("viewer").get(f"{LIST}?q={made.pk}").status_code == 200
    assert (made.kind, made.params, made.priority, made.requested_by) == (
        kind,
        params,
        3,
        "user:operator",
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "search_servers"}, "Enter what to search for."),
        ({"kind": "test_server"}, "Enter the name of the server."),
        (
            {"kind": "test_server", "server": "git", "for_agent": "ci"},
            "Only a trial can propose grants.",
        ),
        ({"kind": "test_server", "server": "none"}, "No server named &quot;none&quot;"),
    ],
)
def test_what_is_missing_is_said_at_its_field_and_nothing_is_queued(
    fields: dict[str, str], said: str
) -> None:
    Agent.objects.create(slug="ci")
    assert said in ask(client_as("operator"), **fields)
    assert not MaintenanceRequest.objects.exists()


def test_the_page_lives_while_the_request_does_and_shows_what_was_found(server: Server) -> None:
    client = client_as("viewer")
    row = queue.ask(kind=Kind.TEST, params={"server": "git"}, actor=HOSTILE)
    page = f"{LIST}{row.pk}/change/"
    assert f'data-live="{LIST}{row.pk}/live/"' in client.get(page).content.decode()
    assert client.get(f"{LIST}{row.pk}/live/").status_code == 200
    queue.tell(row, RequestMessageKind.STATUS, progress=10, step="probe", message=HOSTILE)
    steps = [{"step": "config", "ok": True}, {"step": "spawn", "ok": False, "error": HOSTILE}]
    queue.end(row, State.COMPLETED, result={"ok": False, "steps": steps})
    assert client.get(f"{LIST}{row.pk}/live/").status_code == 286
    shown = client.get(page).content.decode()
    assert "data-live" not in shown
    assert ("failed" in shown, "<script>window.x" in shown, "\u202e" in shown) == (
        True,
        False,
        False,
    )


def test_a_request_is_paused_resumed_and_cancelled_by_those_who_may(server: Server) -> None:
    row = queue.ask(kind=Kind.TEST, params={"server": "git"}, actor="test")
    viewer = client_as("viewer")
    operator = client_as("operator")
    assert viewer.post(f"{LIST}{row.pk}/do/cancel/").status_code == 403
    for verb, state in (
        ("pause", "queued paused"),
        ("resume", "queued "),
        ("cancel", "failed cancelled"),
    ):
        assert operator.post(f"{LIST}{row.pk}/do/{verb}/").status_code == 302
        row.refresh_from_db()
        assert f"{row.state} {row.substate}" == state
    assert row.error == "cancelled: requested by a user"


@pytest.mark.exhaustive
def test_the_list_says_whether_the_sub_agent_is_on_and_admins_switch_it(server: Server) -> None:
    row = queue.ask(kind=Kind.TEST, params={"server": "git"}, actor="test")
    admin = client_as("admin")
    operator = client_as("operator")
    operator.post(f"{LIST}switch/off/")
    assert "works on queued requests" in operator.get(LIST).content.decode(), "it is on still"
    assert f"{LIST}switch/" not in operator.get(LIST).content.decode()
    assert admin.get(f"{LIST}switch/off/").status_code == 302
    assert f'action="{LIST}switch/off/"' in admin.get(LIST).content.decode(), (
        "to look at the address changes nothing"
    )
    admin.post(f"{LIST}switch/off/")
    assert "Queued requests stay queued" in operator.get(LIST).content.decode()
    assert "The sub-agent is disabled." in operator.get(f"{LIST}{row.pk}/change/").content.decode()
    admin.post(f"{LIST}switch/on/")
    assert "works on queued requests" in admin.get(LIST).content.decode()


def test_a_proposal_shows_the_difference_and_is_applied_by_one_click(server: Server) -> None:
    row = queue.ask(
        kind=Kind.MODIFY,
        params={"server": "git", "fields": {"idle_timeout": 60.0}},
        actor="agent:ann",
    )
    made = Proposal.objects.create(
        request=row,
        server=server,
        server_revision=server.revision,
        server_saved_at=server.updated_at,
        fields={"idle_timeout": 60.0},
        reason="seldom used",
        created_at=row.created_at,
    )
    operator = client_as("operator")
    shown = operator.get(f"{PROPOSALS}{made.pk}/change/").content.decode()
    assert all(
        word in shown for word in ("idle timeout", ">600<", ">60<", "seldom used", "agent:ann")
    )
    assert operator.post(f"{PROPOSALS}{made.pk}/do/apply/").status_code == 302
    server.refresh_from_db()
    made.refresh_from_db()
    assert (server.idle_timeout, made.state, made.decided_by) == (60, "applied", "user:operator")


def test_one_that_is_outdated_says_so(server: Server) -> None:
    row = queue.ask(kind=Kind.REMOVE, params={"server": "git", "reason": "no"}, actor="test")
    made = Proposal.objects.create(
        request=row,
        server=server,
        server_revision=server.revision,
        server_saved_at=server.updated_at,
        created_at=row.created_at,
    )
    server.idle_timeout = 5
    lifecycle.save_server(server=server, actor="test")
    operator = client_as("operator")
    assert (
        "you can only decline it" in operator.get(f"{PROPOSALS}{made.pk}/change/").content.decode()
    )
    told = operator.post(f"{PROPOSALS}{made.pk}/do/apply/", follow=True).content.decode()
    assert "after this change was proposed" in told
    assert Server.objects.filter(pk=server.pk).exists()


def test_what_it_used_of_a_pool_leads_to_the_request(server: Server) -> None:
    pool = pools.save_pool(pool=EnergyPool(slug="shared"), actor="test")
    agent = Agent.objects.create(slug="ci", energy_pool=pool)
    made = queue.ask(
        kind=Kind.SEARCH, params={"query": "history", "limit": 10}, actor="agent:ci", agent=agent
    )
    MaintenanceRequest.objects.filter(pk=made.pk).update(energy_total=3, energy_unreported=3)
    energy.charge_used()
    page = (
        client_as("admin").get(f"/admin/mcpregistry/energypool/{pool.pk}/change/").content.decode()
    )
    assert f'href="{LIST}{made.pk}/change/">background sub-agent</a>' in page
