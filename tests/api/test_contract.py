"""Generated requests against the OpenAPI document: whatever comes in, what goes out is what it
declares."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from mcpregistry.models import Endpoint
from tests.api.conftest import ROOT, new_agent, new_call, new_server, new_tool

pytestmark = [pytest.mark.attack, pytest.mark.one_database]

load_all_checks()
# Those that look at one answer. The stateful ones need links; what they would find, the tests of
# roles do.
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "allow_header_conformance",
)
# No engine runs here, so these rightly answer 503; test_calls.py makes real calls.
NEEDS_ENGINE = {
    f"POST {ROOT}/tools/{{name}}/call",
    f"GET {ROOT}/endpoints/{{slug}}/tools",
    f"GET {ROOT}/approvals/{{approval_id}}/result",
}
# The body is a file as it stands: every text is one, a number written out as well.
TAKES_ANY_TEXT = {f"POST {ROOT}/config/import"}


@pytest.fixture
def furnished(live_db: None, caller: Callable[[str], Any]) -> str:
    """A small site, so that answers have something to say; gives the token of an admin."""
    new_tool(new_server("0"), "0")
    new_tool(new_server("a"), "a", approve=False)
    new_agent("0")
    Endpoint.objects.create(slug="0")
    new_call(0, id="0", arguments="{}", result="[]")
    return caller("admin").token


@pytest.mark.exhaustive(but=("one of every eighth operation",))
@pytest.mark.parametrize(
    ("mode", "examples", "step"),
    [
        (GenerationMode.POSITIVE, 1, 8),
        (GenerationMode.POSITIVE, 5, 1),
        (GenerationMode.NEGATIVE, 5, 1),
    ],
    ids=["one of every eighth operation", "positive-5", "negative-5"],
)
def test_answers_are_those_that_the_document_declares(furnished, mode, examples, step):
    document = schemathesis.openapi.from_wsgi(f"{ROOT}/openapi.json", get_wsgi_application())
    headers = {"Authorization": f"Bearer {furnished}"}
    broken = {}
    for found in islice(document.get_all_operations(), 0, None, step):
        operation = found.ok()
        try:
            _try(operation, mode, examples, headers)
        except BaseException as error:  # hypothesis groups failures; all operations are to be heard
            broken[operation.label] = error
    assert not broken, "\n\n".join(f"{label}: {error!r}" for label, error in broken.items())


def _checks(label: str) -> list[Any]:
    waived = {
        *(("not_a_server_error",) if label in NEEDS_ENGINE else ()),
        *(("negative_data_rejection",) if label in TAKES_ANY_TEXT else ()),
    }
    return CHECKS.get_by_names([name for name in CHECKED if name not in waived])


def _try(operation: Any, mode: GenerationMode, examples: int, headers: dict[str, str]) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case: schemathesis.Case) -> None:
        response = case.call_and_validate(headers=headers, checks=_checks(operation.label))
        assert response.status_code != 500

    answers()
