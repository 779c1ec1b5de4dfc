"""Secrets at rest open only with their key and only in their own place."""

from __future__ import annotations

import base64
import os
from itertools import product
from typing import Any

import pytest
from django.db import connection

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Credential, Server
from mcpregistry.models.sealing import seal, unseal

OLD = os.urandom(32)
NEW = os.urandom(32)
PLACE = "mcpregistry.server:1:sealed_env"


@pytest.fixture(autouse=True)
def keys(settings: Any) -> Any:
    settings.SLIPSNISSE_KEYS = {"old": OLD}
    return settings


@pytest.mark.parametrize(
    "value", [{"A": "ü\x00"}, "x", ["\ud800"], 10**30, "", None, {}, "x" * 1_000_000], ids=range(8)
)
def test_a_value_comes_back_as_it_was(value: Any):
    assert unseal(seal(value, place=PLACE), place=PLACE) == value


def test_the_same_value_never_looks_the_same_and_shows_nothing():
    texts = {seal({"TOKEN": "canary"}, place=PLACE) for _ in range(50)}
    assert len(texts) == 50
    assert not any(
        "canary" in text or b"canary" in base64.b64decode(text.split(".")[2]) for text in texts
    )


def test_new_values_take_the_newest_key_and_old_ones_still_open(keys: Any):
    before = seal("a", place=PLACE)
    keys.SLIPSNISSE_KEYS = {"new": NEW, "old": OLD}
    after = seal("b", place=PLACE)
    assert (before.split(".")[1], after.split(".")[1]) == ("old", "new")
    assert (unseal(before, place=PLACE), unseal(after, place=PLACE)) == ("a", "b")
    keys.SLIPSNISSE_KEYS = {"new": NEW}
    assert unseal(after, place=PLACE) == "b"
    with pytest.raises(ConfigInvalid, match="old"):
        unseal(before, place=PLACE)


@pytest.mark.attack
def test_a_wrong_key_under_the_right_name_opens_nothing(keys: Any):
    text = seal("a", place=PLACE)
    keys.SLIPSNISSE_KEYS = {"old": NEW}
    with pytest.raises(ConfigInvalid, match="cannot be decrypted"):
        unseal(text, place=PLACE)


@pytest.mark.attack
def test_a_key_cannot_be_passed_off_as_another(keys: Any):
    text = seal("a", place=PLACE)
    keys.SLIPSNISSE_KEYS = {"old": OLD, "alias": OLD}
    with pytest.raises(ConfigInvalid):
        unseal(text.replace(".old.", ".alias."), place=PLACE)


def _broken(text: str) -> list[str]:
    version, key, body = text.split(".")
    raw = bytearray(base64.b64decode(body))
    flipped = []
    for place in (0, 12, len(raw) - 1):
        copy = raw[:]
        copy[place] ^= 1
        flipped.append(f"{version}.{key}.{base64.b64encode(copy).decode()}")
    short = base64.b64encode(raw[:5]).decode()
    return [
        *flipped,
        f"v2.{key}.{body}",
        f"{version}..{body}",
        f"{version}.{key}.",
        f"{version}.{key}.{short}",
        f"{version}.{key}.not base64",
        f"{version}.{key}.é",
        "v1",
        "v1.old",
        "plain text",
        "{}",
    ]


@pytest.mark.attack
@pytest.mark.parametrize("which", range(13))
def test_a_changed_text_opens_nothing_and_says_so_plainly(which: int):
    with pytest.raises(ConfigInvalid) as caught:
        unseal(_broken(seal("canary", place=PLACE))[which], place=PLACE)
    assert caught.value.remedy
    assert "canary" not in str(caught.value)


def _rows() -> tuple[Server, Server, Credential]:
    servers = [
        Server.objects.create(slug=s, env={"A": f"env-{s}"}, headers={"B": f"headers-{s}"})
        for s in "ab"
    ]
    return servers[0], servers[1], Credential.objects.create(name="c", value="secret")


COLUMNS = [
    ("mcpregistry_server", 0, "sealed_env"),
    ("mcpregistry_server", 0, "sealed_headers"),
    ("mcpregistry_server", 1, "sealed_env"),
    ("mcpregistry_credential", 2, "sealed_value"),
]


@pytest.mark.attack
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("source", "goal"),
    [pair for pair in product(COLUMNS, COLUMNS) if pair[0] != pair[1]],
    ids=range(12),
)
def test_a_secret_copied_to_another_row_or_column_does_not_open_there(
    source: tuple[str, int, str], goal: tuple[str, int, str]
):
    rows = _rows()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {source[2]} FROM {source[0]} WHERE id = %s", [rows[source[1]].pk])
        cursor.execute(
            f"UPDATE {goal[0]} SET {goal[2]} = %s WHERE id = %s",
            [*cursor.fetchone(), rows[goal[1]].pk],
        )
    row = rows[goal[1]]
    row.refresh_from_db()
    with pytest.raises(ConfigInvalid):
        getattr(row, goal[2].removeprefix("sealed_"))


@pytest.mark.django_db
def test_rows_and_their_history_hold_no_secret_in_the_clear():
    rows = _rows()
    server = rows[0]
    server.env = {"A": "changed"}
    server.save()
    everything = repr(
        [*Server.objects.values(), *Server.history.values(), *Credential.history.values()]
    )
    assert not any(secret in everything for secret in ("env-a", "headers-a", "changed", "secret-"))
    assert server.history.first().sealed_env == server.sealed_env
    earlier = server.history.last()
    place = f"mcpregistry.server:{earlier.uid}:sealed_env"
    assert unseal(earlier.sealed_env, place=place) == {"A": "env-a"}
    assert not hasattr(Credential.history.first(), "sealed_value")


@pytest.mark.django_db
def test_an_empty_value_is_stored_as_nothing_and_reads_as_its_kind():
    server = Server.objects.create(slug="x", env={}, headers={"B": "1"})
    server.headers = {}
    server.save()
    server.refresh_from_db()
    assert (server.sealed_env, server.sealed_headers, server.env, server.headers) == (
        "",
        "",
        {},
        {},
    )


@pytest.mark.django_db
def test_a_renamed_row_keeps_its_secrets():
    server = Server.objects.create(slug="x", env={"A": "1"})
    Server.objects.filter(pk=server.pk).update(slug="y")
    assert Server.objects.get(slug="y").env == {"A": "1"}
