"""Whatever site people make: its document makes the same site, once more changes nothing, and
another's rows stay.

GENERATED_SITES=FIRST:COUNT tries other ones, for example 1000:200.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from controlplane.configuration import document_export, document_import
from controlplane.configuration.document_values import Secrets
from controlplane.configuration.record_kinds import KINDS
from mcpregistry.domain.formats import text
from mcpregistry.models import Configuration, Server, Tool
from mcpregistry.services.access import grants
from subagents.models import LanguageModel
from tests import origin
from tests.api.conftest import new_agent, new_server, new_tool
from tests.controlplane.test_configuration import exported, people, rows
from tests.fakes import generated

__all__ = ["people"]
# which of them it is makes the document no other; both were tried with hundreds
pytestmark = pytest.mark.one_database
_FIRST, _COUNT = map(int, os.environ.get("GENERATED_SITES", "1:6").split(":"))
SEEDS = range(_FIRST, _FIRST + _COUNT)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_generated_site_is_made_again_from_its_document(people: Any, seed: int) -> None:
    maker = generated.site(seed)
    assert maker.made > maker.refused, "most of it was taken"
    before = rows()
    (file, secrets) = exported()
    for secret in ("t0p", "k3y"):
        assert secret not in file.replace("h0.example.org/k3y", ""), secret
    people()
    document = text.load(file.encode(), "site.yaml")
    report = document_import.take(document, secrets, confirm=True)
    assert [note for note in report.notes if "nobody may approve" not in note] == []
    assert exported() == (file, secrets)
    assert rows() == before

    unchanged(document, {}, confirm=True)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize("seed", SEEDS[::3])
def test_its_secrets_and_decisions_may_come_later(
    people: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_export, "WORK", 2)
    generated.site(seed)
    before = rows()
    (file, found) = exported()
    people()
    document = text.load(file.encode(), "site.yaml")
    assert text.load(text.dump(document).encode(), "site.json") == document
    document_import.take(document, {}, confirm=True)
    unchanged(document, {}, confirm=True)
    kept = Secrets()
    kept.found = found
    sealed = json.loads(json.dumps(document_export.encrypt_secrets(kept, "correct horse battery")))
    secrets = document_export.decrypt_secrets(sealed, "correct horse battery")
    document_import.take(document, secrets, confirm=True)
    assert exported() == (file, found)
    assert rows() == before
    for given in ({}, secrets):
        for confirm in (True, False):
            unchanged(document, given, confirm=confirm)
    people()
    document_import.take(document, secrets, confirm=False)
    unchanged(document, secrets, confirm=False)
    document_import.take(document, secrets, confirm=True)
    assert exported() == (file, found)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize("seed", SEEDS[::3])
def test_rows_of_another_site_stay_as_they_are(people: Any, seed: int) -> None:
    generated.site(seed)
    file, secrets = exported()
    people()
    generated.site(seed + 5000, "x")
    LanguageModel.objects.update(compared=False)  # of which a site has one
    document = text.load(file.encode(), "site.yaml")
    scope = {"NAME": [f"server:{tag}s-{number}" for tag in ("", "x") for number in range(4)]}
    document["configuration"]["variable_scope"] = scope
    Configuration.objects.update(variable_scope=scope)
    before = every_row()
    report = document_import.take(document, secrets, confirm=True)
    now = every_row()
    assert {place: now.get(place) for place in before} == before
    others = Server.objects.filter(slug__startswith="x").values_list("slug", flat=True)
    assert [name for name in report.kept if name.startswith("servers/")] == [
        f"servers/{slug}" for slug in others
    ]
    said = text.load(exported()[0].encode(), "")
    for section in {kind.section for kind in KINDS if kind.named} & document.keys():
        assert said[section].items() >= document[section].items(), section
    unchanged(document, secrets, confirm=True)


def unchanged(document: Any, secrets: dict[str, Any], *, confirm: bool) -> None:
    """Once more it changes nothing in any table: no time, no revision, no entry of the audit log or
    a history."""
    before = {table: sorted(map(repr, origin.rows(table))) for table in origin.tables()}
    report = document_import.take(document, secrets, confirm=confirm)
    assert (report.made, report.changed) == ([], [])
    for table, there in before.items():
        assert sorted(map(repr, origin.rows(table))) == there, table


def every_row() -> dict[tuple[str, int], dict[str, Any]]:
    """What configures the site, but for its settings: by section and key, with lists of other
    rows."""
    found = {}
    for kind in KINDS:
        for row in kind.model._default_manager.all() if kind.section != "configuration" else ():
            lists = {
                each.name: sorted(getattr(row, each.name).values_list("pk", flat=True))
                for each in row._meta.local_many_to_many
            }
            plain = {
                each.attname: each.value_from_object(row) for each in row._meta.concrete_fields
            }
            found[kind.section, row.pk] = plain | lists
    return found


@pytest.mark.usefixtures("live_db")
def test_a_tool_that_waits_for_a_decision_travels_where_a_grant_names_it(people: Any) -> None:
    server = new_server("echo")
    tool, other = (new_tool(server, name, approve=False) for name in ("named", "unnamed"))
    grants.grant_access(agent=new_agent("ann"), tool=tool, actor="test")
    file, secrets = exported()
    people()
    document_import.take(text.load(file.encode(), "site.yaml"), secrets, confirm=True)
    made = Tool.objects.get()
    assert (made.name, made.pinned, made.grants.count()) == (tool.name, None, 1)
    assert other.name not in file


@pytest.mark.exhaustive
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
    origin._origins[-1].restore()
