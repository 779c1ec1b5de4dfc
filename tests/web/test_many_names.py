"""One of many agents is found while its name is typed, on the pages where one or several are
chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import expect

from mcpregistry.models import Agent, Grant, Server
from tests.fakes.seed import Site

pytestmark = [pytest.mark.web, pytest.mark.exhaustive, pytest.mark.one_database]
Windows = Callable[..., Any]


@pytest.fixture
def many(crowd: Site) -> Site:
    Agent.objects.bulk_create(Agent(slug=f"bot-{number:03}") for number in range(200))
    return crowd


def test_an_agent_is_found_for_a_host(window_of: Windows, many: Site) -> None:
    window = window_of("admin")
    window.goto(reverse("connect"))
    window.fill("#id_agent", "")
    window.locator("#id_agent").press_sequentially("t-17")
    expect(window.locator("#names-of-agent option").first).to_have_attribute("value", "bot-170")
    window.fill("#id_agent", "bot-177")
    window.keyboard.press("Tab")
    expect(window.get_by_text("bot-177 sees no tools on default yet.")).to_be_visible()
    window.fill("#id_agent", "nobody")
    window.keyboard.press("Tab")
    expect(window.get_by_text('No agent named "nobody" can be chosen here.')).to_be_visible()


def test_agents_are_found_for_a_new_server(window_of: Windows, many: Site) -> None:
    server = many.servers["git"]
    Server.objects.filter(pk=server.pk).update(last_ok_at=timezone.now())
    window = window_of("admin", viewport={"width": 390, "height": 844})
    window.goto(f"{reverse('admin:mcpregistry_server_set_up_step', args=[server.pk])}?step=access")
    window.locator(".select2-selection").first.click()
    window.keyboard.type("bot-19")
    window.get_by_role("option", name="bot-195").click()
    window.get_by_role("button", name="Grant access").click()
    window.wait_for_url("**step=done")
    assert Grant.objects.filter(agent__slug="bot-195", server=server).exists()
