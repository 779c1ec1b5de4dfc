"""What people enter for a bundle becomes its server: the words behind its command and its
environment.

Secrets become credentials of that server alone, as with what is entered for an entry of a registry.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.auth.models import User
from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs import mcpb
from mcpregistry.domain.installs.names import Ecosystem
from mcpregistry.domain.registry.bundles import way_of
from mcpregistry.domain.registry.filling import Launch, filled
from mcpregistry.domain.registry.ways import Way
from mcpregistry.models import Install, Server
from mcpregistry.services.installs import requests
from mcpregistry.services.registry.adding import without_secrets


def way_for(install: Install) -> Way | None:
    """What the installed bundle asks for; None for one that asks for nothing, and for other
    packages."""
    if install.ecosystem != Ecosystem.MCPB or not install.lock:
        return None
    way = way_of(mcpb.started(install.lock), install.folder)
    return way if way.inputs else None


@transaction.atomic
def use(
    *,
    install: Install,
    values: Mapping[str, str],
    user: User,
    actor: str,
    server: Server | None = None,
) -> Server:
    """Set the server to it, or make one of it, with these values by ``Input.key``.

    Raises ConfigInvalid (what is missing or unknown), Denied (who may keep no secrets) and Conflict
    (not installed).
    """
    way = way_for(install)
    if way is None:
        raise ConfigInvalid("The package has no settings.", remedy="Leave out the values.")
    server = server or install.server
    slug = server.slug if server else requests.new_slug(install)
    launch = filled(way, without_secrets(way, values, slug, user, actor))
    if server is None:  # what was entered for its entry, behind what the bundle says itself
        launch = Launch(
            [*launch.arguments, *install.arguments], {**launch.env, **install.env}, {}, ""
        )
    return requests.use(install=install, server=server, actor=actor, launch=launch)
