"""Values of columns as the document writes them, and back. Secrets stand in it as references: ``{secret: NAME}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Field

from mcpregistry.domain.errors import ConfigInvalid

Entry = dict[str, Any]  # what stands in the document of one row
_REFERENCES = re.compile(r"(\$\{(cred:)?[\w.-]+\})+")  # a text that only names secrets is none itself


def written(value: Any) -> Any:
    """A column's value as JSON."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def read(field: Field[Any, Any], value: Any) -> Any:
    """The column's value. Raises ConfigInvalid for what it cannot hold."""
    try:
        return field.to_python(value)
    except (ValidationError, TypeError, ValueError) as error:
        raise ConfigInvalid(f"{field.name}: {value!r:.60} does not fit.", remedy="Correct it in the file.") from error


class Secrets:
    """What is referred to by names: ``found`` while a site is written, ``given`` with a file that is read."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.found: dict[str, Any] = {}
        self._given = given or {}

    def hidden(self, value: Any, name: str) -> Any:
        """A secret's reference; one in each value of a mapping. Empty ones and bare references stay as they are."""
        if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            return {key: self.hidden(each, f"{name}/{key}") for key, each in sorted(value.items())}
        if not value or (isinstance(value, str) and _REFERENCES.fullmatch(value)):
            return value
        self.found[name] = value
        return {"secret": name}

    def shown(self, value: Any) -> Any:
        """The same with the values that are given; what is not known stays a reference."""
        if is_reference(value):
            return self._given.get(value["secret"], value)
        return {key: self.shown(each) for key, each in value.items()} if isinstance(value, dict) else value


def is_reference(value: Any) -> bool:
    """Whether this stands for a secret."""
    return isinstance(value, dict) and value.keys() == {"secret"} and isinstance(value["secret"], str)


def without_unknown(value: Any) -> tuple[Any, list[str]]:
    """A sealed value without the secrets that nobody gave, and their names."""
    if is_reference(value):
        return "", [value["secret"]]
    if not isinstance(value, dict):
        return value, []
    missing = [each["secret"] for each in value.values() if is_reference(each)]
    return {key: each for key, each in value.items() if not is_reference(each)}, missing
