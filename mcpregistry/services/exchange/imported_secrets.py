"""Secrets of imported entries, kept as credentials of their servers when whoever imports asks for
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mcpregistry.domain.caller_rights import Rights
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.pasted.secrets import Secret, extract_secrets
from mcpregistry.models import Credential
from mcpregistry.services.access.credentials import MAY_KEEP, save_credential

REMEDY = "To store these values as credentials, import with the option “Store secrets as credentials” (--credentials on the command line)."
SCOPE_REMEDY = "Ask an administrator to add the missing credentials on the page Credentials, and to set their scopes."


def describe_secrets(entry: ServerEntry) -> str:
    """A sentence about the secrets in the entry; empty if there are none."""
    places = sorted({secret.place for secret in extract_secrets(entry)[1] if secret.value})
    return (
        f"Values in {', '.join(places)} look like secrets. They are stored with the server."
        if places
        else ""
    )


def add_credentials(
    inputs: Mapping[str, str], places_of: Callable[[str], list[str]], *, actor: str, rights: Rights
) -> list[str]:
    """Make empty credentials of the secrets that a file asks for: descriptions by name. Existing
    ones stay as they are.

    Returns the names of those that no server may use, because ``rights`` does not cover adding them
    or setting their scope.
    """
    there = set(Credential.objects.filter(name__in=inputs).values_list("name", flat=True))
    new = [name for name in inputs if name not in there]
    may_add, may_scope = (rights(right) for right in MAY_KEEP)
    for name in new if may_add else ():
        scope = places_of(name) if may_scope else []
        save_credential(
            credential=Credential(name=name, description=inputs[name]), actor=actor, scope=scope
        )
    return [] if may_add and may_scope else new


def keep_secrets(secrets: Iterable[Secret], slug: str, actor: str) -> None:
    """Make or change the credentials that the entry names, for this server alone; one without a
    value waits for it.

    Raises ConfigInvalid for a name that stands for another server's credential, and for a value
    that is not a secret's.
    """
    place = f"server:{slug}"
    for secret in secrets:
        credential = Credential.objects.filter(name=secret.name).first()
        if credential is None:
            made = Credential(name=secret.name, description=f"{secret.label} of {slug}")
            save_credential(credential=made, value=secret.value or None, scope=[place], actor=actor)
        elif credential.scope != [place]:
            raise ConfigInvalid(
                f"A credential named {secret.name} already exists with another scope.",
                remedy="Rename the existing credential, or choose another name for the server.",
            )
        elif secret.value and credential.value != secret.value:
            save_credential(credential=credential, value=secret.value, actor=actor)
