"""What people elsewhere are told about held calls, new definitions, servers and budgets: values,
texts and signatures.

A notification's body is ``{"type", "timestamp", "data"}``. Its texts come from agents and servers,
so whoever shows them escapes them for the place. Arguments are shown only as ``ShownArguments`` has
them: cut, and masked where a name or a shape says that a secret stands there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.secret_names import is_secret_name

MASK = "•••"
SHOWN_CHARACTERS = 1_500
READ_CHARACTERS = 64 * 1024  # longer arguments are not even parsed
KEPT_TRYING = timedelta(days=1)
SLACK_TOLERANCE = 300  # seconds
_FIRST_WAIT = 5.0
_FACTOR = 3.0
_LONGEST_WAIT = 2 * 3600.0
_SECRET_TEXT = re.compile(r"(?i)(\b(?:bearer|basic)\s+|://[^/\s:@]*:)[^\s@\"',;]+")


class ChannelKind(StrEnum):
    """How a channel is reached."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"


class NotificationEvent(StrEnum):
    """What happened. The first six are about one held call; ``TYPES`` has the public names."""

    ASKED = "asked"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    VOID = "void"
    DEFINITIONS = "definitions"
    UNAVAILABLE = "unavailable"
    AVAILABLE = "available"
    TRIAL = "trial"
    BUDGET_SOFT = "budget_soft"
    BUDGET_SPENT = "budget_spent"
    TEST = "test"


TYPES: dict[NotificationEvent, str] = {
    event: f"approval.{event}" for event in NotificationEvent
} | {
    NotificationEvent.DEFINITIONS: "definitions.waiting",
    NotificationEvent.UNAVAILABLE: "server.unavailable",
    NotificationEvent.AVAILABLE: "server.available",
    NotificationEvent.TRIAL: "server.trial",
    NotificationEvent.BUDGET_SOFT: "budget.soft",
    NotificationEvent.BUDGET_SPENT: "budget.spent",
    NotificationEvent.TEST: "test",
}
ABOUT_SERVERS = frozenset(
    {
        NotificationEvent.DEFINITIONS,
        NotificationEvent.UNAVAILABLE,
        NotificationEvent.AVAILABLE,
        NotificationEvent.TRIAL,
    }
)
ABOUT_BUDGETS = frozenset({NotificationEvent.BUDGET_SOFT, NotificationEvent.BUDGET_SPENT})
TITLES: dict[NotificationEvent, str] = {
    NotificationEvent.ASKED: "A call waits for approval",
    NotificationEvent.APPROVED: "Approved",
    NotificationEvent.REJECTED: "Rejected",
    NotificationEvent.EXPIRED: "Expired: not decided in time",
    NotificationEvent.CANCELLED: "Cancelled: the caller has disconnected",
    NotificationEvent.VOID: "Void: its rule, tool or server changed after the request",
    NotificationEvent.DEFINITIONS: "New or changed tools wait for approval",
    NotificationEvent.UNAVAILABLE: "A server does not answer",
    NotificationEvent.AVAILABLE: "A server answers again",
    NotificationEvent.TRIAL: "A server behaves differently than in its last trial",
    NotificationEvent.BUDGET_SOFT: "A budget has reached its soft limit",
    NotificationEvent.BUDGET_SPENT: "A budget has reached its hard limit",
    NotificationEvent.TEST: "A test message from Slipsnisse",
}


@dataclass(frozen=True, slots=True)
class Interest:
    """What one channel wants to hear; empty sets mean everything."""

    events: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    rules: frozenset[int] = frozenset()
    minimum_risk: int = 1

    def is_interested_in(
        self, event: NotificationEvent, *, server: str, rule: int | None = None, risk: int = 3
    ) -> bool:
        """Whether the channel's filters let this event through; risk is 1 (low) to 3, rules count
        for held calls alone."""
        if event in ABOUT_SERVERS:
            return self._is_event_selected(event) and self._is_subject_selected(server)
        if event in ABOUT_BUDGETS:
            return self._is_event_selected(event) and not self.servers
        return (
            self._is_event_selected(event)
            and self._is_subject_selected(server)
            and risk >= self.minimum_risk
            and (not self.rules or rule in self.rules)
        )

    def _is_event_selected(self, event: NotificationEvent) -> bool:
        return not self.events or event in self.events

    def _is_subject_selected(self, server: str) -> bool:
        return not self.servers or server in self.servers


# Arguments


@dataclass(frozen=True, slots=True)
class ShownArguments:
    """Arguments fit to be sent out. ``whole``: nothing was cut, masked or invisible in them."""

    text: str
    whole: bool


def prepare_arguments(arguments_json: str) -> ShownArguments:
    """The arguments as indented JSON, at most SHOWN_CHARACTERS long."""
    if len(arguments_json) > READ_CHARACTERS:
        return ShownArguments(
            f"The arguments have {len(arguments_json):,} characters. Open the page to view them.",
            False,
        )
    try:
        value = json.loads(arguments_json or "{}")
        masked = _mask_secrets(value)
        text = json.dumps(masked, ensure_ascii=False, indent=1)
    except (ValueError, RecursionError):
        return ShownArguments(
            "The arguments cannot be shown here. Open the page to view them.", False
        )
    shown = show_invisible_characters(text, SHOWN_CHARACTERS)
    return ShownArguments(shown, masked == value and shown == text)


def _mask_secrets(value: Any, name: str = "") -> Any:
    if name and is_secret_name(name) and value not in ("", None, [], {}, True, False):
        return MASK  # whatever is in it
    if isinstance(value, dict):
        return {key: _mask_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_secrets(item) for item in value]
    return _SECRET_TEXT.sub(rf"\1{MASK}", value) if isinstance(value, str) else value


# Texts


def flatten_text(text: str, limit: int) -> str:
    """Foreign text for a subject, heading or table cell: on one line, invisible characters named,
    cut at ``limit``."""
    return show_invisible_characters(" ".join(text.split()), limit)


def compose_title(event: NotificationEvent, data: Mapping[str, Any]) -> str:
    """One line that says what happened to what."""
    if event is NotificationEvent.DEFINITIONS:
        count = len(data["added"]) + len(data["changed"])
        return f"{count} new or changed tool{'' if count == 1 else 's'} of {flatten_text(data['server'], 63)}"
    if event in ABOUT_SERVERS:
        return f"{TITLES[event]}: {flatten_text(data['server'], 63)}"
    if event in ABOUT_BUDGETS:
        return f"{TITLES[event]}: {flatten_text(data['budget'], 63)} of {flatten_text(_describe_payer(data)[1], 63)}"
    about = (
        f"{flatten_text(data['server'], 63)}::{flatten_text(data['tool'], 80)}"
        if data.get("tool")
        else ""
    )
    return f"{TITLES[event]}: {about}" if about else TITLES[event]


def _describe_payer(data: Mapping[str, Any]) -> tuple[str, str]:
    """Whose a budget is, with what that is."""
    return ("Endpoint", data["endpoint"]) if data.get("endpoint") else ("Agent", data["agent"])


def list_fact_lines(event: NotificationEvent, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, text) of the facts of an event, the most important first; both mail and Slack show
    these."""
    if event is NotificationEvent.TEST:
        return [("Channel", flatten_text(data["channel"], 100))]
    if event is NotificationEvent.DEFINITIONS:
        named = (("New", data["added"]), ("Changed", data["changed"]))
        return [
            ("Server", data["server"]),
            *((label, _join_names(names)) for label, names in named if names),
        ]
    if event in ABOUT_SERVERS:
        return [("Server", data["server"])] + [
            ("Reason", flatten_text(data["reason"], 1_000))
        ] * bool(data["reason"])
    if event in ABOUT_BUDGETS:
        facts = [_describe_payer(data), ("Spent", data["spent"]), ("Limit", data["mark"])]
        return [*facts, ("Resets", _format_moment(data["ends"]))]
    found = [
        ("Tool", flatten_text(data["tool"], 200)),
        ("Server", flatten_text(data["server"], 100)),
        ("Agent", flatten_text(data["agent"], 100)),
        *_list_requester_lines(data),
        ("Risk", data["risk"]),
        ("Rule", flatten_text(data["rule"], 200)),
    ]
    if event is NotificationEvent.ASKED:
        return [*found, ("Decide until", _format_moment(data["decide_by"]))]
    more = (
        [("Decided by", flatten_text(", ".join(data["decided_by"]), 300))]
        if data["decided_by"]
        else []
    )
    reason = [("Reason", flatten_text(data["reason"], 1_000))] if data["reason"] else []
    edited = [("Arguments", "changed by the approver")] if data["edited"] else []
    return [*found, *more, *reason, *edited]


def _list_requester_lines(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who asked, if that is known: this person may not approve it."""
    return [("Requested by", flatten_text(data["requester"], 150))] if data.get("requester") else []


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(flatten_text(name, 80) for name in names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _format_moment(iso: str) -> str:
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


# Trying again


def compute_retry_delay(attempt: int, chance: float) -> float:
    """Seconds until another try after ``attempt`` failures; ``chance`` (0 to 1) spreads it by a
    quarter."""
    return min(_LONGEST_WAIT, _FIRST_WAIT * _FACTOR ** min(attempt - 1, 20)) * (0.75 + 0.5 * chance)


def parse_retry_after(header: str, now: datetime) -> float:
    """Seconds that a receiver asks us to wait (RFC 9110 section 10.2.3), at most a day; 0 for
    anything odd."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), KEPT_TRYING.total_seconds())
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError):
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - now).total_seconds()), KEPT_TRYING.total_seconds())


# Signatures


def decode_webhook_key(secret: str) -> bytes:
    """The key behind ``whsec_…``. Raises ConfigInvalid; the secret is in no message."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ConfigInvalid(
            "The signing secret must be whsec_ followed by 24 to 64 bytes in base64.",
            remedy='Create a secret with: echo "whsec_$(openssl rand -base64 32)"',
        )
    return key


def build_webhook_headers(
    *, message: str, seconds: int, body: bytes, secret: str
) -> dict[str, str]:
    """The three headers of the Standard Webhooks convention (https://www.standardwebhooks.com)."""
    signed = hmac.new(
        decode_webhook_key(secret), f"{message}.{seconds}.".encode() + body, hashlib.sha256
    ).digest()
    return {
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def compute_slack_signature(*, secret: str, seconds: str, body: bytes) -> str:
    """What Slack sends as X-Slack-Signature
    (https://docs.slack.dev/authentication/verifying-requests-from-slack)."""
    return (
        "v0="
        + hmac.new(secret.encode(), f"v0:{seconds}:".encode() + body, hashlib.sha256).hexdigest()
    )


def is_signed_by_slack(
    *, secret: str, seconds: str, signature: str, body: bytes, now: float
) -> bool:
    """Whether Slack itself sent this within the last five minutes."""
    if not secret or not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 12:
        return False
    expected = compute_slack_signature(secret=secret, seconds=seconds, body=body)
    genuine = hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
    return genuine and abs(now - int(seconds)) <= SLACK_TOLERANCE
