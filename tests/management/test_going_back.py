"""An operator goes back to the release before, and forward again: with rows that the earlier one knows nothing of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import elsewhere

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]
_FILL = """
from django.utils import timezone
from mcpregistry.models import *
from subagents.models import *
now = timezone.now()
ann = Agent.objects.create(slug="ann", energy_pool=EnergyPool.objects.create(slug="p", level_at=now))
server = Server.objects.create(slug="s", command=["true"], sandbox="strict", sandbox_network="ports")
for kind in ("tool", "prompt", "resource", "template"):
    Tool.offers.create(server=server, kind=kind, name="same", first_seen_at=now, last_seen_at=now)
    Grant.objects.create(agent=ann, server=server, kind=kind, uri="file:///a/*" * (kind == "resource"))
Budget.objects.create(slug="b", agent=ann, unit="calls", period="month", hard=3, created_at=now)
team = Endpoint.objects.create(slug="team")
Budget.objects.create(slug="t", endpoint=team, unit="calls", period="month", hard=3, created_at=now)
RegistrySource.objects.create(slug="r", base_url="https://registry.invalid")
for ecosystem in ("pypi", "mcpb"):
    install = Install.objects.create(server=server, ecosystem=ecosystem, package="p" * (300 if ecosystem == "mcpb" else 9), created_at=now, state_at=now)
request = MaintenanceRequest.objects.create(kind="add_server", created_at=now, requested_by="x")
Proposal.objects.create(request=request, server=server, install=install, created_at=now)
"""
_BACK = (("subagents", "0011"), ("mcpregistry", "0035"))


def test_the_last_migrations_go_back_and_forth_with_rows(tmp_path: Path) -> None:
    site = elsewhere.of_the_same_kind(tmp_path / "var")
    code, said = site.run("shell", "-c", _FILL)
    assert code == 0, said
    for app, name in _BACK:
        code, said = site.run("migrateback", app, name, "--verbosity", "0")
        assert code == 0, said
    code, said = site.run("migrate", "--verbosity", "0")
    assert code == 0, said
    assert site.run("migrate", "--check")[0] == 0
    kinds, grants, sandbox, installs = site.shown(
        "[list(apps.get_model('mcpregistry.Tool').offers.values_list('kind', flat=True)), "
        "list(apps.get_model('mcpregistry.Grant').objects.values_list('kind', 'uri')), "
        "apps.get_model('mcpregistry.Server').objects.values_list('sandbox', 'sandbox_network')[0], "
        "list(apps.get_model('mcpregistry.Install').objects.values_list('ecosystem', flat=True))]"
    )
    assert (kinds, grants) == (["tool"], [["tool", ""]]), "it would have taken the others for tools"
    assert (sandbox, installs) == (["enforce", "none"], ["pypi"]), "nothing runs with less of a sandbox"
    assert site.shown("__import__('mcpregistry.models.guards').models.guards.missing_guards()") == []
