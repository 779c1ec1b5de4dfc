"""What a first start makes is shown to somebody, however often starts were stopped before."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from controlplane import first_run
from controlplane.first_run import ADMIN, NoAdministrator, Unshown, create_admin, reset_password
from mcpregistry.models import Agent, Grant, Server, Token
from mcpregistry.services import demo
from mcpregistry.services.access.tokens import find_token

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@pytest.fixture
def unshown(tmp_path: Path) -> Unshown:
    return Unshown(tmp_path)


def opens(password: str | None) -> bool:
    return password is not None and User.objects.get(username=ADMIN).check_password(password)


def test_the_first_password_is_made_once_and_not_again_after_it_was_shown(unshown):
    assert opens(create_admin(unshown))
    assert (unshown.password, unshown.demo) == (True, True)
    unshown.mark_shown(demo=True)
    assert (unshown.password, unshown.demo) == (False, False)
    assert create_admin(unshown) is None


def test_a_password_that_nobody_has_seen_is_made_anew(unshown, tmp_path):
    lost = create_admin(unshown)
    again = create_admin(Unshown(tmp_path))  # the next start of a stopped one
    assert opens(again)
    assert not opens(lost)


def test_a_start_that_was_stopped_before_the_administrator_was_made_makes_it(unshown):
    unshown.begin()
    assert opens(create_admin(unshown))


@pytest.mark.exhaustive
def test_who_has_signed_in_keeps_the_password(unshown):
    mine = create_admin(unshown)
    User.objects.update(last_login=timezone.now())
    assert create_admin(unshown) is None
    assert opens(mine)


def test_a_site_with_another_administrator_gets_none(unshown):
    User.objects.create_superuser("ann")
    assert create_admin(unshown) is None
    assert not unshown.password
    with pytest.raises(NoAdministrator, match=r"Administrators: ann\. .*changepassword"):
        reset_password()


def test_a_demo_that_could_not_be_finished_is_tried_again_by_the_next_start(unshown, monkeypatch):
    create_admin(unshown)
    monkeypatch.setattr(first_run, "demo", lambda *_, **__: 1 / 0)
    said: list[str] = []
    assert first_run.fill(said.append) is None
    assert said == [
        "the demo servers could not be set up; the site works without them, and the next start of the site will set them up again"
    ]
    unshown.mark_shown(demo=False)
    assert (unshown.password, unshown.demo) == (False, True)


STEPS = (
    "save_server",
    "confirm_launch",
    "agents.save_endpoint",
    "agents.save_agent",
    "grants.grant_access",
    "tokens.issue_token",
    "checks.request_test",
    "_wait_for_tests",
    "_approve",
    "_add_demo_rules",
)


class Stopped(BaseException):
    """The process was ended here."""


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_demo_stopped_at_any_step_is_finished_by_the_next_start(step, when, monkeypatch):
    owner, _, name = step.rpartition(".")
    where = getattr(demo, owner) if owner else demo
    works = getattr(where, name)

    def stopped(*args, **kwargs):
        if when == "after":
            works(*args, **kwargs)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(where, name, stopped)
        with pytest.raises(Stopped):
            demo.set_up_demo(say=lambda _: None, patience=0)
    made = demo.set_up_demo(say=lambda _: None, patience=0, resume=True)
    assert made is not None
    assert find_token(made.token).agent.slug == "local"
    # whatever was shown to nobody opens nothing
    assert Token.objects.filter(revoked_at=None).count() == 1
    assert Agent.objects.count() == 1
    assert set(Server.objects.values_list("source", "lifecycle")) == {("demo", "active")}
    assert (
        Grant.objects.filter(agent__slug="local").count()
        == Server.objects.count()
        == len(made.approved)
    )


def test_a_server_of_somebody_else_is_left_alone(monkeypatch):
    Server.objects.create(slug="time", transport="stdio", command=["/bin/true"])
    said: list[str] = []
    made = demo.set_up_demo(say=said.append, patience=0, resume=True)
    assert "time" not in made.approved
    assert "time: left out, another server already has this name" in said
    assert Server.objects.get(slug="time").command == ["/bin/true"]
