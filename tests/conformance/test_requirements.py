"""The scenarios that each revision requires, through the HTTP door; what we do not offer is listed beside this file."""

from __future__ import annotations

import pytest

from tests.conformance.suite import HERE, run

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.timeout(360)]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_everything_required_passes_but_what_is_listed(site, token, revision):
    baseline = HERE / f"expected-failures-{revision}.yml"
    outcome = run(site.url(), token, "--requirements", revision, "--expected-failures", str(baseline))
    assert outcome.code == 0, outcome.printed[outcome.printed.find("=== SUMMARY") :]
    assert {"tools-list", "tools-call-simple-text", "tools-call-with-progress"} <= outcome.passed()
    assert {"dns-rebinding-protection", "json-schema-2020-12", "server-sse-multiple-streams"} <= outcome.passed()


def test_a_server_that_is_not_there_fails(site, token):
    """That a run can fail at all."""
    outcome = run("http://127.0.0.1:9/mcp", token, "--scenario", "tools-list")
    assert outcome.code != 0
