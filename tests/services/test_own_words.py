"""An operator's own name and description of a tool: hosts see them, the approved text and what
grants mean stay."""

from __future__ import annotations

import pytest
from django.db import DatabaseError
from django.utils import timezone

from mcpregistry.calls.catalog import Catalogue, build_current_catalogue
from mcpregistry.domain.definitions.naming import map_offer_names
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy.explain import explain_decision

pytestmark = pytest.mark.django_db
ACTOR = "test"
LISTED = [
    {"name": name, "description": f"A long text about {name}.", "inputSchema": {"type": "object"}}
    for name in ("pay", "look")
]


@pytest.fixture
def pay() -> Tool:
    server = Server.objects.create(slug="bank", command=["x"], lifecycle="active")
    observe.observe(server=server, listed=LISTED)
    decisions.approve_waiting(server=server, actor=ACTOR)
    grants.grant_access(
        agent=agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR), server=server, actor=ACTOR
    )
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    return Tool.objects.get(name="pay")


def seen() -> Catalogue:
    found = build_current_catalogue(Agent.objects.get(), Endpoint.objects.get(), now=timezone.now())
    assert found is not None
    return found


def test_hosts_see_the_own_words_and_the_pin_stays(pay: Tool) -> None:
    before = seen()
    pay.own_name = "transfer"
    pay.own_description = "Pays."
    decisions.save_tool(tool=pay, actor=ACTOR)
    after = seen()
    assert {*before.entries} == {"bank__look", "bank__pay"}
    assert {*after.entries} == {"bank__look", "bank__transfer"}
    entry = after.entries["bank__transfer"]
    assert (entry.listing["name"], entry.listing["description"]) == ("bank__transfer", "Pays.")
    assert (entry.offer.tool.name, entry.offer.tool.definition_hash) == (
        "pay",
        before.entries["bank__pay"].offer.tool.definition_hash,
    )
    assert after.version != before.version
    told = explain_decision(
        agent=Agent.objects.get(), endpoint=Endpoint.objects.get(), tool=pay, now=timezone.now()
    )
    assert (told.listed, told.name) == (True, "bank__transfer")
    pay.own_description = "Pays now."
    decisions.save_tool(tool=pay, actor=ACTOR)
    assert seen().version != after.version  # so hosts are told of another text, too
    observe.observe(server=pay.server, listed=[LISTED[1], LISTED[0] | {"description": "Another."}])
    assert {*seen().entries} == {"bank__look"}  # what the server says decides, whatever we call it


@pytest.mark.parametrize("name", ["look", "a b", "x" * 65])
def test_a_name_that_is_anothers_or_no_name_is_refused(pay: Tool, name: str) -> None:
    pay.own_name = name
    with pytest.raises(ConfigInvalid):
        decisions.save_tool(tool=pay, actor=ACTOR)
    assert Tool.objects.get(pk=pay.pk).own_name == ""


def test_a_new_tool_does_not_take_over_the_name_that_hosts_know_another_by(pay: Tool) -> None:
    pay.own_name = "transfer"
    decisions.save_tool(tool=pay, actor=ACTOR)
    listed = [*LISTED, LISTED[0] | {"name": "transfer"}]
    observe.observe(server=pay.server, listed=listed)
    with pytest.raises(Conflict, match="'transfer' for another tool: bank::pay"):
        decisions.approve_waiting(server=pay.server, actor=ACTOR)
    catalogue = seen()
    assert catalogue.find("bank__transfer") is catalogue.find("bank::pay")
    pay.own_name = ""
    decisions.save_tool(tool=pay, actor=ACTOR)
    assert decisions.approve_waiting(server=pay.server, actor=ACTOR) == 1
    assert {*seen().entries} == {"bank__look", "bank__pay", "bank__transfer"}


def test_a_plain_name_that_was_given_to_another_servers_tool_finds_neither(pay: Tool) -> None:
    pay.own_name = "transfer"
    decisions.save_tool(tool=pay, actor=ACTOR)
    other = Server.objects.create(slug="post", command=["x"], lifecycle="active")
    observe.observe(server=other, listed=[LISTED[0] | {"name": "transfer"}])
    decisions.approve_waiting(server=other, actor=ACTOR)
    grants.grant_access(agent=Agent.objects.get(), server=other, actor=ACTOR)
    catalogue = seen()
    assert catalogue.find("transfer") is None
    assert catalogue.find("post::transfer") is catalogue.entries["post__transfer"]
    assert catalogue.find("pay") is catalogue.entries["bank__transfer"]


def test_an_own_name_and_its_entry_in_the_audit_log_are_saved_together(
    pay: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise DatabaseError("no room")

    monkeypatch.setattr(decisions.audit, "record_entry", broken)
    pay.own_name = "transfer"
    with pytest.raises(DatabaseError):
        decisions.save_tool(tool=pay, actor=ACTOR)
    assert Tool.objects.get(pk=pay.pk).own_name == ""


def test_no_tool_takes_anothers_name() -> None:
    offers = [
        ("bank", "pay", "look"),
        ("bank", "look", ""),
        ("bank", "a", "same"),
        ("bank", "b", "same"),
        ("git", "c", "see"),
    ]
    assert map_offer_names("tool", offers, "double") == {
        ("bank", "pay"): "bank__pay",
        ("bank", "look"): "bank__look",
        ("bank", "a"): "bank__a",
        ("bank", "b"): "bank__b",
        ("git", "c"): "git__see",
    }
    assert map_offer_names("resource", [("bank", "file:///a", "x")], "double") == {
        ("bank", "file:///a"): "file:///a"
    }
