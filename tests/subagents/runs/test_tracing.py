"""Requests of traced runs to providers are recorded, and no secret is in them."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.downstream.http_client.httpx_transport import ObservedRequest
from mcpregistry.models import Configuration
from subagents.domain.model_errors import ModelError
from subagents.llm.client import complete
from subagents.llm.model_values import ModelTarget
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from subagents.models import Provider, Run, TracedRequest
from subagents.runs.tracing import LONGEST_BODY, describe
from subagents.services import retention, runs
from tests.fault.database import failing
from tests.subagents.kit import Bench
from tests.subagents.llm.conftest import KEY, KINDS, target

pytestmark = pytest.mark.attack

PASSWORD = "pass+word/3f9c"
HEADER = "gateway-secret-81b"
FORMS = [
    form
    for secret in (KEY, PASSWORD, HEADER)
    for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode())
]


def leak() -> ObservedRequest:
    """A request and an answer with the secrets in all parts."""
    everywhere = " ".join([*FORMS, json.dumps({"key": KEY}), f"Bearer {KEY}"])
    return ObservedRequest(
        "POST",
        f"https://me:{quote(PASSWORD, safe='')}@api.example/v1/chat?key={KEY}&alt=json",
        [
            ("Authorization", f"Bearer {KEY}"),
            ("x-api-key", KEY),
            ("X-Gateway", HEADER),
            ("Accept", "application/json"),
            ("X-Note", f"sent with {KEY}"),
        ],
        body=json.dumps({"messages": [{"role": "user", "content": everywhere}]}).encode(),
        status=401,
        answer_headers=[
            ("content-type", "application/json"),
            ("set-cookie", "session=abcdef123"),
            ("x-your-key", KEY),
            ("x-echo", everywhere),
            ("location", f"https://api.example/?api_key={KEY}"),
        ],
        answer=bytearray(
            json.dumps({"error": {"message": f"Incorrect API key: {everywhere}"}}).encode()
        ),
    )


def leaking_target(key: str = KEY) -> ModelTarget:
    url = f"https://me:{quote(PASSWORD, safe='')}@api.example/v1"
    return ModelTarget(
        "compatible", "m", url, key, {"X-Gateway": HEADER, "Authorization": f"Bearer {key}"}
    )


def test_secrets_are_removed_from_every_part_of_a_trace() -> None:
    found = describe(leaking_target(), leak())
    text = json.dumps(found)
    assert [form for form in (*FORMS, "abcdef123") if form in text] == []
    assert found["headers"]["Accept"] == "application/json"
    assert (
        found["headers"]["Authorization"]
        == found["headers"]["x-api-key"]
        == found["headers"]["X-Gateway"]
        == "***"
    )
    assert found["url"].endswith("api.example/v1/chat?key=***&alt=json")
    assert (found["method"], found["status"]) == ("POST", 401)
    assert "Incorrect API key" in found["responseBody"]


def test_a_short_key_is_removed_from_bodies() -> None:
    observed = ObservedRequest("POST", "https://api.example/", [], body=b'{"user": "key7"}')
    assert "key7" not in json.dumps(describe(leaking_target("key7"), observed))


def test_a_secret_at_the_limit_of_a_body_is_not_cut_in_two() -> None:
    """What is left of a secret after a cut would not be recognised."""
    body = b"x" * (LONGEST_BODY - 5) + KEY.encode() + b"y" * 100
    found = describe(
        leaking_target(), ObservedRequest("POST", "https://api.example/", [], body=body)
    )
    assert KEY[:4] not in found["body"]
    assert len(found["body"]) < LONGEST_BODY + 100
    assert f"({len(body)} bytes in total)" in found["body"]


def test_bodies_that_are_not_text_are_described() -> None:
    observed = ObservedRequest("POST", "https://api.example/", [], body=b"\xff\x00\xed\xa0\x80")
    assert json.loads(json.dumps(describe(leaking_target(), observed)))["body"]


SCRIPT = {
    "plain": {"turns": [{"text": f"hello, your key is {KEY}"}]},
    "forbidden": {
        "turns": [{"text": "ok", "attempts": [{"status": 401, "message": f"bad key {KEY}"}]}]
    },
    "dropping": {"turns": [{"text": "ok", "attempts": [{"cut": 30}]}]},
}


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.one_database
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", sorted(SCRIPT))
async def test_the_requests_of_every_kind_of_provider_are_observed(kind: str, model: str) -> None:
    traced: list[dict[str, Any]] = []

    async def trace(target: ModelTarget, observed: Any) -> None:
        traced.extend(describe(target, each) for each in observed)

    with run_server(ScriptedModels(load(SCRIPT))) as base:
        asked = complete(
            target(kind, base, model), [{"role": "user", "content": f"mine is {KEY}"}], trace=trace
        )
        if model == "plain":
            await asked
        else:
            with pytest.raises(ModelError):
                await asked
    (found,) = traced
    assert KEY not in json.dumps(found)
    assert found["method"] == "POST"
    assert "mine is" in found["body"]
    if model != "dropping":
        assert found["status"] == (200 if model == "plain" else 401)
        assert "key" in found["responseBody"]
    assert (model == "dropping") == bool(found["error"])


async def test_only_a_traced_run_has_its_requests_recorded(bench: Bench, worker: Any) -> None:
    def prepare() -> tuple[Run, Run]:
        bench.expert(bench.model("m", {"text": f"it was {KEY}"}, repeat=True))
        provider = Provider.objects.get(slug="scripts")
        provider.key = KEY
        provider.save()
        arguments = {"text": f"I know {KEY}"}
        start = partial(runs.start, expert="expert", arguments=arguments, origin="command")
        return start(traced=True), start(traced=False)

    traced, other = await db_call(prepare)
    here = await worker()
    assert [(await here.drive(run)).state for run in (traced, other)] == ["done", "done"]
    rows = await db_call(lambda: list(TracedRequest.objects.values_list("run_id", "text")))
    assert [run for run, _ in rows] == [traced.pk]
    assert KEY not in rows[0][1]
    assert json.loads(rows[0][1])["status"] == 200


async def test_the_trace_goes_with_the_texts_of_its_run(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(bench.model("m", {"text": "because"}))
        return runs.start(
            expert="expert", arguments={"text": "why?"}, origin="command", traced=True
        )

    run = await db_call(prepare)
    here = await worker()
    await here.drive(run)
    keep = (await db_call(Configuration.load)).keep_payloads_days
    await db_call(retention.prune, timezone.now() + timedelta(days=keep - 1))
    assert await db_call(TracedRequest.objects.exists)
    await db_call(retention.prune, timezone.now() + timedelta(days=keep + 1))
    assert not await db_call(TracedRequest.objects.exists)
    assert await db_call(Run.objects.exists)


async def test_a_run_continues_if_its_trace_cannot_be_written(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(bench.model("m", {"text": "because"}))
        return runs.start(
            expert="expert", arguments={"text": "why?"}, origin="command", traced=True
        )

    run = await db_call(prepare)
    here = await worker()
    with failing("tracing.store"):
        assert (await here.drive(run)).answer == "because"
    assert not await db_call(TracedRequest.objects.exists)
