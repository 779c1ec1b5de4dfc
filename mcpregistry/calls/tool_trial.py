"""One call of one tool, tried by a person from a page: the ordinary pipeline, and never twice for
one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.calls.idempotency_notes import write_key_note
from mcpregistry.calls.recorded_outcomes import build_recorded_outcome, load_outcome
from mcpregistry.db import db_call
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.servers.sessions import name_implicit_session
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.ids import make_ordered_id
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.records import idempotency


@dataclass(frozen=True, slots=True)
class ToolTrial:
    """What is tried: ``tool`` is its own name, ``key`` that of the form, which makes one call
    however often it is sent."""

    agent: str
    endpoint: str
    server: str
    tool: str
    kind: str
    arguments: Mapping[str, Any]
    key: str


async def try_tool(trial: ToolTrial, *, actor: str, requester: Requester) -> CallOutcome:
    """Make the call as this person, or say what became of the one that this form has made already.

    It waits for no people: a held call is answered at once with its ticket, and the form may be
    sent again. Raises ``SlipsnisseError`` for what cannot be asked at all.
    """
    use = {"caller": actor, "key": f"try:{trial.key}"}
    claim = await db_call(
        idempotency.claim, **use, fingerprint=_hash_trial(trial), call_id=make_ordered_id()
    )
    if claim.ended is not None:
        return await db_call(build_recorded_outcome, claim.ended)
    if claim.kept is not None:
        return await _read_earlier_outcome(claim.kept.call_id)
    try:
        outcome = await get_current_engine().call(
            _build_request(trial, actor, requester, claim.call_id)
        )
    except SlipsnisseError:
        await write_key_note(partial(db_call, idempotency.release, **use))
        raise
    if outcome.state in TERMINAL:
        # its record says the rest
        await write_key_note(partial(db_call, idempotency.keep, **use, status=200, body=""))
    else:
        await write_key_note(partial(db_call, idempotency.release, **use))
    return outcome


async def _read_earlier_outcome(call_id: str) -> CallOutcome:
    outcome = await db_call(load_outcome, call_id)
    if outcome is None:
        raise Conflict(
            "This form was already sent, and its call is no longer stored.",
            remedy="Open the page again.",
        )
    return outcome


def _build_request(trial: ToolTrial, actor: str, requester: Requester, call_id: str) -> CallRequest:
    catalogue = get_current_engine().get_catalogue(trial.endpoint, trial.agent).get_kind(trial.kind)
    name = actor[:100]
    return CallRequest(
        catalogue,
        f"{trial.server}::{trial.tool}",
        trial.arguments,
        "rest",
        host_name=name,
        call_id=call_id,
        host=CallHost(name=name, transport="rest", hold=0.0),
        requester=requester,
        session=name_implicit_session(trial.endpoint),
    )


def _hash_trial(trial: ToolTrial) -> str:
    return compute_keyed_digest(
        "trial",
        trial.agent,
        trial.endpoint,
        trial.server,
        trial.kind,
        trial.tool,
        encode_lossy_json(dict(trial.arguments)),
    )
