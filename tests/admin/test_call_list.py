"""The list of calls: found by words, put in order, kept under names, followed live."""

from __future__ import annotations

import pytest
from django.urls import reverse

from mcpregistry.models import Invocation, SavedFilter
from mcpregistry.services.records import saved_filters
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]
LIST, TAIL, FILTERS = (
    f"/admin/mcpregistry/invocation/{part}" for part in ("", "tail/", "filters/")
)


def test_calls_are_found_by_arguments_and_results(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    found = client.get(f"{LIST}?q=number+7").context["cl"].result_list
    assert {call.pk for call in found} == {f"{7:032x}"}
    assert not client.get(f"{LIST}?q=mars").context["cl"].result_list


@pytest.mark.parametrize(("column", "name"), [(4, "duration_ms"), (5, "result_bytes")])
def test_calls_are_put_in_order_by_what_they_took_and_brought(
    client_of: ClientOf, site: Site, column: int, name: str
) -> None:
    Invocation.objects.filter(pk=f"{3:032x}").update(**{name: 10_000_000})
    found = client_of("viewer").get(f"{LIST}?o=-{column}").context["cl"].result_list
    assert found[0].pk == f"{3:032x}"


def test_filters_are_kept_shared_and_removed_by_their_owner(
    client_of: ClientOf, site: Site
) -> None:
    viewer = client_of("viewer")
    operator = client_of("operator")
    viewer.post(
        FILTERS, {"name": " Failed  here ", "query": "server=git&p=3&evil=1", "shared": "yes"}
    )
    viewer.post(FILTERS, {"name": "Mine", "query": "agent=ci"})
    kept = SavedFilter.objects.get(name="Failed here")
    assert (kept.query, kept.shared) == ("server=git", True)
    html = operator.get(LIST).content.decode()
    assert "Failed here" in html
    assert "Mine" not in html
    operator.post(FILTERS, {"remove": str(kept.pk)})
    assert SavedFilter.objects.filter(pk=kept.pk).exists()
    viewer.post(FILTERS, {"remove": str(kept.pk)})
    assert not SavedFilter.objects.filter(pk=kept.pk).exists()
    assert viewer.get(FILTERS).status_code == 405


def test_a_kept_view_that_usage_links_to_shows_the_same_calls(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("viewer")
    usage = client.get("/usage/?by=tool&period=90d&agent=ci&endpoint=default").context["rows"]
    linked = next(links["calls"].partition("?")[2] for _, links, *_ in usage if links["calls"])
    assert "tool_name=" in linked
    client.post(FILTERS, {"name": "Linked", "query": linked})
    kept = SavedFilter.objects.get(name="Linked").query
    shown, again = (
        client.get(f"{LIST}?{query}").context["cl"].result_list for query in (linked, kept)
    )
    assert list(shown) == list(again)
    assert shown


def test_the_tail_tells_only_what_has_changed(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    first = client.get(f"{TAIL}?server=git")
    assert (first.status_code, "result_list" in first.content.decode()) == (200, True)
    have = first["X-Version"]
    assert client.get(f"{TAIL}?server=git&have={have}").status_code == 204
    call = Invocation.objects.filter(server_slug="git").latest("received_at")
    Invocation.objects.create(
        id="f" * 32,
        state="dispatched",
        received_at=call.received_at,
        server_slug="git",
        exposed_name="git__new",
        tool_name="new",
        origin="http",
        agent_slug="ci",
        writer="w",
    )
    assert "git__new" in client.get(f"{TAIL}?server=git&have={have}").content.decode()


def test_who_sees_no_calls_follows_none(client_of: ClientOf, site: Site) -> None:
    person = site.people["viewer"]
    person.groups.clear()
    client = client_of("viewer")
    assert {client.get(TAIL).status_code, client.post(FILTERS, {"name": "x"}).status_code} == {403}
    assert reverse("admin:mcpregistry_invocation_tail") == TAIL


def test_nobody_crowds_out_a_persons_own_filters(
    client_of: ClientOf, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_filters, "_SHOWN", 2)
    viewer = client_of("viewer")
    operator = client_of("operator")
    for name in ("a", "b"):
        viewer.post(FILTERS, {"name": name, "query": "server=git", "shared": "yes"})
    operator.post(FILTERS, {"name": "mine", "query": "agent=ci"})
    assert [each.name for each, _ in operator.get(LIST).context["saved"]] == ["mine", "a"]
