"""Named credentials that servers refer to; their values are sealed and never audited.

Invariant: whatever changes what ``${cred:NAME}`` stands for raises the revision of every server that says so. Running
processes keep a connection only while its server's revision is the same, so none goes on with the old secret.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import credentials_named
from mcpregistry.domain.servers.scope import check_places
from mcpregistry.models import Credential, Server
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit


@transaction.atomic
def save_credential(
    *, credential: Credential, actor: str, value: str | None = None, scope: Sequence[str] | None = None
) -> Credential:
    """Create or change a credential; ``value`` and ``scope`` None keep what is stored. The value is never audited.

    A face hands ``scope`` on only for whoever may set it (``scopes.MAY_SCOPE``).

    Servers that refer to it (by its new or its old name) connect anew in every process within a second.
    """
    before = Credential.objects.filter(pk=credential.pk).first()
    kind = "credential.changed" if credential.pk else "credential.created"
    if value is not None:
        if "\x00" in value or "\n" in value or "\r" in value:
            raise ConfigInvalid("A credential holds a NUL or a line break.", remedy="Enter the bare secret.")
        credential.value = value
    stored = before.scope if before else []
    credential.scope = stored if scope is None else check_places(list(scope), "the credential")
    save_checked(credential)
    if value is not None or before is None or before.name != credential.name or before.scope != credential.scope:
        _users_connect_anew({credential.name} | ({before.name} if before else set()))
    audit.record(
        kind=kind, actor=actor, subject=f"credential:{credential.name}", new_value=value is not None,
        scope=credential.scope,
    )  # fmt: skip
    return credential


@transaction.atomic
def delete_credential(*, credential: Credential, actor: str) -> None:
    """Delete a credential; servers that refer to it then cannot start, and say so in their errors."""
    audit.record(kind="credential.deleted", actor=actor, subject=f"credential:{credential.name}")
    credential.delete()
    _users_connect_anew({credential.name})


def _users_connect_anew(names: set[str]) -> None:
    """Also of drafts, whose revision costs nothing. By F, so that it is never set back by another's save."""
    users = [server.pk for server in Server.objects.all() if credentials_named(_texts(server)) & names]
    Server.objects.filter(pk__in=users).update(revision=F("revision") + 1)


def _texts(server: Server) -> list[str]:
    """Everything of a server in which a credential may be named; not what is sealed with a lost key."""
    try:
        sealed = [*server.env.values(), *server.headers.values()]
    except ConfigInvalid:
        sealed = []
    return [*server.command, server.cwd, server.url, *sealed]
