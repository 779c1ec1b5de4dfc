"""The hosts' own programs: connected by `manage.py connect`, and through us to tools, people,
prompts and resources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import ApprovalRequest, HostSession
from mcpregistry.services.servers.connections import forget_stale
from mcpregistry.services.upkeep.invariants import calls as invariants
from tests.e2e.hosts.conftest import WAYS, Walked
from tests.e2e.hosts.models import DONE
from tests.e2e.hosts.programs import PROGRAMS, Program

# The gate runs Gemini CLI, the smallest of them. Its tests look at one run of it, so ten cost as
# much as one.
pytestmark = [pytest.mark.e2e, pytest.mark.one_database, pytest.mark.exhaustive(but=("gemini",))]


def of(programs: Iterable[Program]) -> Any:
    """For each of these hosts, where it is installed."""
    slugs = [
        pytest.param(program.slug, marks=pytest.mark.host(program.slug)) for program in programs
    ]
    return pytest.mark.parametrize("walked", slugs, indirect=True)


each = of(PROGRAMS.values())


@of(program for program in PROGRAMS.values() if program.lists)
def test_the_hosts_own_command_lists_all_entries_as_connected(walked: Walked) -> None:
    assert walked.listing is not None
    for key in WAYS:
        assert re.search(walked.program.listed.format(key=key), walked.listing.text), (
            walked.listing.text
        )


@each
def test_a_turn_calls_over_both_doors_and_its_calls_are_recorded(walked: Walked) -> None:
    assert walked.turn.code == 0, walked.turn.text
    assert DONE in walked.turn.text
    for way, origin in (("piped", "stdio"), ("asked", "http"), ("named", "http")):
        call = walked.call(way)
        assert (call.state, call.origin) == ("succeeded", origin)
        assert call.host_name.startswith(walked.program.named)
        assert walked.marks[way] in walked.told(way)


@each
def test_the_entries_are_known_in_what_the_host_has_written_and_taken_out(walked: Walked) -> None:
    assert (
        re.findall(r": (connected|stale.*|leads.*)$", walked.known, re.MULTILINE)
        == ["connected"] * 3
    ), walked.known
    assert ["was removed from" in said for said in walked.removed] == [True] * 3, walked.removed


@each
def test_a_held_call_is_answered_once_a_person_has_approved(walked: Walked) -> None:
    call = walked.call("held")
    assert (call.outcome, call.state) == ("ask", "succeeded"), walked.turn.text
    assert walked.marks["held"] in walked.told("held")


@each
def test_the_model_reads_why_a_call_was_refused(walked: Walked) -> None:
    assert walked.call("never").state == "denied"
    assert "A rule denies this call" in walked.told("never")


@each
def test_the_model_reads_that_a_call_is_pending_and_gets_the_result_when_it_asks_again(
    walked: Walked,
) -> None:
    request = ApprovalRequest.objects.get(call=walked.call("later"))
    first = walked.told("later")
    second = walked.told("later", last=True)
    for needed in (request.pk, f"/approvals/{request.pk}", "again"):
        assert needed in first
    assert walked.marks["later"] in second
    assert request.call.state == "succeeded"


@of(program for program in PROGRAMS.values() if program.asks)
def test_an_answer_that_comes_without_a_person_is_none_and_the_call_waits_on(
    walked: Walked,
) -> None:
    """They say *cancel* or *decline* immediately, and continue to wait. Hosts of the modern era
    come back with that, so their call was let go; older ones are held with progress.
    """
    call = walked.call("confirmed")
    assert call.approval.waiting_as == (
        "away" if walked.program.era == "2026-07-28" else "progress"
    )
    assert (call.outcome, call.state) == ("ask", "succeeded"), walked.turn.text
    assert walked.marks["confirmed"] in walked.told("confirmed")


@of(program for program in PROGRAMS.values() if program.reads)
def test_a_resource_is_read_by_the_hosts_own_tool(walked: Walked) -> None:
    assert walked.calls(tool_name="resource:docs://guide").state == "succeeded", walked.turn.text
    assert "docs://guide of somebody" in walked.play.results[-1].text


@of(program for program in PROGRAMS.values() if program.prompt)
def test_a_prompt_begins_a_turn_as_a_slash_command(walked: Walked) -> None:
    assert walked.calls(tool_name="prompt:review").state == "succeeded", walked.turn.text
    assert "Review a.py in a" in json.dumps(walked.play.bodies)


@each
def test_a_host_speaks_the_era_that_is_written_of_it(walked: Walked) -> None:
    """A session is what hosts of the older era have; over HTTP it says which version was agreed
    on."""
    of_host = HostSession.objects.filter(agent_slug=walked.program.slug)
    spoken = {*of_host.values_list("protocol_version", flat=True)}
    assert spoken == ({walked.program.era} if walked.program.era < "2026" else set())


@each
def test_nothing_of_a_host_is_left_and_the_records_hold(walked: Walked) -> None:
    assert walked.turn.left == []
    assert walked.listing is None or walked.listing.left == []
    forget_stale(timezone.now())  # the clock's work: some hosts kill what they have started
    assert [
        found.rule for found in invariants.check_invariants(timezone.now()) if found.violations
    ] == []
