"""Search over everything: each kind is found, by those who may see it, in few questions."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from controlplane.site_search import EACH
from mcpregistry.models import ApprovalRequest, Invocation, Server
from tests.admin.conftest import ClientOf, client_of, site  # noqa: F401  a site with calls
from tests.fakes.held import hold
from tests.fakes.seed import Site, govern
from tests.services.test_call_search import made

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]
PART = "/search/hits/"


def kinds(client: Client, question: str) -> dict[str, list[str]]:
    answer = client.get(PART, {"q": question})
    assert answer.status_code == 200
    return {group.kind: [hit.title for hit in group.hits] for group in answer.context["groups"]}


@pytest.mark.both_databases
def test_each_kind_is_found_by_its_words(client_of: ClientOf, site: Site) -> None:  # noqa: F811
    govern(site)
    client = client_of("viewer")
    assert "git" in kinds(client, "git")["Servers"]
    assert kinds(client, "git_push")["Tools, prompts, resources"] == ["git_push"]
    assert "local" in kinds(client, "loc")["Agents"]
    assert "Held calls" in kinds(client, "held calls")["Pages"]
    assert kinds(client, "sandbox")["Docs"]
    assert kinds(client, "number 7")["Calls"]
    assert kinds(client, "xyzzyqq plugh") == {}
    assert kinds(client, "") == {}


@pytest.mark.both_databases
def test_calls_and_approvals_are_found_by_the_beginning_of_their_id(
    client_of: ClientOf,  # noqa: F811 -- it is the fixture
    site: Site,  # noqa: F811
) -> None:
    held = ApprovalRequest.objects.get(pk=hold().pk)
    client = client_of("viewer")
    assert kinds(client, held.pk) == {"Approvals": [held.pk]}
    assert kinds(client, held.call_id[:20])["Calls"] == [held.call_id]


def test_nobody_finds_what_they_may_not_see(client_of: ClientOf, site: Site) -> None:  # noqa: F811
    site.people["viewer"].groups.clear()
    client = client_of("viewer")
    call = Invocation.objects.first()
    assert call is not None
    assert set(kinds(client, "git")) <= {"Docs"}
    assert kinds(client, call.pk) == {}
    assert "Calls" not in kinds(client, "number")
    assert Client().get(PART, {"q": "git"}).status_code == 302


def test_it_asks_few_questions_and_works_without_scripts(client_of: ClientOf, site: Site) -> None:  # noqa: F811
    client = client_of("root")
    with CaptureQueriesContext(connection) as asked:
        html = client.get(reverse("find"), {"q": "git"}).content.decode()
    assert len(asked) <= 20
    assert 'href="/admin/mcpregistry/server/' in html
    assert 'id="find"' in client.get("/admin/").content.decode()


def test_what_looks_like_an_id_is_looked_for_as_a_word_too(client_of: ClientOf, site: Site) -> None:  # noqa: F811
    call = made(arguments='{"commit": "deadbeefcafe"}')
    assert kinds(client_of("viewer"), "deadbeefcafe") == {"Calls": ["git__log"]}
    assert kinds(client_of("viewer"), call) == {"Calls": [call]}


def test_the_way_to_the_rest_has_the_same_words(client_of: ClientOf, site: Site) -> None:  # noqa: F811
    for number in range(EACH + 1):
        Server.objects.create(slug=f"lab-{number}", name="R&D #12", command=["x"])
        made(arguments='{"about": "R&D #12"}')
    groups = client_of("viewer").get(PART, {"q": "R&D #12"}).context["groups"]
    ways = {group.kind: parse_qs(urlsplit(group.all_at).query) for group in groups if group.all_at}
    assert ways == {kind: {"q": ["R&D #12"]} for kind in ("Servers", "Calls", "Docs")}
