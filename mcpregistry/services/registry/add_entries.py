"""From an entry of a registry to a server of this site: a draft at its address, or a package that
is asked for.

Invariants:
* What is added is exactly the document that the person saw.
* Secrets become credentials that go to this server alone; nothing else of ours keeps them.
* Nothing runs by it: a package waits for its lock's approval, a server for the confirmation of its
  launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from django.contrib.auth.models import User
from django.db import transaction

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import AlreadyExists, ConfigInvalid, Conflict, Denied
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.installs.names import Ecosystem
from mcpregistry.domain.installs.reasons import InstallFailed
from mcpregistry.domain.registry import containers
from mcpregistry.domain.registry.fill_options import Launch, fill_install_option
from mcpregistry.domain.registry.install_options import (
    InstallInput,
    InstallOption,
    read_install_options,
)
from mcpregistry.domain.servers.launch import check_env
from mcpregistry.domain.text.display import number_of
from mcpregistry.downstream.installers import programs
from mcpregistry.models import Install, RegistryEntry, Server
from mcpregistry.models.registry import OFFERED
from mcpregistry.services import installs
from mcpregistry.services.access import credentials
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

_NO_NAME = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What a person wants of an entry. ``number``: of the way; ``values``: by ``Input.key``.

    ``sha256``: of the document that they saw.
    """

    number: int
    slug: str
    values: Mapping[str, str]
    sha256: str


def propose_slug(entry: RegistryEntry) -> str:
    """The short name that is proposed for its server."""
    name = _NO_NAME.sub("-", entry.name.rpartition("/")[2]).strip("-.")
    return name[:63] or "server"


def find_required_permission(way: InstallOption) -> str:
    """What adding it needs."""
    return "mcpregistry.add_install" if way.installs else "mcpregistry.add_server"


def list_local_options(entry: RegistryEntry) -> list[InstallOption]:
    """What the entry offers; with a problem also where this machine lacks what it needs."""
    return [_check_local_option(way) for way in read_install_options(entry.document)]


def _check_local_option(way: InstallOption) -> InstallOption:
    if way.kind != containers.KIND or way.problem or not way.transport:
        return way
    try:
        programs.find_container_engine()
    except InstallFailed as error:
        return replace(way, problem=str(error))
    return way


def get_install_option(entry: RegistryEntry, number: int) -> InstallOption:
    """The way of this number (from 0). Raises ConfigInvalid for none, or one that cannot be added
    here."""
    found = list_local_options(entry)
    if not 0 <= number < len(found):
        raise ConfigInvalid(
            error_texts.say_no_such_number("install option", number),
            remedy=f"The entry has {number_of(len(found), 'install option')}. The numbers start at 0.",
        )
    if found[number].problem:
        raise ConfigInvalid(
            f"This install option cannot be used: {found[number].problem}",
            remedy="Choose another install option.",
        )
    return found[number]


@transaction.atomic
def add_from_entry(
    *, entry: RegistryEntry, wish: AddRequest, user: User, actor: str
) -> Server | Install:
    """Make the draft, or ask for the package, as this person's own doing.

    Raises Conflict (taken back, or another document than was seen), AlreadyExists, ConfigInvalid
    and Denied.
    """
    entry = _lock_entry_as_seen(entry, wish)
    way = get_install_option(entry, wish.number)
    if not user.has_perm(find_required_permission(way)):
        raise Denied(
            f"You do not have the permission '{find_required_permission(way)}'.",
            remedy="Ask an administrator for a role that has this permission.",
        )
    slug = wish.slug or propose_slug(entry)
    if Server.objects.filter(slug=slug).exists():
        raise AlreadyExists(
            error_texts.say_already_exists("server", slug),
            remedy="Choose another short name.",
            key=slug,
            among="servers",
        )
    launch = fill_install_option(way, keep_secrets_of(way, wish.values, slug, user, actor))
    audit.record_entry(
        kind="registry.entry_added",
        actor=actor,
        subject=f"server:{slug}",
        registry=entry.source.slug,
        entry=entry.name,
        version=entry.version,
        document=entry.sha256,
        identifier=way.identifier,
    )
    if not way.installs:
        server = _make_server(way, launch, slug)
        server.source = f"registry:{entry.source.slug}"[:40]
        server = lifecycle.save_server(server=server, actor=actor)
        entry.servers.add(server)
        return server
    return installs.request_install(
        ecosystem=way.kind,
        package=way.identifier,
        version=way.version,
        slug=slug,
        arguments=launch.arguments,
        env=launch.env,
        networks=entry.source.allowed_networks if way.kind == Ecosystem.MCPB else (),
        actor=actor,
    )


def _make_server(way: InstallOption, launch: Launch, slug: str) -> Server:
    server = Server(slug=slug, transport=way.transport, url=launch.url)
    if way.kind == containers.KIND:
        server.env = check_env(launch.env)  # names are words of the command
        program = programs.find_container_engine()
        server.command = containers.build_run_command(
            program, way.identifier, launch.image, launch.env, launch.arguments
        )
    else:
        server.headers = launch.headers
    return server


def _lock_entry_as_seen(entry: RegistryEntry, wish: AddRequest) -> RegistryEntry:
    """The entry as it is now, held: a reading that takes it back waits, and then finds what was
    added."""
    rows = RegistryEntry.objects.select_for_update(of=("self",)).select_related("source")
    found = rows.filter(pk=entry.pk, status__in=OFFERED).first()
    if found is None:
        raise Conflict("The registry has withdrawn this entry.", remedy="Choose another server.")
    if wish.sha256 != found.sha256:
        raise Conflict(
            "The entry was changed after you opened it.",
            remedy="Review the entry again, then add it.",
        )
    return found


def keep_secrets_of(
    way: InstallOption, given: Mapping[str, str], slug: str, user: User, actor: str
) -> dict[str, str]:
    """The values, each secret kept as a credential and replaced by what stands for it."""
    values = dict(given)
    secrets = [
        each for each in way.inputs if each.secret and not is_reference(values.get(each.key, ""))
    ]
    for each in secrets:
        values[each.key] = credentials.keep_secret(
            name=_name_credential(each, slug),
            what=each.key,
            value=values[each.key],
            slug=slug,
            user=user,
            actor=actor,
        )
    return values


def _name_credential(asked: InstallInput, slug: str) -> str:
    """Of the credential that is to hold it."""
    said = _NO_NAME.sub("-", asked.variable or asked.name).strip("-.")
    return f"{slug[:26]}-{said[:32]}"
