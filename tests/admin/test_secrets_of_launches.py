"""What is secret in a command or an address is on no page and in no answer for people who may not
change servers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import Server
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind, RequestMessageKind
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest, Proposal, Provider
from subagents.services import providers
from tests.admin.conftest import ClientOf
from tests.fakes.held import hold
from tests.fakes.seed import ACTOR, Site

pytestmark = [pytest.mark.usefixtures("contexts"), pytest.mark.attack]

WORDS = [
    "/bin/x",
    "--api-key=canary-1",
    "postgresql://app:canary-2@db/prod",
    "-H",
    "Authorization: Bearer canary-3",
]
NEWER = [*WORDS[:-1], "Authorization: Bearer canary-4", "--verbose"]
ADDRESS = "https://mcp.example/mcp?api_key=canary-5"
PROVIDER = "https://app:canary-6@models.example/v1"


@pytest.fixture
def records(site: Site) -> dict[str, Any]:
    local = lifecycle.save_server(server=Server(slug="words", command=WORDS), actor=ACTOR)
    local.command = NEWER
    lifecycle.save_server(server=local, actor=ACTOR)
    remote = lifecycle.save_server(
        server=Server(slug="far", transport="http", url=ADDRESS), actor=ACTOR
    )
    params = {"server": "words", "fields": {"command": WORDS}, "reason": "older"}
    request = queue.ask(kind=Kind.MODIFY, params=params, actor="user:ann")
    MaintenanceRequest.objects.filter(pk=request.pk).update(
        result={"proposal": 1, "fields": {"command": WORDS}}
    )
    proposal = Proposal.objects.create(
        request=request,
        server=local,
        fields={"command": WORDS},
        reason="older",
        created_at=timezone.now(),
    )
    provider = Provider.objects.create(slug="private", kind="openai", base_url=PROVIDER)
    keyed = Provider(
        slug="keyed", kind="compatible", base_url="https://models.example/v1?api_key=canary-7"
    )
    providers.save_provider(provider=keyed, actor=ACTOR)
    queue.tell(request, RequestMessageKind.COMPLETION, result={"fields": {"command": WORDS}})
    return {
        "local": local,
        "remote": remote,
        "request": request,
        "proposal": proposal,
        "provider": provider,
    }


def _pages(records: dict[str, Any]) -> list[str]:
    def change(what: str, row: Any) -> str:
        return reverse(f"admin:{what}_change", args=[row.pk])

    return [
        change("mcpregistry_server", records["local"]),
        change("mcpregistry_server", records["remote"]),
        reverse("admin:mcpregistry_server_history", args=[records["local"].pk]),
        change("subagents_maintenancerequest", records["request"]),
        change("subagents_proposal", records["proposal"]),
        change("subagents_provider", records["provider"]),
        "/admin/subagents/provider/",
        "/admin/mcpregistry/server/",
        "/api/v1/history?kind=servers&record=words",
        f"/api/v1/history/servers/{records['local'].history.first().pk}",
        "/api/v1/audit?limit=200",
        "/api/v1/maintenance/requests",
        f"/api/v1/maintenance/requests/{records['request'].pk}",
        "/api/v1/maintenance/proposals",
        "/api/v1/maintenance/messages",
    ]


def test_viewers_read_no_secret_of_a_command_or_address(
    client_of: ClientOf, records: dict[str, Any]
) -> None:
    viewer = client_of("viewer")
    seen = {}
    for page in _pages(records):
        answer = viewer.get(page)
        seen[page] = answer.status_code
        assert b"canary" not in answer.content, page
    assert [page for page, status in seen.items() if status != 200] == []


def test_people_who_change_servers_read_proposals_whole(
    client_of: ClientOf, records: dict[str, Any]
) -> None:
    for page in (*_pages(records)[:1], _pages(records)[4], "/api/v1/maintenance/proposals"):
        assert b"canary-1" in client_of("admin").get(page).content, page


def test_history_masks_secrets_and_keeps_what_else_changed(
    client_of: ClientOf, records: dict[str, Any]
) -> None:
    page = reverse("admin:mcpregistry_server_history", args=[records["local"].pk])
    html = client_of("admin").get(page).content.decode()
    assert "canary" not in html, "a version is shown to everybody alike"
    assert "--api-key=***" in html
    assert "--verbose" in html


def test_approval_pages_show_no_secret_of_a_command(
    client_of: ClientOf, records: dict[str, Any]
) -> None:
    held = hold("github", "create_issue")
    Server.objects.filter(slug="github").update(url=ADDRESS)
    html = client_of("approver").get(f"/approvals/{held.pk}/").content.decode()
    assert "canary" not in html
    assert "api_key=***" in html


@pytest.mark.parametrize("letters", ["canary-5", "api_key=canary"])
def test_viewers_find_no_server_by_a_secret_in_its_address(
    client_of: ClientOf, records: Any, letters: str
) -> None:
    def found(client: Client) -> int:
        return client.get(f"/admin/mcpregistry/server/?q={letters}").context["cl"].result_count

    assert (found(client_of("viewer")), found(client_of("admin"))) == (0, 1)


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    "address",
    [
        "server/?url__startswith=https",
        "server/?command__2__startswith=p",
        "server/?url=x",
        "server/?command__contains=x",
    ],
)
@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_lists_answer_no_guesses_about_secrets(
    client_of: ClientOf, records: Any, role: str, address: str
) -> None:
    answer = client_of(role).get(f"/admin/mcpregistry/{address}")
    assert answer.status_code in (302, 400)
    assert "e=1" in answer.get("Location", "e=1")
