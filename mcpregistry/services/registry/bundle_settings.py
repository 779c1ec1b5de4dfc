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
from mcpregistry.domain.registry.bundles import build_bundle_option
from mcpregistry.domain.registry.fill_options import Launch, fill_install_option
from mcpregistry.domain.registry.install_options import InstallOption
from mcpregistry.models import Install, Server
from mcpregistry.services.installs import requests
from mcpregistry.services.registry.add_entries import keep_secrets_of


def find_bundle_option(install: Install) -> InstallOption | None:
    """What the installed bundle asks for; None for one that asks for nothing, and for other
    packages."""
    if install.ecosystem != Ecosystem.MCPB or not install.lock:
        return None
    way = build_bundle_option(mcpb.read_locked_manifest(install.lock), install.folder)
    return way if way.inputs else None


@transaction.atomic
def use_bundle(
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
    way = find_bundle_option(install)
    if way is None:
        raise ConfigInvalid(
            "The package has no settings.", remedy="Leave out the values of the settings."
        )
    server = server or install.server
    slug = server.slug if server else requests.find_new_slug(install)
    launch = fill_install_option(way, keep_secrets_of(way, values, slug, user, actor))
    if server is None:  # what was entered for its entry, behind what the bundle says itself
        launch = Launch(
            [*launch.arguments, *install.arguments], {**launch.env, **install.env}, {}, ""
        )
    return requests.use_install(install=install, server=server, actor=actor, launch=launch)
