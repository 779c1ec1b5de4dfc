"""Where a secret may go is part of the secret: which servers and providers a credential or a
variable may be filled into.

A place is ``server:SLUG`` or ``provider:SLUG``. A credential has its scope itself, the variables of
SLIPSNISSE_PASS_ENV have theirs in the site's configuration; only whoever may change that (role
admin) sets either. Looked at when a server or provider is saved, and again whenever a value is
filled in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.conf import settings
from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import list_credential_names, list_variable_names
from mcpregistry.models import Configuration, Credential
from mcpregistry.services.records import audit

MAY_SCOPE = "mcpregistry.change_configuration"  # the right to say where a secret may go
_vouched: ContextVar[bool] = ContextVar("variables_are_vouched_for", default=False)


def check_scope(texts: Iterable[str], place: str) -> None:
    """Raises ConfigInvalid when these texts of ``place`` name a secret that may not go there.

    A credential that is not there yet, and a variable that the site does not pass on, are nothing
    that could go anywhere.
    """
    texts = list(texts)
    names = list_credential_names(texts)
    for row in Credential.objects.filter(name__in=names) if names else ():
        if place not in row.scope:
            raise _make_scope_error(f"credential '{row.name}'", place, "on the credential's page")
    passed = list_variable_names(texts) & set(settings.PASS_ENV)
    if not passed or _vouched.get():
        return
    scope = Configuration.load().variable_scope
    for name in sorted(passed):
        if place not in scope.get(name, ()):
            raise _make_scope_error(
                f"variable {name}", place, "under Configuration, Scope of variables"
            )


def _make_scope_error(secret: str, place: str, where: str) -> ConfigInvalid:
    kind, _, slug = place.partition(":")
    return ConfigInvalid(
        f"The scope of the {secret} does not include the {kind} '{slug}'.",
        remedy=f"Ask an administrator to add {place} to the scope ({where}), or use another credential or variable.",
    )


@contextmanager
def allow_file_variables() -> Iterator[None]:
    """Variables that a file names are not looked up in scopes while it is imported: whoever starts
    a process with it has put them into that process' own environment. ``grant_variables`` then
    writes down which go where.
    """
    token = _vouched.set(True)
    try:
        yield
    finally:
        _vouched.reset(token)


@transaction.atomic
def grant_variables(texts: Iterable[str], place: str, actor: str) -> None:
    """Let the variables that these texts name go to ``place``; for a file that somebody has vouched
    for."""
    names = list_variable_names(texts)
    if not names:
        return
    row = Configuration.load_for_update()
    missing = [name for name in sorted(names) if place not in row.variable_scope.get(name, ())]
    if not missing:
        return
    added = {name: sorted({*row.variable_scope.get(name, ()), place}) for name in missing}
    row.variable_scope = {**row.variable_scope, **added}
    row.save(update_fields=["variable_scope"])
    audit.record_entry(kind="variables.scoped", actor=actor, subject=place, variables=missing)


@transaction.atomic
def rename_in_scopes(old: str, new: str = "") -> None:
    """A server or provider has got another name, or is gone (``new`` empty): what was let go to it
    goes along, or ends."""
    for row in Credential.objects.select_for_update().order_by("pk"):
        if old in row.scope:
            row.scope = _replace_place(row.scope, old, new)
            row.save(update_fields=["scope"])
    configuration = Configuration.load_for_update()
    scope: dict[str, Any] = configuration.variable_scope
    if any(old in places for places in scope.values()):
        configuration.variable_scope = {
            name: _replace_place(places, old, new) for name, places in scope.items()
        }
        configuration.save(update_fields=["variable_scope"])


def _replace_place(places: Collection[str], old: str, new: str) -> list[str]:
    return sorted({*places} - {old} | ({new} if new and old in places else set()))
