"""Pages by key, not by offset: rows that arrive meanwhile neither repeat nor skip one.

A cursor is opaque to callers. It holds only the last row's sort values, so a forged one can do no
more than start somewhere else; which rows may be seen is decided by the queryset.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Annotated, Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from ninja import Query

from mcpregistry.api.errors import BadRequest
from mcpregistry.api.schemas.basics import Page, Text

M = TypeVar("M", bound=Model)
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=200, description="Number of items per page.")]
Cursor = Annotated[
    Text | None, Query(max_length=2000, description="The value of `next` from the previous page.")
]


def read_page(
    rows: QuerySet[M],
    *,
    order: tuple[str, ...],
    limit: int,
    cursor: str | None,
    show: Callable[[M], object],
) -> Page[Any]:
    """One page of ``rows`` ordered by ``order`` (fields, together unique; all ``-`` or none)."""
    fields = [name.lstrip("-") for name in order]
    if cursor:
        rows = rows.filter(
            _beyond(
                fields,
                _read_cursor_values(rows.model, fields, cursor),
                descending=order[0].startswith("-"),
            )
        )
    found = list(rows.order_by(*order)[: limit + 1])
    last = found[limit - 1] if len(found) > limit else None
    items = [show(row) for row in found[:limit]]
    return Page[Any](items=items, next=_make_cursor(last, fields) if last else None)


def slice_rows(
    rows: Sequence[R],
    *,
    key: Callable[[R], list[str]],
    limit: int,
    cursor: str | None,
    show: Callable[[R], object],
) -> Page[Any]:
    """One page of rows that are reckoned, not stored: on from the row with the cursor's key, or
    where it stood if it is gone."""
    start = _find_start(rows, key, cursor) if cursor else 0
    more = len(rows) > start + limit
    following = _encode_cursor([start + limit, *key(rows[start + limit - 1])]) if more else None
    return Page[Any](items=[show(row) for row in rows[start : start + limit]], next=following)


def _find_start(rows: Sequence[R], key: Callable[[R], list[str]], cursor: str) -> int:
    start, *name = _decode_cursor(cursor)
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < 2**31:
        raise BadRequest(
            "The cursor does not belong to this list.",
            remedy="Request the first page again, without the parameter 'cursor'.",
        )
    return next((place + 1 for place, row in enumerate(rows) if key(row) == name), start)


def _encode_cursor(values: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> list[Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            "The cursor does not belong to this list.",
            remedy="Request the first page again, without the parameter 'cursor'.",
        ) from error
    return found if isinstance(found, list) and found else [None]


def _beyond(fields: list[str], values: list[Any], *, descending: bool) -> Q:
    """Rows after the given one: greater in the first field, or equal there and greater in the
    next."""
    side = "lt" if descending else "gt"
    steps = [
        Q(**dict(zip(fields[:i], values[:i], strict=True))) & Q(**{f"{name}__{side}": values[i]})
        for i, name in enumerate(fields)
    ]
    return reduce(or_, steps)


def _make_cursor(row: Model, fields: list[str]) -> str:
    values = [_plain(reduce(getattr, name.split("__"), row)) for name in fields]
    return _encode_cursor(values)


def _plain(value: Any) -> str | int:
    return value if isinstance(value, str | int) else value.isoformat()


def _read_cursor_values(model: type[Model], fields: list[str], cursor: str) -> list[Any]:
    try:
        raw = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return [_convert_value(model, name, value) for name, value in zip(fields, raw, strict=True)]
    except (
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        ValidationError,
        RecursionError,
    ) as error:
        raise BadRequest(
            "The cursor does not belong to this list.",
            remedy="Request the first page again, without the parameter 'cursor'.",
        ) from error


def _convert_value(model: type[Model], name: str, value: Any) -> Any:
    """The value as the column has it. Raises ValueError or ValidationError for anything else."""
    *path, last = name.split("__")
    for step in path:
        model = model._meta.get_field(step).related_model  # type: ignore[assignment]
    typed = model._meta.get_field(last).to_python(value)  # type: ignore[union-attr]
    if (
        typed is None
        or isinstance(value, bool | list | dict)
        or (isinstance(typed, str) and "\x00" in typed)
    ):
        raise ValueError(name)
    if isinstance(typed, int) and abs(typed) >= 2**63:
        raise ValueError(name)
    return typed.astimezone(UTC) if isinstance(typed, datetime) else typed
