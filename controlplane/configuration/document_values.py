"""Values of columns as the document writes them, and back. Secrets stand in it as references:
``{secret: NAME}``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import (
    CharField,
    DateField,
    DecimalField,
    Field,
    FloatField,
    IntegerField,
    TextField,
)
from django.utils.timezone import is_naive, make_aware

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.redaction import find_secret_spans

Entry = dict[str, Any]  # what stands in the document of one row
CORRECT = "Correct it in the file."
# a text that only names secrets is none itself
_REFERENCES = re.compile(r"(\$\{(cred:)?[\w.-]+\})+")


def serialize_value(value: Any) -> Any:
    """A column's value as JSON."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


# What a column takes from the document; of others, such as JSON, anything.
_TAKES: tuple[tuple[type[Field[Any, Any]], tuple[type, ...], str], ...] = (
    (IntegerField, (int,), "a whole number"),
    (FloatField, (int, float), "a number"),
    (DecimalField, (str, int, float), "a number"),
    (DateField, (str, date), "a time such as 2026-11-21T12:00:00Z"),
    (CharField, (str,), "a text, in YAML with quotes"),
    (TextField, (str,), "a text, in YAML with quotes"),
)


def _describe_mismatch(field: Field[Any, Any], value: Any) -> str:
    """What the column takes, where this is something else; Django would make ``{"a": 1}`` a text
    without a word."""
    for kind, types, words in _TAKES:
        if isinstance(field, kind):
            fits = isinstance(value, types) and not isinstance(value, bool)
            return "" if fits or (value is None and field.null) else words
    return ""


def read(field: Field[Any, Any], value: Any) -> Any:
    """The column's value. Raises ConfigInvalid for what it cannot hold, or what is not of its
    kind."""
    if wanted := _describe_mismatch(field, value):
        raise ConfigInvalid(
            f"{value!r:.60} is not a valid value of {field.name}.", remedy=f"Use {wanted}."
        )
    if isinstance(field, DecimalField) and isinstance(value, float):
        value = str(value)  # 0.1 as it is written, not as the machine holds it
    try:
        return _as_kept(field, field.to_python(value))
    except (ValidationError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigInvalid(
            f"{value!r:.60} is not a valid value of {field.name}.", remedy=CORRECT
        ) from error


def _as_kept(field: Field[Any, Any], value: Any) -> Any:
    """As it comes back from the database: times in UTC (also those that name no zone), prices with
    all their digits."""
    if isinstance(value, datetime):
        return (make_aware(value) if is_naive(value) else value).astimezone(UTC)
    if isinstance(value, Decimal) and isinstance(field, DecimalField):
        places = Decimal(1).scaleb(-field.decimal_places)
        return (
            value.quantize(places)
            if value.is_finite() and value == value.quantize(places)
            else value
        )
    return value


class Secrets:
    """What is referred to by names: ``found`` while a site is written, ``given`` with a file that
    is read."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.found: dict[str, Any] = {}
        self._given = given or {}

    def replace_secrets(self, value: Any, name: str) -> Any:
        """A secret's reference; one in each value of a mapping. Empty ones and bare references stay
        as they are."""
        texts = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        if texts and value.keys() != {"secret"}:  # which would be read as a reference itself
            return {
                key: self.replace_secrets(each, f"{name}/{key}")
                for key, each in sorted(value.items())
            }
        if not value or (isinstance(value, str) and _REFERENCES.fullmatch(value)):
            return value
        self.found[name] = value
        return {"secret": name}

    def insert_secrets(self, value: Any) -> Any:
        """The same with the values that are given; what is not known stays a reference."""
        if is_reference(value):
            return self._given.get(value["secret"], value)
        if isinstance(value, list):
            return [self.insert_secrets(each) for each in value]
        return (
            {key: self.insert_secrets(each) for key, each in value.items()}
            if isinstance(value, dict)
            else value
        )

    def resolve_secrets(self, value: Any) -> tuple[Any, list[str]]:
        """The same without the secrets that nobody gave, and their names. What was given is looked
        into no further."""
        if is_reference(value):
            name = value["secret"]
            return (self._given[name], []) if name in self._given else ("", [name])
        if isinstance(value, list):
            told = [self.resolve_secrets(each) for each in value]
            return [each for each, _ in told], [name for _, missing in told for name in missing]
        if not isinstance(value, dict):
            return value, []
        found = {key: self.resolve_secrets(each) for key, each in value.items()}
        missing = [name for _, names in found.values() for name in names]
        return {key: each for key, (each, names) in found.items() if not names}, missing

    def command(self, words: list[str], name: str) -> list[Any]:
        """The words of a command; a word that holds a secret is named instead."""
        pairs = enumerate(zip(("", *words), words, strict=False))
        return [
            self.replace_secrets(word, f"{name}/{number}")
            if find_secret_spans(before, word)
            else word
            for number, (before, word) in pairs
        ]

    def address(self, url: str, name: str) -> Any:
        """An address; named as one secret if a password or a parameter in it is secret."""
        return self.replace_secrets(url, name) if find_secret_spans("", url) else url


def is_reference(value: Any) -> bool:
    """Whether this stands for a secret."""
    return (
        isinstance(value, dict) and value.keys() == {"secret"} and isinstance(value["secret"], str)
    )


def unknown_address(row: Any) -> str:
    """For a server or provider whose address is a secret that nobody gave: nobody answers there,
    and it says so."""
    return f"{'wss' if getattr(row, 'transport', '') == 'websocket' else 'https'}://enter-the-address.invalid/"


def list_references(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each reference in a value: the place where it stands, and the name that it says."""
    if is_reference(value):
        yield place, value["secret"]
    elif isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from list_references(each, f"{place}/{key}")
