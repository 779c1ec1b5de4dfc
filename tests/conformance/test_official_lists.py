"""The official clients accept every list of definitions that the site serves, whatever servers
list.

TypeScript 1.x and 2.x run on Node, with ajv; Python 1.x has an environment of its own; Python 2.x
is the installed SDK.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings

from mcpregistry.calls.catalog import Catalogue, build_current_catalogue
from mcpregistry.domain.offer_kinds import KINDS
from mcpregistry.models import Agent, Endpoint
from tests.externals import NODE_FOLDER, OLDER_SDK, node_program
from tests.fakes.odd_definitions import LISTS, ODD
from tests.fakes.offers import Lists, learn_and_approve
from tests.fakes.stage import ACTOR, Stage, fresh, listed

pytestmark = [pytest.mark.one_database, pytest.mark.exhaustive, pytest.mark.e2e]
HERE = Path(__file__).resolve().parent
VERSIONS = {"2025-11-25": True, "2026-07-28": False}  # and whether the gateway calls it legacy
ARBITRARY = 60
Cases = Mapping[str, Mapping[str, Any]]


class Served:
    """What the site serves of any lists, next to a healthy server."""

    def __init__(self, stage: Stage) -> None:
        slug = fresh("lists")
        stage.endpoint(slug)
        self.odd = stage.server(f"{slug}-odd", [], command=[sys.executable, "-c", ""])
        stage.agent(slug, stage.fake("echo", listed("echo"), slug=f"{slug}-good"), self.odd)
        self.agent = Agent.objects.get(slug=slug)
        self.endpoint = Endpoint.objects.get(slug=slug)

    def catalogue(self, lists: Lists) -> Catalogue:
        learn_and_approve(self.odd, lists, actor=ACTOR)
        found = build_current_catalogue(self.agent, self.endpoint, now=timezone.now())
        assert found is not None
        return found

    def cases(self, title: str, lists: Lists) -> dict[str, Mapping[str, Any]]:
        catalogue = self.catalogue(lists)
        return {f"{title} {kind}": _case(catalogue, kind) for kind in KINDS}


def _case(catalogue: Catalogue, kind: str) -> Mapping[str, Any]:
    shown = catalogue.get_kind(kind)
    results = {
        version: json.loads(shown.encode_page(None, legacy=legacy, extra={}))
        for version, legacy in VERSIONS.items()
    }
    return {"method": KINDS[kind].list_method, "results": results}


def _one_by_one(whole: Cases) -> dict[str, Mapping[str, Any]]:
    """Each definition as a list of its own, so that a failing test names it."""
    cases: dict[str, Mapping[str, Any]] = {}
    for title, case in whole.items():
        for key, items in case["results"]["2025-11-25"].items():
            for place in range(len(items)):
                results = {
                    version: {key: [found[key][place]]}
                    for version, found in case["results"].items()
                }
                cases[f"{title} {place}"] = {"method": case["method"], "results": results}
    return cases


@pytest.fixture(scope="module")
def cases(stage: Stage) -> Cases:
    served = Served(stage)
    found = dict[str, Mapping[str, Any]]()
    known = served.cases("all", ODD)

    @settings(
        max_examples=ARBITRARY,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(lists=LISTS)
    def draw(lists: dict[str, list[Any]]) -> None:
        found.update(served.cases(f"arbitrary {len(found)}", lists))

    draw()
    return {**_one_by_one(known), **known, **found}


def refusals(command: list[str], cases: Cases) -> Any:
    """Why each client, or the only one, refuses a list; an empty text if it accepts it."""
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_answers(answers: Mapping[str, Mapping[str, str]], cases: Cases) -> None:
    """Fail with every list that a client refuses, and why it does."""
    for complaints in answers.values():
        assert set(complaints) == set(cases)
    refused = []
    for client, complaints in answers.items():
        for title, text in complaints.items():
            if text:
                refused.append(f"{client}, {title}: {text}\n{json.dumps(cases[title])[:1000]}")
    if refused:
        pytest.fail("\n".join(refused))


@pytest.mark.node
def test_official_typescript_clients_accept_every_list(cases: Cases):
    command = [
        node_program(),
        str(HERE / "official_clients.mjs"),
        str(NODE_FOLDER / "node_modules"),
    ]
    answers = refusals(command, cases)
    assert len(answers) == 3
    check_answers(answers, cases)


def test_installed_python_client_accepts_every_list(cases: Cases):
    complaints = refusals([sys.executable, str(HERE / "official_client.py")], cases)
    check_answers({"Python": complaints}, cases)


@pytest.mark.older_sdk
def test_python_client_1_accepts_every_list(cases: Cases):
    complaints = refusals([str(OLDER_SDK.found), str(HERE / "official_client.py")], cases)
    check_answers({"Python": complaints}, cases)


@pytest.mark.node
def test_official_clients_refuse_what_servers_list(stage: Stage):
    """The corpus is worth something: as it is, each of these costs a host on TypeScript 1.x its
    list."""
    refused = [
        "no_type",
        "result_dangling_reference",
        "title_number",
        "icons_object",
        "annotations_text",
        "meta_list",
    ]
    odd = {tool["name"]: tool for tool in ODD["tool"]}
    cases = {
        name: {
            "method": "tools/list",
            "results": {version: {"tools": [odd[name]]} for version in VERSIONS},
        }
        for name in refused
    }
    command = [
        node_program(),
        str(HERE / "official_clients.mjs"),
        str(NODE_FOLDER / "node_modules"),
    ]
    complaints = refusals(command, cases)["TypeScript 1.x"]
    assert [name for name in refused if not complaints[name]] == []
