"""Buttons whose answer takes time show that the page works on it, before the answer arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse

from mcpregistry.domain.installs.states import InstallState
from mcpregistry.models import Install, RegistrySource
from tests.fakes.held import hold
from tests.fakes.seed import Site

pytestmark = [pytest.mark.web, pytest.mark.one_database]
WindowOf = Callable[..., Any]


def _held_call() -> str:
    return reverse("approvals:detail", args=[hold().pk])


def _batch() -> str:
    calls = [
        hold("time", "get_current_time", {"query": "Europe/Oslo"}, agent=a, risk="low")
        for a in ("local", "ci")
    ]
    return reverse("approvals:alike", args=[calls[0].pk])


def _package() -> str:
    waiting = Install.objects.filter(state=InstallState.WAITING).earliest("pk")
    return reverse("admin:mcpregistry_install_approve", args=[waiting.pk])


def _new_package() -> str:
    return reverse("admin:mcpregistry_install_add")


def _registry() -> str:
    return reverse(
        "admin:mcpregistry_registrysource_change",
        args=[RegistrySource.objects.get(slug="public").pk],
    )


def _definitions() -> str:
    return reverse("definitions:inbox")


# Each with its page, its button, and the fields that must be filled in first.
CASES: dict[str, tuple[Callable[[], str], str, dict[str, str]]] = {
    "approve call": (_held_call, "#approve", {}),
    "reject call": (_held_call, "#deny", {"reason": "Not today."}),
    "approve batch": (_batch, "#decision [value=approve]", {}),
    "reject batch": (_batch, "#decision [value=deny]", {"reason": "Not today."}),
    "approve package": (_package, "button:has-text('Approve and install')", {}),
    "add package": (_new_package, "[name=_save]", {"package": "@example/server"}),
    "sync registry": (_registry, "button:has-text('Sync registry')", {}),
    "approve definition": (_definitions, "[data-key=a]", {}),
}

# In one step, because the browser answers no other question while a page is loading.
_CLICK_AND_LOOK = """async (button) => {
  button.click();
  await new Promise((next) => setTimeout(next));
  return [button.ariaBusy, button.textContent];
}"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_button_shows_waiting_before_the_answer_arrives(
    window_of: WindowOf, crowd: Site, case: str
) -> None:
    page, button, values = CASES[case]
    window = window_of("root", reduced_motion="reduce")
    unanswered = []
    window.route(
        "**",
        lambda route: unanswered.append(route) if _is_post(route.request) else route.continue_(),
    )
    window.goto(page())
    for field, value in values.items():
        window.locator(f"[name={field}]").fill(value)
    shown = window.locator(button).first.evaluate(_CLICK_AND_LOOK)
    assert shown[0] == "true"
    assert "Working…" in shown[1]
    while not unanswered:
        window.wait_for_timeout(10)  # the handler above runs here
    unanswered.pop().fulfill(body="<p>An answer</p>", content_type="text/html")
    window.get_by_text("An answer").wait_for()
    assert not unanswered


def _is_post(request: Any) -> bool:
    return str(request.method) == "POST"
