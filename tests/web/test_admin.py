"""The admin in a real browser: logging in, confirming a launch, secrets, and hostile texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.urls import reverse
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.models import AuditEntry, Channel, Conversation, Invocation, Server
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.conversations import messages
from mcpregistry.services.servers import lifecycle
from tests.fakes.hostile import first_hostile, poison
from tests.fakes.lived import populated
from tests.fakes.seed import ACTOR, CONVERSATION, PASSWORD, Site

pytestmark = [pytest.mark.web, pytest.mark.one_database]


@pytest.fixture
def site(live_db: None) -> Site:
    return populated(calls=60)


@pytest.fixture
def page(browser: Any, live_server: LiveServer) -> Iterator[Any]:
    """A fresh browser window; ``strays`` are requests to elsewhere, ``alarms`` dialogs and script
    errors."""
    window = browser.new_context(base_url=live_server.url).new_page()
    window.strays = []
    window.alarms = []
    window.on(
        "request",
        lambda r: (
            None if r.url.startswith((live_server.url, "data:")) else window.strays.append(r.url)
        ),
    )
    window.on("dialog", lambda dialog: (window.alarms.append(dialog.message), dialog.dismiss()))
    window.on("pageerror", lambda error: window.alarms.append(str(error)))
    yield window
    window.context.close()
    assert window.strays == []
    assert window.alarms == []


def log_in(page: Any, who: str) -> None:
    page.goto(reverse("admin:login"))
    page.fill("#id_username", who)
    page.fill("#id_password", PASSWORD)
    page.click("#login-form button[type=submit]")
    page.wait_for_url("**/admin/")


@pytest.mark.exhaustive
def test_logging_in_leads_to_the_overview(page: Any, site: Site) -> None:
    log_in(page, "viewer")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator("svg.sn-chart .sn-good")).to_have_count(24)
    expect(page.get_by_role("link", name="Definitions", exact=False).first).to_be_visible()


@pytest.mark.exhaustive
def test_a_wrong_password_is_refused(page: Any, site: Site) -> None:
    page.goto(reverse("admin:login"))
    page.fill("#id_username", "viewer")
    page.fill("#id_password", "wrong")
    page.click("#login-form button[type=submit]")
    expect(page.locator("body")).to_contain_text("correct username and password")


def test_a_server_is_added_confirmed_and_shown(page: Any, site: Site) -> None:
    log_in(page, "admin")
    page.goto(reverse("admin:mcpregistry_server_add"))
    page.fill("#id_slug", "fresh")
    page.fill("#id_command", "sh\n-c\necho 'two words'")
    page.fill("#id_env", "API_KEY=canary-value")
    page.click("button[name=_continue]")
    page.get_by_role("link", name="Confirm launch").click()
    expect(page.locator("#words li code")).to_have_text(["sh", "-c", "echo 'two words'"])
    expect(page.locator("main, #content").first).to_contain_text("API_KEY")
    assert "canary-value" not in page.content()
    page.get_by_role("button", name="Confirm launch").click()
    page.get_by_text("fresh is active").wait_for()
    assert Server.objects.get(slug="fresh").lifecycle == "active"


@pytest.mark.exhaustive
def test_a_launch_changed_by_somebody_else_is_not_confirmed(page: Any, site: Site) -> None:
    log_in(page, "admin")
    server = site.servers["browser"]
    page.goto(reverse("admin:mcpregistry_server_confirm", args=[server.pk]))
    server.command = ["sh", "-c", "something else"]
    lifecycle.save_server(server=server, actor=ACTOR)
    page.get_by_role("button", name="Confirm launch").click()
    page.get_by_text("changed after you opened this page").wait_for()
    assert Server.objects.get(slug="browser").lifecycle == "draft"
    expect(page.locator("#words")).to_contain_text("something else")


def test_only_the_fields_of_the_chosen_transport_are_shown(page: Any, site: Site) -> None:
    log_in(page, "operator")
    page.goto(reverse("admin:mcpregistry_server_add"))
    expect(page.locator("#id_command")).to_be_visible()
    expect(page.locator("#id_url")).to_be_hidden()
    page.select_option("#id_transport", "http")
    expect(page.locator("#id_command")).to_be_hidden()
    expect(page.locator("#id_url")).to_be_visible()
    expect(page.locator("#id_headers")).to_be_visible()


@pytest.mark.exhaustive
def test_secrets_stay_masked_and_survive_saving(page: Any, site: Site) -> None:
    log_in(page, "admin")
    page.goto(reverse("admin:mcpregistry_server_change", args=[site.servers["postgres"].pk]))
    expect(page.locator("#id_env")).to_have_value("DATABASE_URI=•••")
    page.fill("#id_description", "Read-only SQL, reports first.")
    page.click("button[name=_save]")
    page.wait_for_url("**/server/")
    server = Server.objects.get(slug="postgres")
    assert (server.env, server.lifecycle) == (
        {"DATABASE_URI": "postgresql://reader:hunter2@db.internal/warehouse"},
        "active",
    )


@pytest.mark.exhaustive
def test_a_token_appears_once(page: Any, site: Site) -> None:
    log_in(page, "admin")
    page.goto(reverse("admin:mcpregistry_agent_change", args=[site.agents["ci"].pk]))
    page.get_by_role("link", name="Issue token").click()
    page.fill("#id_name", "box")
    page.get_by_role("button", name="Issue token").click()
    text = page.locator("#token").inner_text()
    assert text.startswith("slp_")
    page.get_by_role("link", name="Done").click()
    page.wait_for_url("**/change/")
    assert text[:12] in page.content()
    assert text not in page.content()


@pytest.mark.exhaustive
@pytest.mark.attack
def test_hostile_texts_never_run_hide_or_leave(page: Any, site: Site) -> None:
    poison()
    log_in(page, "root")
    addresses = [
        reverse("admin:index"),
        reverse("admin:mcpregistry_server_confirm", args=[site.servers["browser"].pk]),
    ]
    chosen = first_hostile() | {
        AuditEntry: AuditEntry.objects.first(),
        Invocation: Invocation.objects.first(),
    }
    for model, model_admin in admin.site._registry.items():
        if isinstance(model_admin, RecordAdmin):
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
            addresses.append(reverse(f"{name}_changelist"))
            row = chosen.get(model)
            if row is not None:
                addresses += [
                    reverse(f"{name}_{what}", args=[row.pk]) for what in ("change", "history")
                ]
                if model_admin.has_delete_permission(_Everything()):
                    addresses.append(reverse(f"{name}_delete", args=[row.pk]))
    for address in addresses:
        answer = page.goto(address)
        assert answer.status == 200, address
        assert page.evaluate("window.__x") is None, address
        # Text that people read; a text field holds what was typed, so that it can be mended.
        seen = page.evaluate("document.body.innerText")
        assert not any(hidden in seen for hidden in "\x1b\u202e\u200b\U000e0041"), address
    page.goto(reverse("admin:mcpregistry_auditentry_changelist"))
    page.get_by_role("button", name="Verify audit log").click()
    page.get_by_text("No verification yet").wait_for()  # a worker would do it


class _Everything:
    """Stands for a request of somebody who may do everything."""

    class user:
        @staticmethod
        def has_perm(_: str) -> bool:
            return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_a_phone_and_a_screen(page: Any, site: Site, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    log_in(page, "root")
    rows = {
        "server": site.servers["git"].pk,
        "agent": site.agents["local"].pk,
        "invocation": f"{0:032x}",
    }
    addresses = [
        reverse(f"admin:mcpregistry_{name}_change", args=[pk]) for name, pk in rows.items()
    ]
    addresses += [
        reverse(f"admin:mcpregistry_{name}_changelist")
        for name in ("server", "tool", "invocation", "grant")
    ]
    addresses += [
        reverse("admin:index"),
        reverse("admin:mcpregistry_server_confirm", args=[site.servers["browser"].pk]),
    ]
    for address in addresses:
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address


CHANNEL_FIELDS = {
    "#id_url": {"webhook", "slack"},
    "#id_signing": {"webhook", "slack"},
    "#id_token": {"slack"},
    "#id_room": {"slack"},
    "#id_addresses": {"email"},
}


@pytest.mark.exhaustive
def test_only_the_fields_of_the_chosen_kind_of_channel_are_shown_and_it_can_be_saved(
    page: Any, site: Site
) -> None:
    log_in(page, "admin")
    page.goto(reverse("admin:mcpregistry_channel_add"))
    for kind in ("slack", "email", "webhook", "email"):
        page.select_option("#id_kind", kind)
        for field, kinds in CHANNEL_FIELDS.items():
            expect(page.locator(field), f"{field} of {kind}").to_be_visible(visible=kind in kinds)
    page.fill("#id_name", "Night shift")
    page.fill("#id_addresses", "night@example.org")
    page.get_by_label("expired").check()
    page.click("button[name=_save]")
    page.wait_for_url("**/channel/")
    channel = Channel.objects.get(name="Night shift")
    assert (channel.kind, channel.addresses, channel.events) == (
        "email",
        ["night@example.org"],
        ["expired"],
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.exhaustive
def test_a_channels_page_fits_and_offers_a_test(page: Any, site: Site) -> None:
    log_in(page, "admin")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(
        reverse("admin:mcpregistry_channel_change", args=[Channel.objects.get(name="On call").pk])
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Send test message").click()
    page.get_by_text("A test message is being sent").wait_for()


@pytest.mark.exhaustive
def test_a_person_writes_in_a_conversation_and_the_answer_appears_by_itself(
    page: Any, site: Site
) -> None:
    row = Conversation.objects.get(pk=CONVERSATION)
    log_in(page, "operator")
    page.goto(reverse("admin:mcpregistry_conversation_change", args=[row.pk]))
    page.fill("#text", "What is new\nin this release?")
    page.get_by_role("button", name="Send").click()
    said = page.locator(".sn-said")
    expect(said).to_have_count(1)
    expect(said).to_contain_text("in this release?")
    page.fill("#text", "half a sentence")
    messages.add_message(
        conversation=row, kind=MessageKind.OUT, text="<i>Much</i>", author="agent:local"
    )
    expect(said.nth(1)).to_contain_text("<i>Much</i>")
    expect(page.locator("#text")).to_have_value("half a sentence")
