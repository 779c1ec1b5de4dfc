"""Secrets that stand in a server's command or address, where nothing seals them, moved into
credentials of that server."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.db import transaction

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.pasted.secrets import Secret, extract_secrets
from mcpregistry.models import Server
from mcpregistry.services.access import credentials
from mcpregistry.services.servers import lifecycle

STILL_THERE = "Earlier versions and backups still contain each secret, so replace it at the service that issued it."


def find_open_secrets(server: Server) -> list[str]:
    """What looks like a secret in the command or the address, in words such as "token" or "address
    password"."""
    return [secret.label for secret in _extract_open_secrets(server)[1]]


def has_open_secrets(server: Server) -> bool:
    """Whether the command or the address holds what looks like a secret."""
    return bool(find_open_secrets(server))


@transaction.atomic
def keep_open_secrets(*, server: Server, user: User, actor: str) -> list[str]:
    """Store each of them as a credential of this server alone, and name it in its place. The server
    becomes a draft.

    Returns the names of the credentials. Raises Conflict if there is nothing to store, and Denied
    for a person who may not have secrets kept.
    """
    plain, secrets = _extract_open_secrets(server)
    if not secrets:
        raise Conflict(
            "The command and the address contain nothing that looks like a secret.",
            remedy="If they contain a secret, add a credential yourself, then enter ${cred:NAME} instead of the secret.",
        )
    kept = {
        secret.reference: credentials.keep_secret(
            name=secret.name,
            what=secret.label,
            value=secret.value,
            slug=server.slug,
            user=user,
            actor=actor,
        )
        for secret in secrets
    }
    # In one pass: the name that a credential got may be the one that was meant for another.
    references = re.compile("|".join(map(re.escape, kept)))
    words = [
        references.sub(lambda found: kept[found[0]], word) for word in (*plain.command, plain.url)
    ]
    *server.command, server.url = words
    lifecycle.save_server(server=server, actor=actor)
    return [reference.removeprefix("${cred:").removesuffix("}") for reference in kept.values()]


def _extract_open_secrets(server: Server) -> tuple[ServerEntry, tuple[Secret, ...]]:
    """Words that only stand where a secret is to be entered, such as ``YOUR_TOKEN``, are no secrets
    yet."""
    plain, secrets = extract_secrets(
        ServerEntry(key=server.slug, command=tuple(server.command), url=server.url)
    )
    return plain, secrets if any(secret.value for secret in secrets) else ()
