"""Tools: what waits, what changed, and the decision about it."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import AuditEntry, Definition, Tool, ToolUsage
from mcpregistry.services.definitions import decisions, observe
from tests.admin.conftest import ClientOf
from tests.admin.pressing import chosen, pressed
from tests.fakes.seed import ACTOR, Site, tool

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]

LIST = "/admin/mcpregistry/tool/"


def named(name: str) -> Tool:
    return Tool.objects.select_related("server", "latest", "pinned").get(name=name)


def change(found: Tool) -> str:
    return reverse("admin:mcpregistry_tool_change", args=[found.pk])


def verb(found: Tool, name: str) -> str:
    return reverse("admin:mcpregistry_tool_verb", args=[found.pk, name])


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize(
    ("status", "names"),
    [
        ("waiting", {"create_issue", "delete_repository"}),
        ("quarantined", {"delete_repository"}),
        ("changed", {"create_issue"}),
        ("rejected", {"git_push"}),
        ("gone", {"convert_time"}),
        ("disabled", {"git_log"}),
        ("nonsense", None),
    ],
)
@pytest.mark.both_databases
def test_tools_are_filtered_by_status(
    client_of: ClientOf, site: Site, status: str, names: set[str] | None
) -> None:
    push = named("git_push").latest
    assert push is not None
    decisions.reject(definition=push, actor=ACTOR)
    log = named("git_log")
    log.enabled = False
    decisions.save_tool(tool=log, actor=ACTOR)
    observe.observe(
        server=site.servers["time"],
        listed=[tool("get_current_time", "Get the current time in a time zone.")],
    )
    answer = client_of("viewer").get(f"{LIST}?status={status}")
    shown = {found.name for found in answer.context["cl"].result_list}
    assert shown == (
        names if names is not None else set(Tool.offers.values_list("name", flat=True))
    )


@pytest.mark.both_databases
def test_slow_tools_are_found_and_their_page_says_what_may_be_done(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("viewer")
    (slow, some, quick) = list(Tool.objects.order_by("pk")[:3])
    for row, calls, median, p95 in (
        (slow, 10, 6.0, 9.0),
        (some, 9, 6.0, 9.0),
        (quick, 200, 0.1, 4.9),
    ):
        ToolUsage.objects.create(
            tool=row,
            calls=calls,
            seconds=1,
            length=1,
            median=median,
            p95=p95,
            counted_at=timezone.now(),
        )
    listed = client.get(reverse("admin:mcpregistry_tool_changelist"), {"speed": "slow"})
    assert [row.pk for row in listed.context["cl"].result_list] == [slow.pk]
    pages = [
        client.get(reverse("admin:mcpregistry_tool_change", args=[row.pk])).content.decode()
        for row in (slow, some, quick)
    ]
    assert (
        "slow: half of the calls took up to 6.00 s, and 95 % took up to 9.00 s (calls counted: 10). Most calls are slow"
        in pages[0]
    )
    assert all("slow: half" not in page and "calls took up to" in page for page in pages[1:])


def test_the_status_filter_agrees_with_the_model(site: Site) -> None:
    from mcpregistry.queries.definitions import with_status

    for status in ("gone", "approved", "rejected", "changed", "quarantined"):
        every = Tool.objects.select_related("latest")
        assert {t.pk for t in with_status(Tool.objects.all(), status)} == {
            t.pk for t in every if t.status == status
        }


def test_a_changed_definition_is_shown_beside_the_approved_one(
    client_of: ClientOf, site: Site
) -> None:
    html = client_of("viewer").get(change(named("create_issue"))).content.decode()
    assert "The server has changed this tool since it was approved" in html
    assert "<ins>\nAlways add the label &#x27;triage&#x27;.</ins>" in html
    assert "destructiveHint" in html


def test_approving_pins_what_was_shown(client_of: ClientOf, site: Site) -> None:
    found = named("create_issue")
    assert found.latest is not None
    client_of("approver").post(verb(found, "approve"), {"shown": found.latest.hash})
    after = named("create_issue")
    assert after.status == "approved"
    assert after.pinned is not None
    assert after.pinned.decided_by == site.people["approver"]
    assert AuditEntry.objects.filter(kind="definition.approved", actor="user:approver").exists()


def test_a_definition_that_changed_after_the_page_was_shown_is_not_approved(
    client_of: ClientOf, site: Site
) -> None:
    shown = named("create_issue").latest
    assert shown is not None
    observe.observe(
        server=site.servers["github"], listed=[tool("create_issue", "Now something else entirely")]
    )
    answer = client_of("approver").post(
        verb(named("create_issue"), "approve"), {"shown": shown.hash}, follow=True
    )
    assert "changed the definition since you opened this page" in answer.content.decode()
    assert named("create_issue").status == "changed"


def test_rejecting_a_new_tool_ends_the_waiting(client_of: ClientOf, site: Site) -> None:
    client_of("approver").post(verb(named("delete_repository"), "reject"))
    assert named("delete_repository").status == "rejected"


def test_several_are_decided_from_the_list(client_of: ClientOf, site: Site) -> None:
    waiting = [found.pk for found in Tool.objects.waiting()]
    client = client_of("approver")
    answer = chosen(client, LIST, "approve_selected", waiting)
    assert "2 tools updated" in answer.content.decode()
    assert not Tool.objects.waiting().exists()


def test_switching_a_tool_off_by_button_and_by_form(client_of: ClientOf, site: Site) -> None:
    client = client_of("operator")
    found = named("git_commit")
    pressed(client, found, "disable")
    assert not named("git_commit").enabled
    client.post(change(found), {"enabled": "on", "idempotent": "on"})
    assert (named("git_commit").enabled, named("git_commit").idempotent) == (True, True)
    assert (
        AuditEntry.objects.filter(kind="tool.changed", subject="tool:git::git_commit").count() == 2
    )


@pytest.mark.both_databases
def test_the_sidebar_counts_what_waits(client_of: ClientOf, site: Site) -> None:
    from controlplane.navigation import waiting

    assert waiting(client_of("viewer").get(LIST).wsgi_request).definitions == 2
    for found in Tool.objects.waiting():
        assert found.latest is not None
        decisions.approve(definition=found.latest, actor=ACTOR)
    assert waiting(client_of("viewer").get(LIST).wsgi_request).definitions == 0


def test_a_definition_can_be_read_by_itself(client_of: ClientOf, site: Site) -> None:
    definition = Definition.objects.filter(tool__name="git_diff").get()
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_definition_change", args=[definition.pk]))
        .content.decode()
    )
    assert "Show changes between commits." in html
    assert definition.hash in html
