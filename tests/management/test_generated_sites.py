"""Whatever site people make: its document makes the same site, once more changes nothing, and another's rows stay.

GENERATED_SITES=FIRST:COUNT tries other ones, for example 1000:200.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from controlplane.configuration import reading
from controlplane.configuration.kinds import KINDS
from mcpregistry.domain.formats import text
from mcpregistry.models import AuditEntry, Configuration, Server, Tool
from mcpregistry.services.access import grants
from tests.api.conftest import new_agent, new_server, new_tool
from tests.controlplane.test_configuration import exported, people, rows
from tests.fakes import generated

__all__ = ["people"]
pytestmark = pytest.mark.one_database  # which of them it is makes the document no other; both were tried with hundreds
_FIRST, _COUNT = map(int, os.environ.get("GENERATED_SITES", "1:6").split(":"))
SEEDS = range(_FIRST, _FIRST + _COUNT)


@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_generated_site_is_made_again_from_its_document(people: Any, seed: int) -> None:
    maker = generated.site(seed)
    assert maker.made > maker.refused, "most of it was taken"
    before, (file, secrets) = rows(), exported()
    for secret in ("t0p", "k3y"):
        assert secret not in file.replace("h0.example.org/k3y", ""), secret
    people()
    document = text.load(file.encode(), "site.yaml")
    report = reading.take(document, secrets, confirm=True)
    assert [note for note in report.notes if "nobody may approve" not in note] == []
    assert exported() == (file, secrets)
    assert rows() == before

    entries, revision = AuditEntry.objects.count(), Configuration.load().revision
    again = reading.take(document, {}, confirm=True)
    assert (again.made, again.changed, again.kept) == ([], [], [])
    assert (AuditEntry.objects.count(), Configuration.load().revision) == (entries, revision), (
        "nothing was even written"
    )


@pytest.mark.usefixtures("live_db")
def test_a_tool_that_waits_for_a_decision_travels_where_a_grant_names_it(people: Any) -> None:
    server = new_server("echo")
    tool, other = (new_tool(server, name, approve=False) for name in ("named", "unnamed"))
    grants.grant(agent=new_agent("ann"), tool=tool, actor="test")
    file, secrets = exported()
    people()
    reading.take(text.load(file.encode(), "site.yaml"), secrets, confirm=True)
    made = Tool.objects.get()
    assert (made.name, made.pinned, made.grants.count()) == (tool.name, None, 1)
    assert other.name not in file


@pytest.mark.usefixtures("live_db")
def test_rows_that_a_document_does_not_name_stay_as_they_are(people: Any) -> None:
    generated.site(SEEDS[0])
    file, secrets = exported()
    people()
    other = Server.objects.create(slug="other", command=["true"], description="mine")
    document = text.load(file.encode(), "site.yaml")
    report = reading.take(document, secrets, confirm=True)
    assert "servers/other" in report.kept
    other.refresh_from_db()
    assert (other.command, other.description) == (["true"], "mine")


def test_the_sites_have_rows_of_every_kind(live_db: None) -> None:
    """Otherwise what is compared would be less than what is told."""
    seen: set[str] = set()
    for seed in range(1, 30):
        generated.site(seed)
        seen |= {kind.section for kind in KINDS if kind.all()}
        if seen == {kind.section for kind in KINDS}:
            return
        _emptied()
    raise AssertionError(f"never made: { ({kind.section for kind in KINDS} - seen) }")


def _emptied() -> None:
    from tests.origin import _origins

    _origins[-1].restore()
