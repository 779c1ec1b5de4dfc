"""The pages of conversations: found, begun by a form, narrowed, ended, and their calls beside
them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import Conversation, Invocation, Message
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.conversations import messages
from mcpregistry.services.upkeep import retention
from tests.admin.conftest import ClientOf
from tests.fakes.seed import CONVERSATION, Site

pytestmark = [pytest.mark.usefixtures("contexts"), pytest.mark.one_database]

LIST = "/admin/mcpregistry/conversation/"


def page(what: str, *args: str) -> str:
    return reverse(f"admin:mcpregistry_conversation_{what}", args=args)


@pytest.mark.exhaustive(one_in=8)
@pytest.mark.parametrize(
    "query", ["q=release", f"q={CONVERSATION}", "q=local", "state__exact=open"]
)
def test_a_conversation_is_found(client_of: ClientOf, site: Site, query: str) -> None:
    Conversation.objects.create(agent=site.agents["ci"], title="Other", state="ended")
    answer = client_of("viewer").get(f"{LIST}?{query}")
    assert [row.pk for row in answer.context["cl"].result_list] == [CONVERSATION]


def test_its_page_shows_its_calls_and_a_calls_page_leads_back(
    client_of: ClientOf, site: Site
) -> None:
    viewer = client_of("viewer")
    call = Invocation.objects.filter(conversation=CONVERSATION)[0]
    html = viewer.get(page("change", CONVERSATION)).content.decode()
    for told in (
        call.pk,
        "Release notes",
        f"Slipsnisse-Conversation: {CONVERSATION}",
        f"?conversation={CONVERSATION}",
    ):
        assert told in html, told
    html = viewer.get(
        reverse("admin:mcpregistry_invocation_change", args=[call.pk])
    ).content.decode()
    assert page("change", CONVERSATION) in html


def test_an_operator_begins_narrows_and_ends_one(client_of: ClientOf, site: Site) -> None:
    operator = client_of("operator")
    given = {"agent": site.agents["ci"].pk, "title": "Nightly", "servers": "git\ngithub"}
    refused = operator.post(page("add"), given | {"servers": "nowhere"})
    assert "No server named &quot;nowhere&quot;" in refused.content.decode()
    assert operator.post(page("add"), given).status_code == 302
    row = Conversation.objects.get(title="Nightly")
    assert (row.agent.slug, row.servers, row.created_by.startswith("user:")) == (
        "ci",
        ["git", "github"],
        True,
    )
    assert (
        operator.post(page("change", row.pk), {"title": "Nightly", "servers": ""}).status_code
        == 302
    )
    operator.post(page("verb", row.pk, "end"))
    row.refresh_from_db()
    assert (row.servers, row.state) == ([], "ended")
    html = operator.get(page("change", row.pk)).content.decode()
    assert "Slipsnisse-Conversation" not in html
    assert operator.post(page("change", row.pk), {"title": "x"}).status_code == 403


def test_retention_forgets_one_that_nobody_used_and_its_calls_keep_its_name(
    client_of: ClientOf, site: Site
) -> None:
    old = timezone.now() - timedelta(days=400)
    Conversation.objects.filter(pk=CONVERSATION).update(last_used_at=old)
    Conversation.objects.create(pk="d" * 32, agent=site.agents["ci"])
    assert retention.prune(timezone.now())["conversations"] == 1
    assert list(Conversation.objects.values_list("pk", flat=True)) == ["d" * 32]
    call = Invocation.objects.filter(conversation=CONVERSATION)[0]
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_invocation_change", args=[call.pk]))
        .content.decode()
    )
    assert f"{CONVERSATION}</span> <span" in html
    assert "no longer stored" in html


def live(client: Any) -> Any:
    return client.get(f"{LIST}{CONVERSATION}/live/")


def test_a_person_writes_to_the_agent_and_sees_what_it_says(
    client_of: ClientOf, site: Site
) -> None:
    operator = client_of("operator")
    row = Conversation.objects.get(pk=CONVERSATION)
    assert operator.post(f"{LIST}{CONVERSATION}/say/", {"text": "<b>Hello</b>"}).status_code == 302
    messages.add_message(
        conversation=row, kind=MessageKind.THOUGHT, text="Hm.", author="agent:local"
    )
    messages.add_message(
        conversation=row, kind=MessageKind.OUT, text="Good day", author="agent:local"
    )
    part = live(client_of("viewer"))
    html = part.content.decode()
    assert part.status_code == 200
    assert [html.index(told) for told in ("&lt;b&gt;Hello", "Hm.", "Good day")] == sorted(
        html.index(told) for told in ("&lt;b&gt;Hello", "Hm.", "Good day")
    )
    assert Message.objects.earliest("id").author_id == site.people["operator"].pk
    assert 'name="text"' in operator.get(page("change", CONVERSATION)).content.decode()
    assert (
        'name="text"' not in client_of("viewer").get(page("change", CONVERSATION)).content.decode()
    )
    assert client_of("viewer").post(f"{LIST}{CONVERSATION}/say/", {"text": "x"}).status_code == 403
    assert operator.get(f"{LIST}{CONVERSATION}/say/").status_code == 405


def test_nothing_is_written_in_one_that_has_ended_and_its_page_asks_no_more(
    client_of: ClientOf, site: Site
) -> None:
    operator = client_of("operator")
    operator.post(page("verb", CONVERSATION, "end"))
    answer = operator.post(f"{LIST}{CONVERSATION}/say/", {"text": "x"}, follow=True)
    assert "has ended. Start another conversation." in answer.content.decode()
    assert "data-live" not in answer.content.decode()
    assert live(operator).status_code == 286
    assert Message.objects.count() == 0


def test_retention_erases_texts_with_payloads(client_of: ClientOf, site: Site) -> None:
    row = Conversation.objects.get(pk=CONVERSATION)
    old = timezone.now() - timedelta(days=40)
    for text in ("old words", "new words"):
        messages.add_message(
            conversation=row, kind=MessageKind.OUT, text=text, author="agent:local"
        )
    Message.objects.filter(text="old words").update(created_at=old)
    assert retention.prune(timezone.now())["messages"] == 1
    html = client_of("viewer").get(page("change", CONVERSATION)).content.decode()
    assert (
        "old words" in html,
        "new words" in html,
        "Retention has erased this message." in html,
    ) == (
        False,
        True,
        True,
    )
