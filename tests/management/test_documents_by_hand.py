"""A document of the whole site that people write or change by hand: said otherwise is not said
anew."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.configuration import document_import
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats import text
from mcpregistry.models import AuditEntry, Grant, Server, SlackIdentity, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import lifecycle
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.services import experts, providers
from tests.api.conftest import new_agent, new_server, new_tool
from tests.controlplane.test_configuration import exported, people, rows, saved

__all__ = ["people"]
pytestmark = pytest.mark.usefixtures("live_db")
ACTOR = "user:test"
HEAD: dict[str, Any] = {"slipsnisse": "site", "version": 1}
ECHO: dict[str, Any] = {"command": ["/bin/echo"]}
MODELS = {"providers": {"p": {"kind": "compatible", "base_url": "https://llm.example.org/v1"}}}
GRANT = {"agent": "a", "server": "s"}
GRANTED = {"agents": {"a": {}}, "servers": {"s": ECHO}}


@pytest.mark.exhaustive(one_in=20)
@pytest.mark.parametrize(
    "said",
    [
        {"agents": {"a": {"enabled": True, "calls_per_minute": None, "name": ""}}},
        {
            "servers": {
                "s": ECHO
                | {"enabled": True, "confirmed": False, "request_timeout": 5, "env": {}, "url": ""}
            }
        },
        GRANTED | {"grants": [GRANT | {"expires_at": "2036-11-21T12:00:00Z", "argument_pins": {}}]},
        GRANTED
        | {
            "grants": [
                GRANT | {"expires_at": "2036-11-21 12:00:00+02:00"},
                GRANT | {"note": "", "tool": None},
            ]
        },
        GRANTED | {"grants": [GRANT | {"expires_at": "2036-11-21T12:00:00"}]},
        MODELS
        | {"models": {"p/m": {"input_price": 0.1, "output_price": 2, "prices_from": "2026-01-01"}}},
        MODELS
        | {
            "models": {"p/m": {"input_price": "0.10"}},
            "experts": {"e": {"description": "d", "models": ["p/m"]}},
        },
        {
            "roles": {
                "night": {"permissions": ["mcpregistry.view_server", "mcpregistry.view_agent"]},
                "day": {},
            }
        },
        {
            "servers": {"b": ECHO, "a": ECHO},
            "channels": {
                "c": {
                    "kind": "email",
                    "addresses": ["a@example.org"],
                    "servers": ["b", "a"],
                    "rules": [],
                }
            },
        },
        {
            "credentials": {"c": {"scope": [], "value": ""}},
            "configuration": {"keep_calls_days": 365},
        },
    ],
    ids=lambda said: "+".join(said),
)
@pytest.mark.parametrize("confirm", [True, False])
def test_a_file_that_says_it_otherwise_changes_nothing_the_second_time(
    said: dict[str, Any], confirm: bool
):
    document_import.take(HEAD | said, {}, confirm=confirm)
    before = rows()
    entries = AuditEntry.objects.count()
    again = document_import.take(HEAD | said, {}, confirm=confirm)
    assert (again.made, again.changed) == ([], [])
    assert (rows(), AuditEntry.objects.count()) == (before, entries)


def test_what_a_file_does_not_confirm_it_does_not_take_back():
    server = saved("s", command=["/bin/echo"])
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    tool = new_tool(server, "t")
    said = {
        "servers": {"s": ECHO},
        "tools": {"s::t": {"definition": tool.pinned.data, "approved": False}},
    }
    for confirm in (True, False):
        assert document_import.take(HEAD | said, {}, confirm=confirm).changed == []
    server.refresh_from_db()
    assert server.launch_confirmed


@pytest.mark.exhaustive
def test_a_definition_that_waits_since_the_first_import_is_no_change_at_the_second():
    server = new_server("s")
    tool = new_tool(server, "t")
    body = tool.pinned.data | {"description": "another"}
    file = HEAD | {"servers": {"s": text.load(exported()[0].encode(), "")["servers"]["s"]}}
    file |= {"tools": {"s::t": {"definition": body, "approved": True}}}
    assert document_import.take(file, {}, confirm=False).changed == ["tools/s::t"]
    assert document_import.take(file, {}, confirm=False).changed == []
    assert Tool.objects.get().pinned_id == tool.pinned_id
    assert document_import.take(file, {}, confirm=True).changed == ["tools/s::t"]
    assert Tool.objects.get().pinned.data == body


@pytest.mark.parametrize("number", ["1e50", 1e50, "nan", 10**40])
def test_a_price_that_is_none_is_refused_with_its_place(number: Any):
    with pytest.raises(ConfigInvalid, match="models/p/m: "):
        document_import.take(
            HEAD | MODELS | {"models": {"p/m": {"input_price": number}}}, {}, confirm=True
        )


def model(name: str, **columns: Any) -> LanguageModel:
    """Of the one provider of this site."""
    here = Provider.objects.first() or Provider(
        slug="p", kind="compatible", base_url="https://llm.example.org/v1"
    )
    provider = providers.save_provider(provider=here, actor=ACTOR)
    return providers.save_model(
        model=LanguageModel(provider=provider, name=name, **columns), actor=ACTOR
    )


def restored(file: str, secrets: dict[str, Any]) -> None:
    """The site as the file says, and once more."""
    document = text.load(file.encode(), "site.yaml")
    for _ in range(2):
        report = document_import.take(document, secrets, confirm=True)
    assert (report.made, report.changed) == ([], [])
    assert exported() == (file, secrets)


def test_the_mark_of_the_callers_model_goes_back_to_the_model_that_the_file_says():
    first = model("a", compared=True)
    second = model("b")
    file, secrets = exported()
    for each, marked in ((first, False), (second, True)):
        each.compared = marked
        providers.save_model(model=each, actor=ACTOR)
    restored(file, secrets)


@pytest.mark.exhaustive
def test_experts_that_called_each_other_the_other_way_round_do_so_again():
    one, two = (
        experts.save_expert(
            expert=ExpertTool(name=name, description="d"), targets=[model(name)], actor=ACTOR
        )
        for name in ("one", "two")
    )
    ann = new_agent("ann")
    experts.offer(expert=one, agents=[two.agent], endpoints=[], actor=ACTOR)
    experts.offer(expert=two, agents=[ann], endpoints=[], actor=ACTOR)
    file, secrets = exported()
    experts.offer(expert=one, agents=[ann], endpoints=[], actor=ACTOR)
    experts.offer(expert=two, agents=[one.agent], endpoints=[], actor=ACTOR)
    restored(file, secrets)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_a_site_comes_without_the_secrets_in_its_addresses_and_gets_them_later(
    people: Any, transport: str
):
    scheme = {"http": "https", "websocket": "wss"}[transport]
    server = saved(
        "s", transport=transport, url=f"{scheme}://x.example.org/mcp?api_key=hunter2hunter2"
    )
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    tool = new_tool(server, "t")
    grants.grant_access(agent=new_agent("ann"), tool=tool, actor=ACTOR)
    own = Provider(
        slug="own", kind="compatible", base_url="https://llm.example.org/v1?token=hunter2hunter2"
    )
    providers.save_provider(provider=own, actor=ACTOR, key="k3y")
    file, secrets = exported()
    people()
    document = text.load(file.encode(), "site.yaml")
    report = document_import.take(document, {}, confirm=True)
    assert "servers/s: enter the missing secrets: servers/s/url." in report.notes
    assert Server.objects.get().url == f"{scheme}://enter-the-address.invalid/"
    assert not Server.objects.get().launch_confirmed
    assert Provider.objects.get().draft_problem() is not None
    again = document_import.take(document, {}, confirm=True)
    assert (again.made, again.changed) == ([], [])
    restored(file, secrets)


def test_an_address_that_somebody_entered_stays_while_nobody_gives_the_files_own():
    saved("s", transport="http", url="https://x.example.org/mcp?api_key=hunter2hunter2", name="one")
    file, _ = exported()
    server = Server.objects.get()
    server.url = "https://y.example.org/mcp"
    server.name = "two"
    lifecycle.save_server(server=server, actor=ACTOR)
    assert document_import.take(text.load(file.encode(), ""), {}, confirm=True).changed == [
        "servers/s"
    ]
    server.refresh_from_db()
    assert (server.url, server.name) == ("https://y.example.org/mcp", "one")
    assert document_import.take(text.load(file.encode(), ""), {}, confirm=True).changed == []


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "columns",
    [
        {"note": "a\0b"},
        {"argument_pins": {"a": "\ud800"}},
        {"argument_pins": {"\0": 1}},
        {"argument_pins": {"a": deep(61)}},
    ],
    ids=["NUL", "half", "key", "deep"],
)
def test_what_no_document_could_hold_is_not_saved(columns: dict[str, Any]):
    grant = Grant(agent=new_agent("ann"), server=new_server("s"), **columns)
    with pytest.raises(ConfigInvalid, match="NUL character, an incomplete Unicode character"):
        grants.save_grant(grant=grant, actor=ACTOR)
    with pytest.raises(
        ConfigInvalid, match="the field description cannot be saved: it contains a NUL character"
    ):
        saved("t", command=["/bin/echo"], description="a\0b")


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("levels", range(54, 62))
def test_values_as_deep_as_the_site_takes_them_travel(people: Any, levels: int):
    server = new_server("s")
    agent = new_agent("ann")
    grants.save_grant(
        grant=Grant(agent=agent, server=server, argument_pins={"a": deep(min(levels, 60))}),
        actor=ACTOR,
    )
    schema = {"type": "object", "properties": {"q": {"default": deep(levels)}}}
    observe.observe(
        server=server, listed=[{"name": "t", "description": "d", "inputSchema": schema}]
    )
    decisions.approve(definition=server.tools.get().latest, actor=ACTOR)
    file, secrets = exported()
    before = rows()
    people()
    restored(file, secrets)
    assert rows() == before


@pytest.mark.parametrize(
    ("team", "member"), [("T/1", "U1"), ("T1", "U/1"), ("T1", "Ü1"), ("T1", "U 1")]
)
def test_a_slack_person_has_ids_of_slack(team: str, member: str):
    ann = User.objects.create(username="zed")
    with pytest.raises(ConfigInvalid, match="Use the ID that Slack shows"):
        outbox.save_slack_identity(
            identity=SlackIdentity(team=team, member=member, user=ann), actor=ACTOR
        )
