"""One call of one tool, tried by a person from a page: the ordinary pipeline, and never twice for
one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcpregistry.calls.call import CallOutcome, CallRequest, Host
from mcpregistry.calls.engine import current_engine
from mcpregistry.calls.keys import noted
from mcpregistry.calls.recorded import outcome_by_id, outcome_of_record
from mcpregistry.db import db_call
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.servers.sessions import nameless_session
from mcpregistry.domain.text.canonical import stored
from mcpregistry.ids import ordered_id
from mcpregistry.models.signing import keyed_digest
from mcpregistry.services.records import idempotency


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried: ``tool`` is its own name, ``key`` that of the form, which makes one call
    however often it is sent."""

    agent: str
    endpoint: str
    server: str
    tool: str
    kind: str
    arguments: Mapping[str, Any]
    key: str


async def tried(trial: Trial, *, actor: str, requester: Requester) -> CallOutcome:
    """Make the call as this person, or say what became of the one that this form has made already.

    It waits for no people: a held call is answered at once with its ticket, and the form may be
    sent again. Raises ``SlipsnisseError`` for what cannot be asked at all.
    """
    use = {"caller": actor, "key": f"try:{trial.key}"}
    claim = await db_call(
        idempotency.claim, **use, fingerprint=_fingerprint(trial), call_id=ordered_id()
    )
    if claim.ended is not None:
        return await db_call(outcome_of_record, claim.ended)
    if claim.kept is not None:
        return await _made_before(claim.kept.call_id)
    try:
        outcome = await current_engine().call(_request(trial, actor, requester, claim.call_id))
    except SlipsnisseError:
        await noted(partial(db_call, idempotency.release, **use))
        raise
    if outcome.state in TERMINAL:
        # its record says the rest
        await noted(partial(db_call, idempotency.keep, **use, status=200, body=""))
    else:
        await noted(partial(db_call, idempotency.release, **use))
    return outcome


async def _made_before(call_id: str) -> CallOutcome:
    outcome = await db_call(outcome_by_id, call_id)
    if outcome is None:
        raise Conflict(
            "This form was already sent, and its call is no longer stored.",
            remedy="Open the page again.",
        )
    return outcome


def _request(trial: Trial, actor: str, requester: Requester, call_id: str) -> CallRequest:
    catalogue = current_engine().catalogue(trial.endpoint, trial.agent).of_kind(trial.kind)
    name = actor[:100]
    return CallRequest(
        catalogue,
        f"{trial.server}::{trial.tool}",
        trial.arguments,
        "rest",
        host_name=name,
        call_id=call_id,
        host=Host(name=name, transport="rest", hold=0.0),
        requester=requester,
        session=nameless_session(trial.endpoint),
    )


def _fingerprint(trial: Trial) -> str:
    return keyed_digest(
        "trial",
        trial.agent,
        trial.endpoint,
        trial.server,
        trial.kind,
        trial.tool,
        stored(dict(trial.arguments)),
    )
