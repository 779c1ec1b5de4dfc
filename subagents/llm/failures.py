"""What an adapter raised, as a ``ModelError`` in our words: without keys, with how long the
provider wants us to wait."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from subagents.domain.model_errors import ErrorKind, ModelError, classify
from subagents.llm.model_values import ModelTarget

_LONGEST_MESSAGE = 500
_OWN_WORDS = {
    ErrorKind.NETWORK: "The provider cannot be reached, or the connection was lost. Check the base URL of the provider, and that the provider is running.",
    ErrorKind.TIMEOUT: "The provider did not answer in time.",
}
_NO_MESSAGE = "The answer of the provider is not a message of a model. Check the base URL and the kind of the provider."
_LABEL = re.compile(r"^(?:litellm\.)?(?:\w+Error:|\w*Exception(?: \w+)? -|Timeout:) ?")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|File \"[^\"\n]+\", line \d+")
_OWN_FILE = re.compile(r"(?:/[^\s\"':]+)?/site-packages/[^\s\"':,)]+")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_RETRY_DELAY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')  # Google's RetryInfo, in the body


def translate_error(
    error: Exception, target: ModelTarget, answered: int | None = None
) -> ModelError:
    """Classes are not uniform over providers, so name, status and text are looked at together.

    ``answered``: the status that the provider has really sent. The library invents one for an
    answer that it cannot read.
    """
    status = getattr(error, "status_code", None)
    text = str(getattr(error, "message", "") or error)
    kind = classify(type(error).__name__, status if isinstance(status, int) else None, text)
    if answered == 200 and kind is ErrorKind.OVERLOADED:
        return ModelError(ErrorKind.UNREADABLE, _NO_MESSAGE, status=answered)
    words = _OWN_WORDS.get(kind) or _clean(text, target)
    # its own attribute; ``response`` has none
    headers = getattr(error, "litellm_response_headers", None) or {}
    return ModelError(
        kind, words, status=status, retry_after=retry_after(headers, text, now=time.time())
    )


def retry_after(headers: Mapping[str, str], body: str = "", *, now: float) -> float | None:
    """Seconds that the provider wants us to wait, or None where it does not say. ``now``: seconds
    since 1970.

    ``retry-after-ms`` (OpenAI, Azure) before ``Retry-After`` (RFC 9110 10.2.3: seconds or a date,
    which is read by the provider's own clock where it sends one), before Google's ``retryDelay`` in
    the body.
    """
    given = {name.lower(): text for name, text in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(given.get(name, "").strip()):
            return float(given[name]) * unit
    until = _seconds(given.get("retry-after", ""))
    if until is not None:
        there = _seconds(given.get("date", ""))
        return max(0.0, until - (now if there is None else there))
    delay = _RETRY_DELAY.search(body)
    return float(delay[1]) if delay else None


def _seconds(date: str) -> float | None:
    """Of an HTTP date, since 1970; None for what is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _clean(text: str, target: ModelTarget) -> str:
    """Without the key, which some providers repeat in their refusal, and without litellm's own
    labels."""
    for secret in (target.key, *target.headers.values()):
        if len(secret) > 3:
            text = text.replace(secret, "***")
    while (shorter := _LABEL.sub("", text.strip())) != text:
        text = shorter
    return _without_traceback(_extract_message(text))[:_LONGEST_MESSAGE]


def _without_traceback(text: str) -> str:
    """What stands in front of a traceback of the library, which names files of this machine."""
    if not (_TRACEBACK.search(text) or _OWN_FILE.search(text)):
        return text
    head = _OWN_FILE.sub("", _TRACEBACK.split(text, maxsplit=1)[0]).strip(" :\n")
    detail = f" ({head})" if head else ""
    return f"The answer of the provider cannot be read{detail}."


def _extract_message(text: str) -> str:
    """The message inside a provider's error body, if it is one."""
    try:
        body, _ = json.JSONDecoder().raw_decode(text)
        told = body["error"]
        return str(told["message"] if isinstance(told, dict) else told)
    except (ValueError, KeyError, TypeError):
        return text
