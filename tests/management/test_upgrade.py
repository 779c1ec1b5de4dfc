"""A site of an earlier release, with its rows, triggers and sealed secrets, is brought to this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import releases
from tests.fakes import elsewhere

pytestmark = [pytest.mark.e2e, pytest.mark.one_database, pytest.mark.django_db]


def test_a_site_of_an_earlier_release_comes_to_this_one_whole(tmp_path: Path) -> None:
    site = elsewhere.on_sqlite(tmp_path / "var", migrate=False)
    site.env.update(releases.KEYS)
    releases.put("site_0012", site.var)
    before = site.shown("apps.get_model('mcpregistry.Configuration').objects.values_list('revision', flat=True)[0]")
    code, said = site.run("migrate", "--verbosity", "0")
    assert code == 0, said
    site.assert_whole()
    calls, agents, scope, revision = site.shown(
        "[list(apps.get_model('mcpregistry.Invocation').objects.values_list('state', flat=True)), "
        "list(apps.get_model('mcpregistry.Agent').objects.values_list('slug', flat=True)), "
        "apps.get_model('mcpregistry.Credential').objects.get(name='db').scope, "
        "apps.get_model('mcpregistry.Configuration').load().revision]"
    )
    assert (calls, agents, scope) == (["succeeded"], ["robot"], ["server:db"])
    assert revision > before, "running processes look anew"
    assert site.shown(
        "__import__('mcpregistry.services.servers.targets').services.servers.targets.target_for(1).env"
    ) == {"TOKEN": "not-a-secret"}
    assert site.run("migrate", "--verbosity", "0")[0] == 0
    again = site.shown("apps.get_model('mcpregistry.Configuration').load().revision")
    assert again == revision, "where there is nothing to do, nobody looks anew"
