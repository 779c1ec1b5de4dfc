"""Secrets never reach a log, and each process writes where and how it should."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from controlplane.logging import is_static, readable, scrub
from mcpregistry.domain.text.redaction import MASK
from tests.externals import ROOT

_SECRET = "hunter2-very-secret"
REFUSED_LIST = f"""
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.core.handlers.exception import response_for_exception
from django.test import RequestFactory
request = RequestFactory().get('/admin/mcpregistry/server/?name__startswith={_SECRET}')
response_for_exception(request, DisallowedModelAdminLookup('Filtering by name__startswith not allowed'))
"""


def _run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    code = f"import django; django.setup(); import logging, structlog; log = structlog.get_logger('x')\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "key",
    [
        "authorization",
        "Authorization",
        "token",
        "access_token",
        "password",
        "env",
        "headers",
        "api_key",
        "X-Api-Key",
        "Set-Cookie",
        "client_secret",
    ],
)
def test_telling_keys_are_masked_at_any_depth(key):
    event = scrub(
        None, "info", {"event": "e", key: _SECRET, "deep": [{"inner": {key: {"v": _SECRET}}}]}
    )
    assert _SECRET not in json.dumps(event)
    assert event[key] == MASK


def test_harmless_keys_keep_their_values():
    event = {
        "event": "e",
        "path": "/mcp/default",
        "environment_count": 3,
        "input_tokens": 512,
        "tools": ["a", "b"],
        "ms": 1.5,
    }
    assert scrub(None, "info", dict(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        f"Bearer {_SECRET}",
        f"bearer  {_SECRET}",
        f"postgres://me:{_SECRET}@db/x",
        f"redis://:{_SECRET}@db/0",
    ],
)
def test_secrets_are_recognised_inside_free_text(text):
    assert _SECRET not in str(scrub(None, "info", {"event": f"could not use {text}"}))


def test_a_tower_of_nesting_ends_masked_instead_of_recursing():
    value: object = _SECRET
    for _ in range(2000):
        value = [value]
    assert _SECRET not in str(scrub(None, "info", {"event": "e", "value": value}))


@pytest.mark.attack
def test_records_are_json_on_stderr_without_queries_and_stdout_stays_empty():
    done = _run(
        f"log.info('hello', n=1); logging.getLogger('lib').warning('from %s', 'a library'){REFUSED_LIST}"
    )
    assert done.stdout == ""
    ours, theirs, *refused = [json.loads(line) for line in done.stderr.splitlines()]
    assert (ours["event"], ours["n"], ours["level"], ours["process"]) == (
        "hello",
        1,
        "info",
        "command",
    )
    assert theirs["event"] == "from a library"
    assert "/admin/mcpregistry/server/" in str(refused)
    assert _SECRET not in done.stderr


@pytest.mark.exhaustive
def test_tracebacks_are_scrubbed_too():
    done = _run(
        f"try: raise ValueError('Bearer {_SECRET}')\nexcept ValueError: log.exception('failed', password='{_SECRET}')"
    )
    assert _SECRET not in json.loads(done.stderr)["exception"].replace(
        f"raise ValueError('Bearer {_SECRET}')", ""
    )
    assert json.loads(done.stderr)["password"] == MASK


def shown(**event: Any) -> dict[str, Any]:
    about = {"timestamp": "2026-11-26T21:24:18Z", "process": "web", "logger": "x", "level": "info"}
    return dict(readable(None, "info", about | event))


def test_a_request_is_one_sentence_on_a_terminal():
    request = {"event": "GET", "path": "/admin/", "ms": 1234.5, "request_id": "r"}
    assert shown(**request, status=200) == {
        "timestamp": "21:24:18",
        "event": "GET /admin/: 200, 1,234 ms",
    }
    assert shown(**request, status=500)["request_id"] == "r"
    assert shown(**request, status=None)["event"] == "GET /admin/: no answer, 1,234 ms"


def test_an_event_is_words_on_a_terminal_and_says_nothing_empty():
    assert shown(event="server_tested", code="", server="git") == {
        "timestamp": "21:24:18",
        "event": "server tested",
        "server": "git",
    }
    assert shown(event="broker_away", level="warning")["logger"] == "x"
    assert shown(event="celery@vm ready.")["event"] == "celery@vm ready."


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        ({"path": "/static/a.js", "status": 200}, True),
        ({"path": "/static/a.js", "status": 404}, False),
        ({"path": "/admin/", "status": 200}, False),
    ],
)
def test_files_of_pages_are_not_listed_on_a_terminal(said: dict[str, Any], hidden: bool):
    assert is_static(logging.makeLogRecord({"msg": said})) is hidden


@pytest.mark.exhaustive
def test_text_format_and_level_follow_the_environment():
    done = _run(
        "log.info('quiet'); log.warning('loud')",
        SLIPSNISSE_LOG_FORMAT="text",
        SLIPSNISSE_LOG_LEVEL="WARNING",
    )
    assert "loud" in done.stderr
    assert "quiet" not in done.stderr
    assert not done.stderr.startswith("{")


@pytest.mark.attack
@pytest.mark.exhaustive
def test_the_query_of_a_refused_list_is_not_logged_as_text() -> None:
    done = _run(REFUSED_LIST, SLIPSNISSE_LOG_FORMAT="text")
    assert _SECRET not in done.stderr
    assert "/admin/mcpregistry/server/" in done.stderr
