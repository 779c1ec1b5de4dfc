"""Which addresses a web process believes: those that a proxy tells, and only if the operator has
named the proxy."""

from __future__ import annotations

import json

import httpx2
import pytest
from django.contrib.auth.models import User

from mcpregistry.models import AuditEntry
from mcpregistry.services.access.logins import OF_ACCOUNT
from tests.fakes.stage import PLAIN, web
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.attack


def guess(url: str, address: str) -> int:
    """A wrong password for ann from this machine, with a header that names another address."""
    with httpx2.Client(base_url=url, timeout=HANG_LIMIT, **PLAIN) as client:
        client.get("/admin/login/")
        form = {
            "username": "ann",
            "password": "wrong",
            "csrfmiddlewaretoken": client.cookies["csrftoken"],
        }
        return client.post(
            "/admin/login/", data=form, headers={"X-Forwarded-For": address}
        ).status_code


def places() -> set[str]:
    rows = AuditEntry.objects.filter(kind="login.failed").values_list("body", flat=True)
    return {json.loads(body)["place"] for body in rows}


@pytest.mark.exhaustive(but=("",))
@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
def test_made_up_addresses_are_not_believed(site_env: dict[str, str], trusted: str) -> None:
    User.objects.create_user("ann", password="correct horse battery")
    env = {name: value for name, value in site_env.items() if name != "FORWARDED_ALLOW_IPS"}
    with web(env | ({"FORWARDED_ALLOW_IPS": trusted} if trusted else {})) as site:
        site.wait_ready()
        url = site.url().partition("/mcp")[0]
        found = [guess(url, f"192.0.2.{number}") for number in range(OF_ACCOUNT + 2)]
    if trusted:
        assert 429 not in found
        assert "192.0.2.0" in places()
    else:
        assert found[-1] == 429
        assert places() == {"127.0.0.1"}
