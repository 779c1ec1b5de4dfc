"""The second factor: set up, asked for, slowed, reset, required; a code works once and its secret
is sealed."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.models import AuditEntry, Configuration, RecoveryCode, SecondFactor
from mcpregistry.models.sealing import one_time_codes
from mcpregistry.services.access import second_factor, tokens
from mcpregistry.services.access.logins import OF_ACCOUNT
from mcpregistry.services.configuration import site

pytestmark = pytest.mark.attack
GOOD = "correct horse battery"
PAGE = "/account/second-factor/"
CODE = "/admin/login/code/"


@pytest.fixture(autouse=True)
def ann(db: None) -> User:
    return person("ann", "admin")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half minutes of codes stand still: one that is a step old would be two old if the next
    began meanwhile."""
    now = timezone.now()
    monkeypatch.setattr(second_factor, "read_database_now", lambda: now)


def person(name: str, role: str) -> User:
    user = User.objects.create_user(name, password=GOOD, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return user


def code_of(user: User, steps: int = 0) -> str:
    """What the person's authenticator shows, with a clock that is ``steps`` half minutes off. A
    later one is unused."""
    factor = SecondFactor.objects.get(user=user)
    return (
        one_time_codes(factor.secret)
        .generate(int(second_factor.read_database_now().timestamp()) + 30 * steps)
        .decode()
    )


def equipped(user: User) -> list[str]:
    """The person has set a factor up; returns the recovery codes."""
    second_factor.begin_setup(user)
    codes = second_factor.confirm_factor(user, code_of(user, -1))
    assert codes
    return codes


def password(client: Client, name: str = "ann", typed: str = GOOD, to: str = "") -> Any:
    return client.post(f"/admin/login/{to}", {"username": name, "password": typed})


def inside(client: Client) -> bool:
    return client.get("/admin/").status_code == 200


def require(*roles: str) -> None:
    configuration = Configuration.load()
    configuration.second_factor_roles = [*roles]
    site.save_configuration(configuration=configuration, actor="user:root")


def kinds() -> list[str]:
    rows = AuditEntry.objects.filter(kind__regex="^(second_factor|login)").order_by("seq")
    return [*rows.values_list("kind", flat=True)]


def test_it_is_set_up_by_a_code_and_from_then_on_the_password_alone_is_not_enough(ann):
    client = Client()
    password(client)
    page = client.get(PAGE).content.decode()
    secret = "".join(re.search(r'id="secret">([A-Z2-7 ]+)<', page)[1].split())
    assert 'src="data:image/svg+xml' in page
    assert "<script>" not in page
    assert "code is wrong" in client.post(PAGE, {"do": "enable", "code": "000000"}).content.decode()
    assert inside(client)
    done = client.post(PAGE, {"do": "enable", "code": code_of(ann, -1)}).content.decode()
    codes = re.findall(r"<li><code[^>]*>([a-z2-7-]+)</code>", done)
    assert len(set(codes)) == 10
    assert not any(code in client.get(PAGE).content.decode() for code in codes)
    assert secret not in client.get(PAGE).content.decode()
    assert inside(client)

    other = Client()
    answer = password(other, to="?next=/admin/mcpregistry/server/")
    assert (answer.status_code, answer["Location"]) == (
        302,
        f"{CODE}?next=%2Fadmin%2Fmcpregistry%2Fserver%2F",
    )
    assert not inside(other)
    answer = other.post(f"{CODE}?next=%2Fadmin%2Fmcpregistry%2Fserver%2F", {"code": code_of(ann)})
    assert answer["Location"] == "/admin/mcpregistry/server/"
    assert inside(other)
    assert other.cookies["slipsnisse-known"]["path"] == "/admin/login/"


def test_no_page_and_no_session_call_of_the_api_hears_a_password_alone(ann):
    equipped(ann)
    client = Client()
    password(client)
    for path in (
        "/admin/",
        "/admin/mcpregistry/server/",
        "/approvals/",
        "/definitions/",
        PAGE,
        "/admin/password_change/",
    ):
        assert client.get(path)["Location"].startswith("/admin/login/"), path
    assert client.get("/api/v1/servers").status_code == 401
    assert client.get(CODE).status_code == 200


def test_a_session_of_before_it_was_set_up_ends(ann):
    old = Client()
    password(old)
    assert inside(old)
    equipped(ann)
    assert not inside(old)
    assert old.get("/api/v1/servers").status_code == 401
    assert old.get("/admin/login/").status_code == 200
    assert "_auth_user_id" not in old.session


def test_a_code_works_once_and_no_older_one_after_it(ann):
    equipped(ann)
    code = code_of(ann)
    assert second_factor.accept_code(ann, code)
    assert not second_factor.accept_code(ann, code)
    assert not second_factor.accept_code(ann, code_of(ann, -1))
    assert second_factor.accept_code(ann, code_of(ann, 1))


@pytest.mark.parametrize(("steps", "good"), [(-3, False), (0, True), (1, True), (3, False)])
def test_a_clock_may_be_a_step_off(ann, steps, good):
    equipped(ann)
    SecondFactor.objects.update(last_step=0)
    assert second_factor.accept_code(ann, code_of(ann, steps)) is good


def test_the_codes_are_those_of_the_standard():
    """RFC 6238, appendix B."""
    user = person("bob", "viewer")
    factor = second_factor.begin_setup(user)
    factor.secret = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
    assert one_time_codes(factor.secret).generate(59) == b"287082"
    assert TOTP(b"12345678901234567890", 6, SHA1(), 30).generate(1111111109) == b"081804"
    assert second_factor.build_otpauth_url(factor).startswith("otpauth://totp/Slipsnisse:bob?")


def test_a_recovery_code_works_once_as_people_type_it(ann):
    codes = equipped(ann)
    client = Client()
    password(client)
    assert client.post(CODE, {"code": f" {codes[0].upper().replace('-', ' ')} "}).status_code == 302
    assert inside(client)
    assert not second_factor.accept_code(ann, codes[0])
    assert RecoveryCode.objects.count() == 9
    assert not second_factor.accept_code(ann, "")
    body = json.loads(AuditEntry.objects.get(kind="second_factor.recovery_code_used").body)
    assert body["left"] == 9


def test_wrong_codes_count_like_wrong_passwords_and_a_right_password_forgets_none(ann):
    equipped(ann)
    client = Client()
    for _ in range(OF_ACCOUNT - 3):
        assert password(client, typed="wrong").status_code == 200
    assert password(client).status_code == 302
    assert client.post(CODE, {"code": "000000"}).status_code == 200
    locked = client.post(CODE, {"code": "000000"})
    assert locked.status_code in (200, 429)
    refused = client.post(CODE, {"code": code_of(ann)})
    assert refused.status_code == 429
    assert 800 < int(refused["Retry-After"]) <= 900
    assert password(client).status_code == 429
    assert not inside(client)
    steps = [
        json.loads(body).get("step", "")
        for body in AuditEntry.objects.filter(kind="login.failed").values_list("body", flat=True)
    ]
    assert "code" in steps
    assert "login.locked" in kinds()
    assert "login.succeeded" not in kinds()


def test_the_secret_is_sealed_and_the_codes_are_hashes(ann):
    codes = equipped(ann)
    factor = SecondFactor.objects.get()
    stored = repr(
        [
            *SecondFactor.objects.values(),
            *RecoveryCode.objects.values(),
            *AuditEntry.objects.values(),
        ]
    )
    assert len(factor.secret) == 32
    assert factor.secret not in stored
    assert not any(part in stored for code in codes for part in (code, code.replace("-", "")))


def test_the_password_stands_ten_minutes_and_only_for_who_gave_it(ann):
    equipped(ann)
    client = Client()
    assert client.get(CODE)["Location"].startswith("/admin/login/")
    password(client)
    session = client.session
    session["second_factor_pending"] = [
        *session["second_factor_pending"][:2],
        1.0,
        session["second_factor_pending"][3],
    ]
    session.save()
    assert client.post(CODE, {"code": code_of(ann)})["Location"].startswith("/admin/login/")
    password(client)
    ann.set_password("another one entirely")
    ann.save()
    assert client.post(CODE, {"code": code_of(ann)})["Location"].startswith("/admin/login/")
    assert not inside(client)


def test_nobody_is_sent_to_another_site(ann):
    equipped(ann)
    client = Client()
    password(client)
    assert (
        client.post(f"{CODE}?next=https://evil.example/", {"code": code_of(ann)})["Location"]
        == "/admin/"
    )


def test_a_role_that_needs_it_is_led_to_the_page_and_nothing_else(ann):
    require("admin")
    client = Client()
    assert password(client)["Location"] == "/admin/"
    for path in ("/admin/", "/admin/mcpregistry/server/", "/approvals/"):
        to = client.get(path)["Location"]
        assert to.startswith("/admin/login/")
        assert client.get(to)["Location"] == PAGE
    assert client.get("/api/v1/servers").status_code == 401
    page = client.get(PAGE).content.decode()
    assert "Your role requires a second factor." in page
    assert "/admin/mcpregistry/" not in page
    client.post(PAGE, {"do": "enable", "code": code_of(ann)})
    assert inside(client)
    assert client.get("/api/v1/servers").status_code == 200
    with pytest.raises(Conflict, match="your role requires one"):
        second_factor.remove_factor(ann)


def test_others_roles_are_not_concerned_and_the_superuser_is_an_admin(ann):
    require("admin")
    viewer = person("vi", "viewer")
    root = User.objects.create_superuser("root", password=GOOD)
    assert not second_factor.load_factor_standing(viewer.pk).required
    assert second_factor.load_factor_standing(root.pk).required
    client = Client()
    password(client, "vi")
    assert inside(client)
    require()
    assert not second_factor.load_factor_standing(root.pk).required


def test_who_must_set_it_up_can_leave(ann):
    require("admin")
    client = Client()
    password(client)
    client.post(PAGE, {"do": "leave"})
    assert "_auth_user_id" not in client.session


def test_tokens_are_not_concerned(ann):
    equipped(ann)
    require("admin")
    _, token = tokens.issue_token(user=ann, name="t", actor="test")
    assert (
        Client().get("/api/v1/servers", headers={"Authorization": f"Bearer {token}"}).status_code
        == 200
    )


def test_changes_on_ones_own_page_need_a_code(ann):
    codes = equipped(ann)
    client = Client()
    password(client)
    client.post(CODE, {"code": codes[0]})
    assert "code is wrong" in client.post(PAGE, {"do": "remove", "code": "1"}).content.decode()
    renewed = client.post(PAGE, {"do": "renew", "code": codes[1]}).content.decode()
    new = re.findall(r"<li><code[^>]*>([a-z2-7-]+)</code>", renewed)
    assert not second_factor.accept_code(ann, codes[2])
    assert (
        "second factor is disabled"
        in client.post(PAGE, {"do": "remove", "code": new[0]}).content.decode()
    )
    assert not SecondFactor.objects.exists()
    assert inside(client)
    assert {"second_factor.enabled", "second_factor.codes_renewed", "second_factor.removed"} <= set(
        kinds()
    )


def test_an_admin_resets_anothers_and_not_ones_own(ann):
    equipped(ann)
    root = User.objects.create_superuser("root", password=GOOD)
    equipped(root)
    client = Client()
    password(client, "root")
    client.post(CODE, {"code": code_of(root)})
    chosen = {"action": "reset_second_factor", "_selected_action": [ann.pk, root.pk]}
    told = client.post("/admin/auth/user/", chosen, follow=True).content.decode()
    assert "ann no longer has a second factor." in told
    assert "You cannot reset your own second factor." in told
    assert [*SecondFactor.objects.values_list("user__username", flat=True)] == ["root"]
    entry = AuditEntry.objects.get(kind="second_factor.reset")
    assert (entry.actor, entry.subject) == ("user:root", "user:ann")


def test_who_may_not_change_people_resets_nobodys(ann):
    equipped(ann)
    approver = person("appy", "approver")
    client = Client()
    client.force_login(approver)
    client.post(
        "/admin/auth/user/", {"action": "reset_second_factor", "_selected_action": [ann.pk]}
    )
    assert SecondFactor.objects.filter(user=ann).exists()


def test_a_list_without_users_says_so(ann: User) -> None:
    ann.delete()
    out = StringIO()
    call_command("secondfactor", stdout=out)
    assert "no enabled users" in out.getvalue()


def test_whoever_controls_the_machine_lists_and_resets_them(ann):
    equipped(ann)
    require("admin")
    out = StringIO()
    call_command("secondfactor", stdout=out)
    call_command("secondfactor", "--reset", "ann", stdout=out)
    call_command("secondfactor", "--reset", "ann", stdout=out)
    assert out.getvalue().splitlines() == [
        "ann: on, required",
        "The second factor of ann was removed.",
        "ann does not have a second factor.",
    ]
    assert AuditEntry.objects.get(kind="second_factor.reset").actor == "system"
    with pytest.raises(CommandError, match="No user named"):
        call_command("secondfactor", "--reset", "nobody")


def test_the_roles_are_chosen_on_the_sites_page(ann):
    client = Client()
    client.force_login(ann)
    form = {
        "keep_payloads_days": 30,
        "keep_calls_days": 365,
        "keep_history_days": 365,
        "variable_scope": "{}",
        "second_factor_roles": ["admin"],
    }
    assert client.post("/admin/mcpregistry/configuration/1/change/", form).status_code == 302
    assert Configuration.load().second_factor_roles == ["admin"]
    assert '"second_factor_roles": ["admin"]' in AuditEntry.objects.get(
        kind="configuration.changed"
    ).body.replace('":[', '": [')
