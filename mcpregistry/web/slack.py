"""Where Slack posts what people press: ``/hooks/slack/<channel>/``, verified, once, within three
seconds.

Slack shows no answer to a button, so what the person must know is whispered to them; a dialog shows
its refusals itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from mcpregistry.db import db_call
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.notifications.events import is_signed_by_slack
from mcpregistry.domain.notifications.slack import APPROVE, DENY, REASON, build_reason_view, escape
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import Channel
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.notifications import slack
from mcpregistry.services.notifications.senders import call_slack
from mcpregistry.services.notifications.slack import Press

log = structlog.get_logger(__name__)

_MOST_BYTES = 256 * 1024
_WHISPER_SECONDS = 2.0  # Slack waits three for our answer


@csrf_exempt
@require_POST
async def interact(request: HttpRequest, uid: Any) -> HttpResponse:
    """Answer one signed interaction. 401: not from Slack or too old; 409: it came before; 400: not
    understood."""
    channel = await db_call(slack.find_channel, uid)
    if channel is None:
        return HttpResponse(status=404)
    if int(request.headers.get("Content-Length") or 0) > _MOST_BYTES:
        return HttpResponse(status=413)
    body = request.body
    signature = request.headers.get("X-Slack-Signature", "")
    if not _is_genuine(request, body, signature, await db_call(slack.get_signing_secret, channel)):
        log.warning("slack_refused", channel=channel.name)
        return HttpResponse(
            "The signature is not valid, or the clocks differ by more than five minutes.",
            status=401,
        )
    try:
        await db_call(
            slack.take_once,
            channel=channel,
            signature=signature,
            fingerprint=compute_keyed_digest("slack", body.decode("latin-1")),
        )
    except SlipsnisseError:
        return HttpResponse("This request was already received.", status=409)
    payload = _payload(request)
    return (
        await _handle_interaction(channel, payload)
        if payload
        else HttpResponse("The payload is not supported.", status=400)
    )


def _is_genuine(request: HttpRequest, body: bytes, signature: str, secret: str) -> bool:
    seconds = request.headers.get("X-Slack-Request-Timestamp", "")
    return is_signed_by_slack(
        secret=secret, seconds=seconds, signature=signature, body=body, now=time.time()
    )


def _payload(request: HttpRequest) -> dict[str, Any]:
    try:
        payload = json.loads(str(request.POST.get("payload", "")))
    except (ValueError, RecursionError):
        return {}
    return payload if isinstance(payload, dict) else {}


async def _handle_interaction(channel: Channel, payload: dict[str, Any]) -> HttpResponse:
    if payload.get("type") == "view_submission":
        return await _handle_reason(channel, payload)
    if payload.get("type") == "block_actions":
        await _handle_press(channel, payload)
    return HttpResponse(status=200)  # kinds that we never send are none of our business


async def _handle_press(channel: Channel, payload: dict[str, Any]) -> None:
    actions = payload.get("actions")
    action = _dict(actions[0] if isinstance(actions, list) and actions else None)
    press = _press(payload, _text(action, "value"), approve=action.get("action_id") == APPROVE)
    try:
        if action.get("action_id") == APPROVE:
            told = await db_call(slack.decide, channel=channel, press=press)
        elif action.get("action_id") == DENY:
            told = await _ask_reason(channel, press, _text(payload, "trigger_id"))
        else:
            return  # "Open the page" only tells us that it was pressed
    except SlipsnisseError as refusal:
        told = str(refusal)
    if told:
        await _send_ephemeral(channel, press, told)


async def _ask_reason(channel: Channel, press: Press, trigger: str) -> str:
    tool = await db_call(slack.find_pressed_tool, channel=channel, press=press)
    view = build_reason_view(press.value, clean_text(tool, 200))
    answer = await _call(channel, "views.open", {"trigger_id": trigger, "view": view})
    return (
        ""
        if answer
        else "Slack did not open the dialog. Press Reject again, or open the page of the call."
    )


async def _handle_reason(channel: Channel, payload: dict[str, Any]) -> HttpResponse:
    view = _dict(payload.get("view"))
    if view.get("callback_id") != DENY:
        return HttpResponse(status=200)
    field = _dict(_dict(_dict(_dict(view.get("state")).get("values")).get(REASON)).get(REASON))
    press = _press(
        payload, _text(view, "private_metadata"), approve=False, reason=_text(field, "value")
    )
    try:
        await db_call(slack.decide, channel=channel, press=press)
    except SlipsnisseError as refusal:
        return JsonResponse({"response_action": "errors", "errors": {REASON: str(refusal)[:2_000]}})
    return HttpResponse(status=200)


def _press(payload: dict[str, Any], value: str, *, approve: bool, reason: str = "") -> Press:
    user = _dict(payload.get("user"))
    team = _text(user, "team_id") or _text(_dict(payload.get("team")), "id")
    return Press(
        team=team[:30],
        member=_text(user, "id")[:30],
        value=value[:200],
        approve=approve,
        reason=reason,
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(of: dict[str, Any], name: str) -> str:
    value = of.get(name)
    return clean_text(value, 3_000) if isinstance(value, str) else ""


async def _send_ephemeral(channel: Channel, press: Press, text: str) -> None:
    await _call(
        channel,
        "chat.postEphemeral",
        {"channel": channel.room, "user": press.member, "text": escape(text)},
    )


async def _call(channel: Channel, method: str, payload: dict[str, Any]) -> bool:
    """Best effort: the decision itself never hangs on it."""
    try:
        async with asyncio.timeout(_WHISPER_SECONDS):
            answer = await call_slack(
                method, payload, access=channel.access, networks=tuple(channel.allowed_networks)
            )
    except (SlipsnisseError, TimeoutError) as error:
        log.warning(
            "slack_unreachable", channel=channel.name, method=method, cause=type(error).__name__
        )
        return False
    if answer.error:
        log.warning(
            "slack_answered_with_error", channel=channel.name, method=method, error=answer.error
        )
    return not answer.error
