"""Packages over REST: asked for, read, approved by the lock's hash, used, rolled back, removed."""

from __future__ import annotations

import json

import pytest

from mcpregistry.domain.installs.lock import hash_lock
from mcpregistry.models import Install
from tests.api.conftest import new_server

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]
LOCK = json.dumps(
    {
        "lockfileVersion": 3,
        "packages": {
            "": {"dependencies": {"srv": "1.0.0"}},
            "node_modules/srv": {
                "version": "1.0.0",
                "integrity": "sha512-" + "A" * 86 + "==",
                "bin": "cli.js",
            },
        },
    }
)


def test_a_package_goes_its_way(caller) -> None:
    new_server(slug="small", command=["node", "old.js"])
    admin = caller("admin")
    assert admin.post("/installs", {"ecosystem": "npm", "package": "-x"}).status_code in (400, 422)
    asked = admin.post("/installs", {"ecosystem": "npm", "package": "srv", "server": "small"})
    assert (asked.status_code, asked.json()["state"]) == (202, "requested")
    path = f"/installs/{asked.json()['id']}"
    rows = Install.objects.filter(pk=asked.json()["id"])
    rows.update(
        state="waiting",
        lock=LOCK,
        lock_sha256=hash_lock(LOCK),
        version="1.0.0",
        licences={"srv": "MIT"},
    )
    whole = admin.get(path).json()
    assert [(each["name"], each["licence"]) for each in whole["packages"]] == [("srv", "MIT")]
    assert whole["changes"] == ["srv 1.0.0 was added"]
    assert admin.post(f"{path}/approve", {"lock_sha256": "0" * 64}).status_code == 409
    assert (
        admin.post(f"{path}/approve", {"lock_sha256": hash_lock(LOCK)}).json()["state"]
        == "approved"
    )
    assert admin.post(f"{path}/use", {}).status_code == 409
    command = ["node", f"{rows.get().folder}/cli.js"]
    rows.update(state="installed", command=command)
    used = admin.post(f"{path}/use", {}).json()
    assert (used["slug"], used["lifecycle"], used["command"]) == ("small", "draft", command)
    assert admin.call("DELETE", path).status_code == 409
    assert admin.post("/servers/small/roll-back", {}).status_code == 409
    assert [
        each["state"]
        for each in admin.get("/installs?server=small&state=installed").json()["items"]
    ] == ["installed"]
