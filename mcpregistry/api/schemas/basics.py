"""Shapes that every aggregate shares: the problem, the page, and text that any database can
hold."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from ninja import Schema
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

T = TypeVar("T")
OfferKind = Literal["tool", "prompt", "resource", "template"]  # what servers offer

LONG_TEXT = 20_000  # characters of a long text in one answer
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
WHOLE_VALUE = 1_000_000  # characters of a JSON value in one answer


def _storable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "contains an incomplete Unicode character (half of a surrogate pair)"
        ) from None
    if "\x00" in text:
        raise ValueError("contains a NUL character")
    return text


def _storable_value(value: dict[str, Any]) -> dict[str, Any]:
    try:
        _storable(json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\\u0000", "\x00"))
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return value


def _rfc3339(value: object) -> object:
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError("must be a time such as 2026-11-21T12:00:00Z")
    return value


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time between the years 1 and 9999") from None


Text = Annotated[str, AfterValidator(_storable)]
Slug = Annotated[
    str,
    # The first alternative of the model's rule, without look-ahead: JSON Schema engines disagree on
    # that.
    StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]|_[A-Za-z0-9.-])*_?$", max_length=63),
]
Object = Annotated[dict[str, Any], AfterValidator(_storable_value)]
When = Annotated[
    AwareDatetime,
    BeforeValidator(_rfc3339, json_schema_input_type=AwareDatetime),
    AfterValidator(_in_utc),
    Field(
        strict=False,
        description="Time in RFC 3339 format with an offset, for example 2026-11-21T12:00:00Z.",
    ),
]


ConversationId = Annotated[Text, Field(min_length=1, max_length=32)]


class StrictInput(BaseModel):
    """A request body with exact types and without unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid")
    nullable: ClassVar[frozenset[str]] = frozenset()

    def get_sent_values(self) -> dict[str, Any]:
        """The keys that were sent; null counts as left out, unless it means something for that
        key."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        return {
            name: value
            for name, value in sent.items()
            if value is not None or name in self.nullable
        }


class Problem(Schema):
    """An error: stable code, message, and what to do."""

    code: str = Field(description="Stable, machine-readable error code.")
    message: str
    remedy: str


class Page(Schema, Generic[T]):
    """One page of a list. ``next`` is the cursor of the next page, or null on the last page."""

    items: list[T]
    next: str | None = Field(
        description="Send this as 'cursor' to get the next page. Null on the last page."
    )


class Accepted(Schema):
    """The work was passed to a background process."""

    message: str


def cap_text(text: str, limit: int = LONG_TEXT) -> str:
    """Foreign text for an answer, cut at ``limit`` characters; the cut says how many are
    missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def decode_json(text: str) -> Any:
    """A stored JSON text as a value; null when it was erased or is too long for one answer."""
    return json.loads(text) if text and len(text) <= WHOLE_VALUE else None
