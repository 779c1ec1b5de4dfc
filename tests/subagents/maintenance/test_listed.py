"""What registries list, as the sub-agent finds it and proposes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Configuration, RegistryEntry, RegistrySource, Server
from mcpregistry.services.registry.add_entries import AddRequest
from subagents.domain.maintenance import Kind, State
from subagents.maintenance import proposals
from subagents.models import MaintenanceRequest, Proposal
from tests.subagents.maintenance.conftest import ask, ended

DOCUMENT = json.dumps(
    {
        "remotes": [
            {
                "type": "sse",
                "url": "https://git.example/{team}",
                "variables": {"team": {"isRequired": True}},
            }
        ],
    }
)


def listed(name: str, version: str = "1.0.0", **fields: Any) -> RegistryEntry:
    """An entry of a registry that the site has read."""
    source = RegistrySource.objects.get_or_create(
        slug="official", base_url="https://registry.example"
    )[0]
    fields = {
        "is_latest": True,
        "status": "active",
        "kinds": "pypi",
        "document": DOCUMENT,
        "sha256": "a" * 64,
        "seen_at": timezone.now(),
    } | fields
    return RegistryEntry.objects.create(source=source, name=name, version=version, **fields)


async def test_a_search_finds_what_registries_list_and_have_not_taken_back(manager: Any) -> None:
    best = await db_call(listed, "io.example/git", description="History of repositories")
    await db_call(listed, "io.example/git", "0.9.0", is_latest=False)
    await db_call(listed, "io.example/other", description="Something like git")
    await db_call(listed, "io.example/git-evil", status="deleted")
    await db_call(listed, "io.example/clock")
    done = await ended(await manager(), await db_call(ask, Kind.SEARCH, query="git", limit=5))
    assert done.result["registry_entries"][0] == {
        "name": "io.example/git",
        "version": "1.0.0",
        "registry": "official",
        "description": "History of repositories",
        "kinds": ["pypi"],
        "status": "active",
        "id": best.pk,
    }
    assert [each["name"] for each in done.result["registry_entries"]] == [
        "io.example/git",
        "io.example/other",
    ]


async def test_a_new_server_is_proposed_from_registries_and_a_person_chooses(manager: Any) -> None:
    best = await db_call(listed, "io.example/git")
    await db_call(listed, "io.example/git-hub")
    done = await ended(
        await manager(), await db_call(ask, Kind.ADD, server="git", purpose="history")
    )
    assert [each["name"] for each in done.result["registry_entries"]] == [
        "io.example/git",
        "io.example/git-hub",
    ]
    ann = await db_call(User.objects.create_superuser, "ann")
    key = done.result["proposal"]
    wish = AddRequest(0, "git", {"address team": "t"}, best.sha256)

    with pytest.raises(ConfigInvalid, match="does not contain a command"):
        await db_call(proposals.apply, proposal_id=key, user=ann, actor="user:ann")
    applied = await db_call(
        proposals.apply,
        proposal_id=key,
        user=ann,
        actor="user:ann",
        choice=proposals.ChosenEntry(best, wish),
    )
    server = await db_call(Server.objects.get)
    assert (applied.state, applied.server_id, server.url, server.lifecycle) == (
        "applied",
        server.pk,
        "https://git.example/t",
        "draft",
    )


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("switch", "variable", "searches"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
async def test_for_an_agent_registries_are_searched_only_where_that_is_switched_on(
    manager: Any, settings: Any, switch: bool, variable: bool | None, searches: bool
) -> None:
    settings.MCP_AUTO_DISCOVERY = variable
    await db_call(Configuration.objects.update_or_create, id=1, defaults={"auto_discovery": switch})
    await db_call(listed, "io.example/forecasts", description="Tells the weather anywhere")
    await db_call(listed, "io.example/mail", description="Reads post")
    agent = await db_call(Agent.objects.create, slug="bot")
    here = await manager()
    wanted = {"server": "meteo", "purpose": "I need the weather for a trip"}
    asked = await ended(
        here, await db_call(ask, Kind.ADD, agent=agent, actor="agent:bot", **wanted)
    )
    names = [each["name"] for each in asked.result.get("registry_entries", [])]
    assert names == (["io.example/forecasts"] if searches else [])
    looked = await ended(
        here, await db_call(ask, Kind.SEARCH, agent=agent, actor="agent:bot", query="weather")
    )
    assert len(looked.result["registry_entries"]) == searches
    assert ("were not searched" in looked.result["searched"]) != searches
    by_name = {**wanted, "registry_name": "io.example/mail"}
    named = await ended(
        here, await db_call(ask, Kind.ADD, agent=agent, actor="agent:bot", **by_name)
    )
    assert [each["name"] for each in named.result["registry_entries"]] == ["io.example/mail"]
    person = await ended(here, await db_call(ask, Kind.SEARCH, query="weather"))
    assert len(person.result["registry_entries"]) == 1


async def test_one_that_is_named_is_the_only_one_proposed_and_an_unknown_one_is_an_error(
    manager: Any,
) -> None:
    await db_call(listed, "io.example/git")
    await db_call(listed, "io.example/git-hub")
    here = await manager()
    done = await ended(
        here, await db_call(ask, Kind.ADD, server="hub", registry_name="io.example/git-hub")
    )
    assert [each["name"] for each in done.result["registry_entries"]] == ["io.example/git-hub"]
    failed = await ended(
        here, await db_call(ask, Kind.ADD, server="hub", registry_name="io.example/none")
    )
    assert (failed.state, failed.result) == (State.FAILED, None)
    assert 'No registry of this site lists "io.example/none"' in failed.error


async def test_the_proposals_page_leads_to_the_form_that_applies_it(
    manager: Any, client: Any
) -> None:
    entry = await db_call(listed, "io.example/git")
    done = await ended(await manager(), await db_call(ask, Kind.ADD, server="git"))
    await db_call(_choose_on_the_page, client, entry, done.result["proposal"])


def _choose_on_the_page(client: Any, entry: RegistryEntry, key: int) -> None:
    client.force_login(User.objects.create_superuser("ann"))
    form = reverse("admin:subagents_proposal_choose", args=[key, entry.pk, 0])
    shown = client.get(reverse("admin:subagents_proposal_change", args=[key])).content.decode()
    assert form in shown
    assert 'value="git"' in client.get(form).content.decode()
    refused = client.post(form, {"slug": "git", "input-0": "t", "shown": "of before"})
    assert "was changed after you opened it" in refused.content.decode()
    assert (Proposal.objects.get(pk=key).state, Server.objects.count()) == ("waiting", 0)
    client.post(form, {"slug": "git", "input-0": "t", "shown": entry.sha256})
    assert (Proposal.objects.get(pk=key).state, Server.objects.get().slug) == ("applied", "git")
    assert client.get(form).status_code == 302, "it is decided"


@pytest.mark.django_db
def test_a_program_chooses_over_rest(client: Any) -> None:
    entry = listed("io.example/git")
    stranger = listed("io.example/other")
    request = ask(Kind.ADD, server="team-git")
    MaintenanceRequest.objects.update(
        result={"registry_entries": [{"name": entry.name, "registry": "official", "id": 0}]}
    )
    key = Proposal.objects.create(request=request, fields={}, created_at=timezone.now()).pk
    client.force_login(User.objects.create_superuser("ann"))
    choice = {"id": entry.pk, "values": {"address team": "t"}, "sha256": entry.sha256}
    path = f"/api/v1/maintenance/proposals/{key}/apply"
    assert client.post(path, {"entry": choice | {"id": 999}}, "application/json").status_code == 404
    other = client.post(path, {"entry": choice | {"id": stranger.pk}}, "application/json")
    assert (
        other.status_code,
        "does not contain this registry entry" in other.json()["message"],
    ) == (
        409,
        True,
    )
    Server.objects.create(slug="taken")
    taken = client.post(path, {"entry": choice | {"slug": "taken"}}, "application/json")
    assert (
        taken.status_code,
        "The existing record is at /api/v1/servers/taken." in taken.json()["remedy"],
    ) == (
        409,
        True,
    ), taken.content
    answer = client.post(path, {"entry": choice}, "application/json")
    assert (answer.status_code, answer.json()["state"]) == (200, "applied"), answer.content
    assert Server.objects.get(slug="team-git").url == "https://git.example/t", (
        "called as it was asked for"
    )
