"""Every way in which a server speaks about a call is looked through: results, refusals,
progress."""

from __future__ import annotations

import threading

import pytest

from mcpregistry.domain.errors import ToolRefused
from mcpregistry.domain.text.redaction import Redactor
from mcpregistry.downstream.pool import redact

SECRET = "canary-4b1d9e77"
BLOTTER = Redactor([SECRET])


def test_a_refusal_keeps_its_code_and_loses_the_secret():
    error = ToolRefused(f"no: {SECRET}", rpc_code=-32001, data={"env": [SECRET]})
    shown, found = redact.clean_refusal(error, BLOTTER)
    assert (shown.message, shown.data, shown.rpc_code, found) == (
        "no: [secret]",
        {"env": ["[secret]"]},
        -32001,
        2,
    )
    plain = ToolRefused("no", rpc_code=1)
    assert redact.clean_refusal(plain, BLOTTER) == (plain, 0)


def test_progress_is_looked_through():
    told = []
    on_progress = redact.clean_progress(lambda *facts: told.append(facts), BLOTTER)
    on_progress(1, 2, f"with {SECRET}")
    on_progress(2, None, None)
    assert told == [(1, 2, "with [secret]"), (2, None, None)]
    assert redact.clean_progress(None, BLOTTER) is None


@pytest.mark.parametrize(("length", "elsewhere"), [(100, False), (4_000_000, True)])
async def test_a_large_answer_is_looked_through_off_the_loop(monkeypatch, length, elsewhere):
    threads = []
    clean = Redactor.clean
    monkeypatch.setattr(
        Redactor, "clean", lambda *args: threads.append(threading.get_ident()) or clean(*args)
    )
    result = {"content": [{"type": "text", "text": "x" * length + SECRET}]}
    shown, found = await redact.remove_secrets(result, BLOTTER)
    assert (found, shown["content"][0]["text"][-9:]) == (1, "x[secret]")
    assert (threads != [threading.get_ident()]) is elsewhere
