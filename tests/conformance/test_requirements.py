"""The scenarios that each revision requires, through the HTTP door; what we do not offer is listed
beside this file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.suite import HERE, Outcome, run

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.one_database]

BOTH = {
    "completion-complete",
    "dns-rebinding-protection",
    "json-schema-2020-12",
    "prompts-get-embedded-resource",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-with-image",
    "prompts-list",
    "resources-list",
    "resources-read-binary",
    "resources-read-text",
    "resources-templates-read",
    "server-sse-multiple-streams",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-error",
    "tools-call-image",
    "tools-call-mixed-content",
    "tools-call-simple-text",
    "tools-call-with-progress",
    "tools-list",
}
PASS = {
    "2025-11-25": BOTH
    | {
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "ping",
        "server-initialize",
        "server-session-lifecycle",
        "tools-call-elicitation",
        "tools-call-sampling",
        "logging-set-level",
        "resources-subscribe",
        "resources-unsubscribe",
        "tools-call-with-logging",
    },
    "2026-07-28": BOTH
    | {
        "input-required-result-basic-elicitation",
        "input-required-result-basic-list-roots",
        "input-required-result-basic-sampling",
        "input-required-result-capability-check",
        "input-required-result-ignore-extra-params",
        "input-required-result-missing-input-response",
        "input-required-result-multi-round",
        "input-required-result-multiple-input-requests",
        "input-required-result-non-tool-request",
        "input-required-result-request-state",
        "input-required-result-result-type",
        "input-required-result-tampered-state",
        "input-required-result-unsupported-methods",
        "input-required-result-validate-input",
        "http-custom-header-server-validation",
        "caching",
        "sep-2164-resource-not-found",
    },
}
TASKS = {
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-lifecycle",
    "tasks-mrtr-composition",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-wire-fields",
}
SKIPPED_BY_THE_SUITE = "tasks-status-notifications"
# Not required; the lists of expected failures name the checks and the reasons.
NOT_PASSED_BY_DESIGN = {"2025-11-25": {"server-sse-polling"}, "2026-07-28": {"server-stateless"}}


@pytest.fixture(scope="module")
def outcome(site, token) -> Callable[[str], Outcome]:
    """Each revision's set, run once."""
    done: dict[str, Outcome] = {}

    def of(revision: str) -> Outcome:
        if revision not in done:
            baseline = HERE / f"expected-failures-{revision}.yml"
            done[revision] = run(
                site.url(), token, "--requirements", revision, "--expected-failures", str(baseline)
            )
        return done[revision]

    return of


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("revision", sorted(PASS))
def test_everything_required_passes_but_what_is_listed(outcome, revision):
    found = outcome(revision)
    assert found.code == 0, found.printed[found.printed.find("=== SUMMARY") :]
    assert found.passed() >= PASS[revision], PASS[revision] - found.passed()
    assert found.lines.keys() - found.passed() == NOT_PASSED_BY_DESIGN[revision]


def test_nine_of_the_ten_task_scenarios_pass_and_the_suite_skips_the_tenth(outcome):
    lines = outcome("2026-07-28").lines
    assert {name for name in lines if name.startswith("tasks-")} == TASKS | {SKIPPED_BY_THE_SUITE}
    for scenario in TASKS:
        assert {line.split(" ")[0] for line in lines[scenario]} == {"SUCCESS"}, (
            scenario,
            lines[scenario],
        )
    assert lines[SKIPPED_BY_THE_SUITE] == ["SKIPPED tasks-status-notifications"]


@pytest.mark.exhaustive
def test_the_lanes_change_no_line(outcome, site, site_without_lanes, token):
    """The same checks with the same verdicts when every request goes through the SDK."""
    site_without_lanes.wait_known(token)
    revision = "2026-07-28"
    slow = dict(run(site_without_lanes.url(), token, "--requirements", revision).lines)
    fast = dict(outcome(revision).lines)
    for scenario in [
        name for name in fast.keys() | slow.keys() if fast.get(name) != slow.get(name)
    ]:
        # The suite gives some checks a time that a busy machine exceeds: what then differs is
        # looked at by itself.
        for found, at in ((fast, site), (slow, site_without_lanes)):
            alone = run(at.url(), token, "--scenario", scenario, "--spec-version", revision)
            found[scenario] = alone.lines.get(scenario, [])
    assert slow == fast
    assert len(slow) > len(PASS[revision])


@pytest.mark.exhaustive
def test_a_server_that_is_not_there_fails(token):
    """That a run can fail at all."""
    found = run("http://127.0.0.1:9/mcp", token, "--scenario", "tools-list")
    assert found.code != 0
    assert "tools-list" not in found.passed()
