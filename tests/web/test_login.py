"""Log-ins: guessing is slowed for an account at one address, a stranger locks nobody out, and all
of it is on record."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from mcpregistry.models import AuditEntry, LoginAttempts
from mcpregistry.services.access import logins
from mcpregistry.services.access.logins import (
    LONGEST_WAIT,
    OF_ACCOUNT,
    OF_ALL,
    OF_NETWORK,
    OF_PLACE,
    PACE,
    PERIOD,
    LoginAttempt,
)
from mcpregistry.services.upkeep import retention

pytestmark = pytest.mark.attack
HERE = "192.0.2.1"
ELSEWHERE = "198.51.100.7"
GOOD = "correct horse battery"


@pytest.fixture(autouse=True)
def ann(db: None) -> User:
    user = User.objects.create_user("ann", password=GOOD, is_staff=True)
    user.groups.add(Group.objects.get(name="admin"))
    return user


def enter(
    password: str = GOOD, name: str = "ann", *, at: str = HERE, client: Client | None = None
) -> Any:
    form = {"username": name, "password": password}
    return (client or Client()).post("/admin/login/", form, REMOTE_ADDR=at)


def guess(times: int = OF_ACCOUNT, **more: Any) -> list[int]:
    return [enter(f"guess {n}", **more).status_code for n in range(times)]


def noted(*kinds: str) -> list[tuple[str, str, str]]:
    rows = AuditEntry.objects.filter(
        kind__in=kinds or [f"login.{k}" for k in ("succeeded", "failed", "locked", "ended")]
    )
    return list(rows.order_by("seq").values_list("kind", "actor", "subject"))


def guess_at_once(name: str, addresses: Iterable[str], now: datetime | None = None) -> None:
    """Wrong passwords that are all sent before the first is looked at, without the pages that
    answer them."""
    for address in addresses:
        LoginAttempt(name, address).begin(now or timezone.now())


def later(by: timedelta = PERIOD + timedelta(minutes=1)) -> None:
    for row in LoginAttempts.objects.all():
        row.began_at -= by
        row.locked_until = row.locked_until and row.locked_until - by
        row.save()


def test_failed_login_shows_only_its_reason():
    page = enter("wrong").content.decode()
    assert "Please enter the correct username and password" in page
    assert "Please correct the error" not in page


@pytest.mark.exhaustive
def test_of_26_guesses_five_are_looked_at_and_the_right_one_waits_its_turn():
    assert guess(OF_ACCOUNT) == [200] * (OF_ACCOUNT - 1) + [429]
    assert guess(20) == [429] * 20
    refused = enter()
    assert refused.status_code == 429
    page = refused.content.decode()
    assert "Try again in 15 minutes, at " in page
    assert "no password or code is checked" in page
    assert 800 < int(refused["Retry-After"]) <= 900
    later()
    assert enter().status_code == 302


def test_elsewhere_the_person_gets_in_while_a_stranger_is_locked():
    guess()
    assert enter().status_code == 429
    assert enter(at=ELSEWHERE).status_code == 302


def test_behind_one_proxy_the_persons_own_browser_gets_in_while_a_stranger_guesses_beside_it():
    own = Client()
    assert enter(client=own).status_code == 302
    own.post("/admin/logout/")
    guess(OF_ACCOUNT + 3)
    assert enter().status_code == 429
    assert enter(client=own).status_code == 302
    own.post("/admin/logout/")
    # that browser has five tries of its own, no more
    assert guess(OF_ACCOUNT, client=own)[-1] == 429
    assert enter(client=own).status_code == 429


def test_a_mark_is_of_one_account_and_is_not_forged():
    User.objects.create_user("bob", password=GOOD, is_staff=True)
    own = Client()
    enter(client=own)
    mark = own.cookies[logins.MARK]
    assert (mark["httponly"], mark["samesite"], mark["path"]) == (True, "Lax", "/admin/login/")
    assert "ann" not in mark.value
    assert LoginAttempt("ann", HERE, mark.value).known
    assert not LoginAttempt("bob", HERE, mark.value).known
    for forged in (mark.value[:-1], "x", "", mark.value.partition(":")[0]):
        assert not LoginAttempt("ann", HERE, forged).known


def test_one_address_that_tries_many_accounts_is_stopped_and_known_browsers_are_not():
    own = Client()
    enter(client=own)
    own.post("/admin/logout/")
    wrong = [enter("Summer2026", name=f"user{n}").status_code for n in range(OF_PLACE)]
    assert wrong == [200] * (OF_PLACE - 1) + [429]
    assert enter().status_code == 429
    assert enter(client=own).status_code == enter(at=ELSEWHERE).status_code == 302


def test_as_many_as_like_at_once_get_no_more_tries():
    """Counted before the password is looked at."""
    attempt = LoginAttempt("ann", HERE)
    now = timezone.now()
    begun = [attempt.begin(now) for _ in range(OF_ACCOUNT + 2)]
    assert [each is None for each in begun] == [True] * OF_ACCOUNT + [False] * 2


def test_a_right_password_forgets_the_wrong_ones_before_it():
    for _ in range(3):
        guess(OF_ACCOUNT - 1)
        assert enter().status_code == 302


def test_log_ins_good_and_bad_locks_and_log_outs_are_on_record():
    client = Client()
    enter("wrong", client=client)
    enter(client=client)
    client.post("/admin/logout/", REMOTE_ADDR=HERE)
    assert noted() == [
        ("login.failed", "nobody", "login:ann"),
        ("login.succeeded", "user:ann", "login:ann"),
        ("login.ended", "user:ann", "login:ann"),
    ]
    guess(OF_ACCOUNT + 5, at=ELSEWHERE)
    assert [kind for kind, _, _ in noted()[3:]] == ["login.failed"] * OF_ACCOUNT + ["login.locked"]
    body = json.loads(AuditEntry.objects.get(kind="login.locked").body)
    assert (body["place"], body["until"][:3]) == (ELSEWHERE, "202")


def test_what_was_typed_into_the_wrong_field_is_not_on_record():
    enter("x", name="hunter2-is-my-password")
    enter("hunter2-too", name="ann")
    enter("x", name="\u202eevil\x1b[31m")
    bodies = " ".join(AuditEntry.objects.values_list("body", flat=True))
    assert "hunter2" not in bodies
    assert noted("login.failed")[0][2] == "login:hu… (22 characters, no account)"
    assert not {"\u202e", "\x1b"} & set(bodies)
    assert "hunter2" not in repr([*LoginAttempts.objects.values()])


def test_counts_are_forgotten_after_a_day():
    guess(1)
    assert retention.prune(timezone.now())["attempts"] == 0
    assert retention.prune(timezone.now() + timedelta(days=2))["attempts"] == 4


def everywhere(number: int) -> str:
    return f"2001:db8:{number:x}::1"


def flood(now: datetime) -> None:
    """So many attempts at ann from networks of a stranger that the next ones are paced."""
    guess_at_once("ann", (everywhere(2 + number) for number in range(OF_ALL)), now)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that attempts have waited for their turn, instead of the waiting."""
    found: list[float] = []
    monkeypatch.setattr(logins, "sleep", found.append)
    return found


def test_one_network_has_its_own_limit():
    one_site = (f"2001:db8:1:{number:x}00::1" for number in range(OF_NETWORK + 2))
    now = timezone.now()
    assert [LoginAttempt("ann", each).begin(now) is None for each in one_site] == [
        True
    ] * OF_NETWORK + [False] * 2


@pytest.mark.exhaustive
def test_attempts_from_many_networks_are_paced_and_not_refused(waited: list[float]):
    now = timezone.now()
    flood(now)
    assert waited == []
    for number in range(3):
        assert LoginAttempt("ann", everywhere(1000 + number)).begin(now) is None
    assert waited == [PACE.total_seconds(), 2 * PACE.total_seconds()]
    assert LoginAttempt("bob", everywhere(1)).begin(now) is None
    assert len(waited) == 2, "other accounts are not paced"


def test_new_browser_gets_in_while_a_stranger_guesses_from_many_networks(waited: list[float]):
    flood(timezone.now())
    LoginAttempt("ann", everywhere(1000)).begin()
    assert enter(at=ELSEWHERE).status_code == 302
    assert len(waited) == 1


def test_stranger_cannot_fill_the_queue_from_one_network(waited: list[float]):
    now = timezone.now()
    flood(now)
    busy, queued, again = (LoginAttempt("ann", f"2001:db8:77:{number}00::1") for number in range(3))
    assert busy.begin(now) is None
    assert queued.begin(now) is None
    assert again.begin(now) == now + PACE
    assert waited == [PACE.total_seconds()]
    assert again.begin(now + PACE) is None, "what was refused unseen does not count"


def test_number_of_guesses_is_bounded_whatever_the_number_of_networks(waited: list[float]):
    now = timezone.now()
    flood(now)
    begun = [LoginAttempt("ann", everywhere(1000 + number)).begin(now) for number in range(40)]
    looked_at = [each for each in begun if each is None]
    assert len(looked_at) == LONGEST_WAIT / PACE + 1
    assert max(waited) == LONGEST_WAIT.total_seconds()
    assert begun[-1] == now + PACE
    assert not LoginAttempt("ann", everywhere(1039)).begin(now + LONGEST_WAIT + PACE)


@pytest.mark.exhaustive
def test_network_of_an_earlier_log_in_is_not_paced(waited: list[float]):
    assert enter(at=ELSEWHERE).status_code == 302
    flood(timezone.now())
    LoginAttempt("ann", everywhere(1000)).begin()
    assert enter(at="198.51.100.8").status_code == 302
    assert waited == []
    assert retention.prune(timezone.now() + timedelta(days=2))["attempts"] > 0
    assert LoginAttempts.objects.filter(known_until__isnull=False).exists()


def test_one_address_alone_never_locks_an_account_elsewhere():
    guess()
    guess_at_once("ann", [HERE] * OF_ALL)
    assert enter(at=ELSEWHERE).status_code == 302
    assert not LoginAttempts.objects.filter(count__gt=OF_ACCOUNT).exists()
