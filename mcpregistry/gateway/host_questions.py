"""What a host can do, as it says with each request, and questions to the person who sits at it.

Older era: ``elicitation/create`` on the live connection, answered while the call waits. Modern era
(MCP 2026-07-28, multi round-trip requests): our answer to the call is ``build_input_required``, and
the host repeats the call with the person's answer and the ``requestState`` that we sent.

That state is in the hands of whoever calls, so the SDK seals it (AES-256-GCM under the site's key
ring, which every process has): bound to the agent, the endpoint, the tool and the arguments, good
for ten minutes. Each state is taken once, in the database, so that a copy of it is refused by every
process.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from mcp import types as t
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest, HostReply, Prompt
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import (
    APPS,
    TASKS,
    Ask,
    Forwarding,
    HostUnansweredError,
    attribute_question,
    select_forwardable_capabilities,
)
from mcpregistry.domain.calls.hosts import find_host_limits
from mcpregistry.domain.calls.wait_strategy import list_question_modes
from mcpregistry.domain.errors import Conflict, InputNeeded
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import clean_text, hash_parts
from mcpregistry.gateway.caller_identity import LEFT_KEY, Caller, find_caller
from mcpregistry.gateway.live_calls import NO_ANSWER, PATIENCE
from mcpregistry.gateway.sdk.requests import get_request_channel
from mcpregistry.services.records import idempotency

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]

SAID = "slipsnisse/said"  # in a call's _meta: what the agent tells those who decide
_MOST_ROUNDS = 10  # of one call of an older host
_KEY = "confirm"  # of our one question in ``inputRequests``
# protocol versions that brought them; they sort as dates
_FIRST_FORMS = "2025-06-18"
_FIRST_URLS = "2025-11-25"
_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "confirm": {
            "type": "boolean",
            "title": "Run this call",
            "description": "Select this to let the call run.",
        }
    },
    "required": ["confirm"],
}


def make_state_boundary(fixed: Caller | None) -> RequestStateBoundary:
    """Seals and opens every ``requestState`` at the wire; ``fixed`` is the caller behind stdio."""

    def name_principal(ctx: Context) -> str:
        caller = find_caller(ctx, fixed)
        return f"{caller.agent}@{caller.endpoint}"

    security = RequestStateSecurity(
        keys=list(settings.SLIPSNISSE_KEYS.values()), bind_principal=name_principal
    )
    return RequestStateBoundary(security, default_audience="slipsnisse")


async def read_host(ctx: Context, caller: Caller) -> CallHost:
    """The calling host's abilities. Raises MCPError -32602 for a state that was used before."""
    said = ctx.session.client_params
    meta = ctx.meta or {}
    host = build_declared_host(
        ctx.protocol_version,
        said.client_info if said else None,
        ctx.session.client_capabilities,
        caller.origin,
    )
    back = not host.mrtr and ctx.session.can_send_request
    asks = bool(host.elicit) and back
    return replace(
        host,
        progress=meta.get("progress_token") is not None,
        ask=_make_prompt_ask(ctx) if asks else None,
        reply=await _read_reply(ctx) if host.mrtr else None,
        said=read_agent_message(meta),
        forwarding=_build_forwarding(ctx, host, back=back),
        left=ctx.request.scope.get(LEFT_KEY) if ctx.request is not None and not host.mrtr else None,
    )


def build_declared_host(
    version: str,
    info: t.Implementation | None,
    declared: t.ClientCapabilities | None,
    transport: str,
) -> CallHost:
    """What a host says of itself with every request alike; ``version`` is that of the protocol."""
    modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
    said = declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {}
    if not modern:
        extensions = said.pop("extensions", None) or {}
        said["extensions"] = {APPS: extensions[APPS]} if APPS in extensions else {}
    return CallHost(
        name=clean_text(info.name, 100) if info else "",
        version=clean_text(info.version, 100) if info else "",
        transport=transport,
        tasks=_is_task_capable(version, declared),
        elicit=_find_elicitation_modes(version, info, declared),
        mrtr=modern,
        forwarding=Forwarding(select_forwardable_capabilities(said), rounds=modern),
    )


def read_agent_message(meta: Mapping[str, Any]) -> str:
    """What the agent itself says about the call, for those who decide."""
    said = meta.get(SAID)
    return clean_text(said, 2000) if isinstance(said, str) else ""


def can_use_tasks(ctx: Context) -> bool:
    """Whether this very request declares the Tasks extension."""
    return _is_task_capable(ctx.protocol_version, ctx.session.client_capabilities)


def _is_task_capable(version: str, declared: t.ClientCapabilities | None) -> bool:
    """An older wire cannot carry a task, whatever the host declares."""
    modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
    return modern and declared is not None and TASKS in (declared.extensions or {})


def build_host_question(
    outcome: CallOutcome, entry: CatalogueEntry | None, address: str
) -> dict[str, Any] | None:
    """The result object that asks the host something, if the call came to that. ``address``: where
    other processes reach this one."""
    if outcome.live:
        return _build_live_question(outcome, address)
    if outcome.prompt is not None:
        return build_input_required(outcome.prompt)
    if (
        entry is not None
        and outcome.result is not None
        and outcome.result.get("resultType") == "input_required"
    ):
        return build_server_questions(outcome.result, entry.offer.server.slug)
    return None


def build_server_questions(result: Mapping[str, Any], server: str) -> dict[str, Any]:
    """A server's questions, as they go to the host: who asks is said, and the server's state is
    sealed on its way."""
    requests = result.get("inputRequests")
    answer: dict[str, Any] = {"resultType": "input_required"}
    shown = (
        {key: attribute_question(request, server) for key, request in requests.items()}
        if isinstance(requests, dict)
        else {}
    )
    if shown:
        answer["inputRequests"] = shown
    if isinstance(theirs := result.get("requestState"), str):
        answer["requestState"] = json.dumps({"kind": "server", "server": server, "state": theirs})
    return answer


def _build_live_question(outcome: CallOutcome, address: str) -> dict[str, Any]:
    """A question of a call that is still out, which the host's answer goes on with; the server is
    named in it already."""
    assert outcome.result is not None
    return outcome.result | {
        "requestState": json.dumps({"kind": "live", "nonce": outcome.live, "address": address})
    }


def _read_answers(params: Mapping[str, Any]) -> dict[str, Any]:
    """The host's answers to a server's questions. Our own question's answer stays here."""
    answers: dict[str, Any] = {}
    state = _parse_state(params)
    if state is None or state.get("kind") == "server":
        if isinstance(responses := params.get("inputResponses"), dict):
            answers["inputResponses"] = responses
        if state is not None:
            answers["requestState"] = state["state"]
    return answers


def find_waiting_call(params: Mapping[str, Any]) -> tuple[str, str]:
    """Return which waiting call the request's answers are for, and the address of the process that
    has it; empty if for none."""
    state = _parse_state(params)
    if state is None or state.get("kind") != "live":
        return "", ""
    return str(state["nonce"]), str(state["address"])


def build_input_required(prompt: Prompt) -> dict[str, Any]:
    """The result object of a call that waits for the person at the host; its state is sealed on its
    way out."""
    if prompt.url:
        params: dict[str, Any] = {"mode": "url", "message": prompt.message, "url": prompt.url}
    else:
        params = {"mode": "form", "message": prompt.message, "requestedSchema": dict(_FORM)}
    state = {
        "kind": "question",
        "request": prompt.request,
        "nonce": secrets.token_hex(16),
        "asked": time.time(),
    }
    return {
        "resultType": "input_required",
        "inputRequests": {_KEY: {"method": "elicitation/create", "params": params}},
        "requestState": json.dumps(state | ({"url": True} if prompt.url else {})),
    }


def _find_elicitation_modes(
    version: str, info: t.Implementation | None, declared: t.ClientCapabilities | None
) -> frozenset[str]:
    """ "form" and "url", as far as this protocol version has them. ``{}`` is an older way to say
    "form"."""
    found = declared.elicitation if declared else None
    if found is None or version < _FIRST_FORMS:
        return frozenset()
    modes = {"form"} if found.form is not None or found.url is None else set()
    if found.url is not None and version >= _FIRST_URLS:
        modes.add("url")
    return list_question_modes(modes, find_host_limits(info.name if info else ""))


# The modern era


async def _read_reply(ctx: Context) -> HostReply | None:
    """The answer that a repeated call brings to our question, or None when it brings none."""
    params = ctx.params or {}
    state = _read_own_state(params)
    answers = params.get("inputResponses")
    answer = answers.get(_KEY) if state is not None and isinstance(answers, dict) else None
    if state is None or not isinstance(answer, dict):
        return None
    await _take_state(state)
    return _make_reply(
        Prompt(state["request"], "", "url" if state.get("url") else ""),
        answer,
        time.time() - state["asked"],
    )


def _read_own_state(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our own question's state, opened by the boundary; None when there is none, or it is somebody
    else's."""
    state = _parse_state(params)
    return state if state is not None and state.get("kind") == "question" else None


def _parse_state(params: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        state = json.loads(params.get("requestState") or "null")
    except ValueError:
        return None
    return state if isinstance(state, dict) else None


async def _take_state(state: Mapping[str, Any]) -> None:
    """Once only, over all processes."""
    request = state["request"]
    try:
        await db_call(
            idempotency.claim,
            caller=f"question:{request}",
            key=state["nonce"],
            fingerprint=hash_parts(request),
        )
    except Conflict:
        # In the SDK's own words for every other bad state: which rule refused it is nobody's
        # business.
        data = {"reason": "invalid_request_state"}
        raise MCPError(t.INVALID_PARAMS, "Invalid or expired requestState", data) from None


# The older era


def _build_forwarding(ctx: Context, host: CallHost, *, back: bool) -> Forwarding:
    """What goes on to servers. An older host can bear questions where there is a way back to it."""
    if host.mrtr:
        return replace(host.forwarding, answers=_read_answers(ctx.params or {}))
    if back and host.forwarding.questions:
        return replace(host.forwarding, ask=_make_server_ask(ctx))
    return host.forwarding.drop_questions()


def _make_server_ask(ctx: Context) -> Ask:
    """Puts a server's question to the host as a request of ours, on the stream of its own call."""

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        channel = get_request_channel(ctx)
        try:
            return await channel.send_raw_request(method, dict(params), {"timeout": PATIENCE})
        except MCPError as error:
            raise HostUnansweredError(
                f"The host did not answer: {error.error.message}"[:500]
            ) from None
        except Exception:
            log.info("question.not_put", method=method, exc_info=True)
            raise HostUnansweredError(NO_ANSWER) from None

    return ask


async def ask_all(requests: Mapping[str, Any], host: CallHost, server: str) -> dict[str, Any]:
    """A modern server's questions to a host of the older era, one after the other: its answers.
    Raises Unanswered."""
    answers: dict[str, Any] = {}
    assert host.forwarding.ask is not None
    for key, request in requests.items():
        asked = attribute_question(request, server)
        params = asked.get("params")
        method = str(asked.get("method"))
        answers[key] = await host.forwarding.ask(method, params if isinstance(params, dict) else {})
    return answers


def _make_prompt_ask(ctx: Context) -> Any:
    async def ask(prompt: Prompt) -> HostReply:
        began = time.monotonic()
        try:
            answer = await (_ask_by_url(ctx, prompt) if prompt.url else _ask_by_form(ctx, prompt))
        except Exception:  # it said that it could; whoever cannot after all has nobody to ask
            log.info("question.not_asked", exc_info=True)
            return HostReply(
                prompt.request, "cancel", confirmed=False, seconds=0.0, url=bool(prompt.url)
            )
        found = {"action": answer.action, "content": answer.content}
        return _make_reply(prompt, found, time.monotonic() - began)

    return ask


async def _ask_by_form(ctx: Context, prompt: Prompt) -> t.ElicitResult:
    return await ctx.session.elicit_form(
        prompt.message, dict(_FORM), related_request_id=ctx.request_id
    )


async def _ask_by_url(ctx: Context, prompt: Prompt) -> t.ElicitResult:
    return await ctx.session.elicit_url(
        prompt.message, prompt.url, prompt.request, related_request_id=ctx.request_id
    )


def _make_reply(prompt: Prompt, answer: Mapping[str, Any], seconds: float) -> HostReply:
    content = answer.get("content")
    confirmed = isinstance(content, dict) and content.get("confirm") is True
    return HostReply(
        prompt.request, str(answer.get("action")), confirmed, seconds, url=bool(prompt.url)
    )


async def run_rounds(engine: Engine, request: CallRequest, outcome: CallOutcome) -> CallOutcome:
    """A modern server's rounds with a host of the older era: it is asked, and the call made again
    with its answers.

    Each round is a call with a record and a decision of its own, as of a host that repeats it
    itself. A host that does not answer ends it: the server is not asked again, and the caller is
    told.
    """
    rounds = 0
    while (result := outcome.result) is not None and result.get("resultType") == "input_required":
        rounds += 1
        requests = result.get("inputRequests")
        state = result.get("requestState")
        entry = request.catalogue.find(request.name)
        if rounds > _MOST_ROUNDS or entry is None:
            return _make_unanswered_outcome(
                outcome, f"The server sent questions more than {_MOST_ROUNDS} times in a row."
            )
        try:
            answers = await ask_all(
                requests if isinstance(requests, dict) else {},
                request.host,
                entry.offer.server.slug,
            )
        except HostUnansweredError as reason:
            return _make_unanswered_outcome(outcome, str(reason))
        given = {"inputResponses": answers} | (
            {"requestState": state} if isinstance(state, str) else {}
        )
        forwarding = replace(request.host.forwarding, answers=given)
        outcome = await engine.call(
            replace(request, call_id="", host=replace(request.host, forwarding=forwarding))
        )
    return outcome


def _make_unanswered_outcome(outcome: CallOutcome, reason: str) -> CallOutcome:
    error = InputNeeded(
        f"The server requires input that it did not receive. {reason}",
        remedy="Repeat the call to be asked again.",
    )
    return replace(
        outcome,
        state=InvocationState.TOOL_ERROR,
        result=None,
        error_code=error.code,
        message=error.message,
        remedy=error.remedy,
    )
