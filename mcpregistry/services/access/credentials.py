"""Named credentials that servers refer to; their values are sealed and never audited.

Invariant: whatever changes what ``${cred:NAME}`` stands for raises the revision of every server
that says so. Running processes keep a connection only while its server's revision is the same, so
none goes on with the old secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.domain.servers.launch import list_credential_names
from mcpregistry.domain.servers.scope import check_places
from mcpregistry.models import Credential, Server
from mcpregistry.services.access.scopes import MAY_SCOPE
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit

# the rights of whoever has a secret kept as a new credential
MAY_KEEP = ("mcpregistry.add_credential", MAY_SCOPE)


@transaction.atomic
def save_credential(
    *,
    credential: Credential,
    actor: str,
    value: str | None = None,
    scope: Sequence[str] | None = None,
) -> Credential:
    """Create or change a credential; ``value`` and ``scope`` None keep what is stored. The value is
    never audited.

    A face hands ``scope`` on only for whoever may set it (``scopes.MAY_SCOPE``).

    Servers that refer to it (by its new or its old name) connect anew in every process within a
    second.
    """
    before = take_current(credential, own=("scope",))
    kind = "credential.created" if credential._state.adding else "credential.changed"
    if value is not None:
        if "\x00" in value or "\n" in value or "\r" in value:
            raise ConfigInvalid(
                "A credential must not contain a NUL character or a line break.",
                remedy="Enter only the secret.",
            )
        credential.value = value
    stored = before.scope if before else []
    credential.scope = stored if scope is None else check_places(list(scope), "the credential")
    save_checked(credential)
    if (
        value is not None
        or before is None
        or before.name != credential.name
        or before.scope != credential.scope
    ):
        _reconnect_users({credential.name} | ({before.name} if before else set()))
    audit.record_entry(
        kind=kind,
        actor=actor,
        subject=f"credential:{credential.name}",
        new_value=value is not None,
        scope=credential.scope,
    )
    return credential


def keep_secret(*, name: str, what: str, value: str, slug: str, user: User, actor: str) -> str:
    """Keep a secret of a server (its short name) as a new credential that goes to it alone;
    ``what``: the secret, for people.

    Returns what stands for it, ``${cred:NAME}``. NAME is ``name``, or that with a number, because
    one of before may hold another secret. Raises Denied for whoever may not have secrets kept.
    """
    place = f"server:{slug}"
    if not user.has_perms(MAY_KEEP):
        raise Denied(
            f"{what} is a secret. To store it as a credential, you need permission to add credentials and set their scope.",
            remedy=f"Ask an administrator to add a credential with the scope {place}, then enter ${{cred:NAME}} instead of the secret.",
        )
    taken = set(Credential.objects.filter(name__startswith=name).values_list("name", flat=True))
    free = (
        name
        if name not in taken
        else next(each for n in count(2) if (each := f"{name}-{n}") not in taken)
    )
    credential = Credential(name=free, description=f"{what} of {slug}")
    save_credential(credential=credential, value=value, scope=[place], actor=actor)
    return f"${{cred:{free}}}"


@transaction.atomic
def delete_credential(*, credential: Credential, actor: str) -> None:
    """Delete a credential; servers that refer to it then cannot start, and say so in their
    errors."""
    audit.record_entry(
        kind="credential.deleted", actor=actor, subject=f"credential:{credential.name}"
    )
    credential.delete()
    _reconnect_users({credential.name})


def _reconnect_users(names: set[str]) -> None:
    """Also of drafts, whose revision costs nothing. By F, so that it is never set back by another's
    save."""
    users = [
        server.pk
        for server in Server.objects.all()
        if list_credential_names(_list_texts(server)) & names
    ]
    Server.objects.filter(pk__in=users).update(revision=F("revision") + 1)


def _list_texts(server: Server) -> list[str]:
    """Everything of a server in which a credential may be named; not what is sealed with a lost
    key."""
    try:
        sealed = [*server.env.values(), *server.headers.values()]
    except ConfigInvalid:
        sealed = []
    return [*server.command, server.cwd, server.url, *sealed]
