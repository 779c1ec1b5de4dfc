"""What happens to servers: saved, confirmed, enabled, disabled, removed. Every verb is audited.

Adding or changing a stdio server is code execution on this machine, so a server is inert until a
person with the right confirms exactly what will be launched; any change of that makes it a draft.
"""

from __future__ import annotations

from copy import copy

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied
from mcpregistry.domain.policy.access import EVERYTHING
from mcpregistry.domain.servers.launch import (
    check_command,
    check_env,
    check_networks,
    check_pairs,
    check_url,
)
from mcpregistry.domain.servers.redacted_env import mask_record_secrets
from mcpregistry.models import Server
from mcpregistry.models.confinement import SandboxMode
from mcpregistry.models.server import ConnectMode, Lifecycle, SharedBy, Transport
from mcpregistry.services.access.scopes import check_scope, rename_in_scopes
from mcpregistry.services.configuration.capabilities import check_slug
from mcpregistry.services.configuration.dependents import end_dependents
from mcpregistry.services.configuration.rule_inputs import check_rule_inputs
from mcpregistry.services.configuration.saving import check_fields, store_checked, take_current
from mcpregistry.services.records import audit
from mcpregistry.services.servers.sandbox import check_sandbox, has_passed_sandbox_test, is_narrower

SANDBOX = (
    "sandbox",
    "sandbox_network",
    "sandbox_read",
    "sandbox_write",
    "sandbox_connect",
    "sandbox_listen",
)
BOUNDS = ("max_memory_mb", "max_processes", "max_cpu_seconds", "max_file_mb", "max_open_files")
# Changing one of these closes open connections: they are part of the server's revision.
_REVISED = (
    "slug",
    "transport",
    "command",
    "cwd",
    "url",
    "allowed_networks",
    "connect_mode",
    "resend",
    "protocol_mode",
    "connect_timeout",
    "request_timeout",
    "idle_timeout",
    "max_message_bytes",
    "max_concurrency",
    "max_tools",
    "max_definition_bytes",
    "env",
    "headers",
    "shared_by",
    "max_sessions",
    "asks_elicitation",
    "asks_sampling",
    "asks_roots",
    "sampling_expert",
    *SANDBOX,
    *BOUNDS,
)

# Only confirmations, ``enable_server``, ``disable_server``, connections and checks write these
# columns. ``save_server`` ignores values that its caller has set in an existing row.
_BY_OTHERS = (
    "lifecycle",
    "revision",
    "launch_by",
    "confirmed_launch",
    "confirmed_by",
    "confirmed_at",
    "last_ok_at",
    "last_error",
    "last_error_code",
    "last_error_at",
    "consecutive_failures",
    "unavailable_since",
    "next_check_at",
    "check_until",
    "check_by",
    "protocol_era",
    "server_info",
    "server_instructions",
    "refreshed_at",
    "features",
    "left_out",
    "last_connected_at",
)

SCHEMES = {
    Transport.HTTP: ("http", "https"),
    Transport.SSE: ("http", "https"),
    Transport.WEBSOCKET: ("ws", "wss"),
}


def check_server(server: Server) -> None:
    """Raises ConfigInvalid when the server's launch facts cannot work, whoever made them."""
    if f"mcp_{server.slug}" == EVERYTHING:
        raise ConfigInvalid(
            f"A server cannot have the name '{server.slug}', because the capability {EVERYTHING} already means every server.",
            remedy="Choose another short name.",
        )
    if server.shared_by != SharedBy.EVERYBODY and server.connect_mode != ConnectMode.LAZY:
        raise ConfigInvalid(
            f"The connect mode of the server '{server.slug}' must be lazy, because its calls do not all share one connection (shared by: {server.shared_by}).",
            remedy="Set the connect mode to lazy (at the first call), or set “shared by” to all calls.",
        )
    if server.transport == Transport.STDIO:
        check_command(server.command)
        check_env(server.env)
        check_sandbox(server)
        if server.url:
            raise ConfigInvalid(
                "A local server cannot have a URL.",
                remedy="Remove the URL, or choose another transport.",
            )
        return
    if server.command:
        raise ConfigInvalid(
            "A remote server cannot have a command.",
            remedy="Remove the command, or choose the transport stdio.",
        )
    check_url(server.url, SCHEMES[Transport(server.transport)])
    check_pairs(server.headers, "Headers")
    check_networks(server.allowed_networks)


@transaction.atomic
def save_server(*, server: Server, actor: str, rights: Rights = deny_all_rights) -> Server:
    """Create or change a server. New ones, and those whose launch changed, become drafts.

    Raises ConfigInvalid, and Denied as ``check_rule_inputs``.
    """
    before = take_current(server, own=_BY_OTHERS)
    check_server(server)
    check_fields(server)
    check_rule_inputs(server, before, rights=rights)
    if before is None or before.slug != server.slug:
        check_slug(server.slug, before.slug if before else "")
        if before:
            rename_in_scopes(f"server:{before.slug}", f"server:{server.slug}")
    check_scope(server.texts(), f"server:{server.slug}")
    if before is None:
        server.lifecycle = (
            Lifecycle.DISABLED if server.lifecycle == Lifecycle.DISABLED else Lifecycle.DRAFT
        )
        server.confirmed_launch = ""
    else:
        changed = any(_read_value(before, name) != _read_value(server, name) for name in _REVISED)
        server.revision = before.revision + changed
    if before is None or not _is_still_confirmed(before, server):
        _note_author(server, before, actor)
    if server.lifecycle == Lifecycle.ACTIVE and not server.launch_confirmed:
        server.lifecycle = Lifecycle.DRAFT
    store_checked(server)
    kind = "server.changed" if before else "server.created"
    audit.record_entry(
        kind=kind,
        actor=actor,
        subject=f"server:{server.slug}",
        revision=server.revision,
        **_describe_launch(server),
    )
    return server


@transaction.atomic
def enforce_sandbox(*, server: Server, actor: str) -> Server:
    """Switch it on, once a test in it has passed; the launch stays confirmed. Raises Conflict
    before that."""
    take_current(server, own=_BY_OTHERS)
    if not has_passed_sandbox_test(server):
        raise Conflict(
            "No test in the sandbox has passed since the last change.",
            remedy="First test the server in the sandbox.",
        )
    return save_server(server=server.change(sandbox=SandboxMode.ENFORCE), actor=actor)


@transaction.atomic
def confirm_launch(*, server: Server, actor: str, launch_hash: str, user: object = None) -> Server:
    """Activate a server as it was shown: ``launch_hash`` is that of the page the person saw."""
    server = Server.objects.select_for_update().get(pk=server.pk)
    if server.launch_hash() != launch_hash:
        raise Conflict(
            "The server was changed after you opened this page.",
            remedy="Review the server again, then confirm it.",
        )
    if settings.FOUR_EYES and actor.startswith("user:") and actor in (server.launch_by or []):
        raise Denied(
            "You have changed the launch of this server. On this site, another user must confirm the change.",
            remedy="Ask another user to confirm the server. This user needs the permission to confirm servers.",
        )
    if server.transport == Transport.STDIO and not settings.STDIO_ENABLED:
        raise ConfigInvalid(
            "Local servers are disabled on this site.",
            remedy="Set SLIPSNISSE_STDIO=1, then restart the site.",
        )
    check_server(server)
    now = timezone.now()
    server.confirmed_launch = launch_hash
    server.confirmed_at = now
    server.confirmed_by = user  # type: ignore[assignment]
    server.lifecycle = Lifecycle.ACTIVE
    server.next_check_at = now
    server.unavailable_since = None
    server.consecutive_failures = 0
    server.launch_by = None
    server.protocol_era = ""  # the new launch may use another one
    server.save()
    audit.record_entry(
        kind="server.confirmed",
        actor=actor,
        subject=f"server:{server.slug}",
        launch=launch_hash,
        **_describe_launch(server),
    )
    return server


@transaction.atomic
def withdraw_launch(*, server: Server, actor: str) -> None:
    """Make an active server a draft again: it stops until a person confirms its launch. A disabled
    server stays disabled."""
    server = Server.objects.select_for_update().get(pk=server.pk)
    if server.lifecycle == Lifecycle.DISABLED and not server.confirmed_launch:
        return
    server.confirmed_launch = ""
    if server.lifecycle == Lifecycle.ACTIVE:
        server.lifecycle = Lifecycle.DRAFT
        server.next_check_at = None
    server.save()
    audit.record_entry(
        kind="server.launch_withdrawn",
        actor=actor,
        subject=f"server:{server.slug}",
        lifecycle=server.lifecycle,
    )


def disable_server(*, server: Server, actor: str) -> Server:
    """Stop serving it everywhere; its tools vanish from every list within a second."""
    return _move(server, Lifecycle.DISABLED, actor, "server.disabled")


def enable_server(*, server: Server, actor: str) -> Server:
    """Back to active if its launch is still the confirmed one, else to draft."""
    return _move(server, None, actor, "server.enabled")


@transaction.atomic
def delete_server(*, server: Server, actor: str, rights: Rights = deny_all_rights) -> None:
    """Remove it with its tools and grants; the records of its calls stay. Raises Conflict as
    ``end_dependents``."""
    end_dependents(server, actor=actor, rights=rights)
    audit.record_entry(
        kind="server.deleted",
        actor=actor,
        subject=f"server:{server.slug}",
        **_describe_launch(server),
    )
    server.tools.update(pinned=None, latest=None)
    rename_in_scopes(f"server:{server.slug}")
    server.delete()


@transaction.atomic
def _move(server: Server, state: Lifecycle | None, actor: str, kind: str) -> Server:
    """``state`` None: active if the launch is the confirmed one, else draft; decided while the row
    is locked."""
    server = Server.objects.select_for_update().get(pk=server.pk)
    if state is None:
        state = Lifecycle.ACTIVE if server.launch_confirmed else Lifecycle.DRAFT
    server.lifecycle = state
    server.next_check_at = timezone.now() if state == Lifecycle.ACTIVE else None
    server.save()
    audit.record_entry(kind=kind, actor=actor, subject=f"server:{server.slug}", lifecycle=state)
    return server


def _is_still_confirmed(before: Server, server: Server) -> bool:
    """A sandbox that is made narrower, and nothing else of the launch, leaves a confirmed launch
    confirmed."""
    if not before.confirmed_launch or _hash_launch(before) != before.confirmed_launch:
        return False
    if not is_narrower(server, before):
        return False
    as_before = copy(server)
    for name in SANDBOX:
        setattr(as_before, name, getattr(before, name))
    if _hash_launch(as_before) != before.confirmed_launch:
        return False
    server.confirmed_launch = server.launch_hash()
    return True


def _note_author(server: Server, before: Server | None, actor: str) -> None:
    """Everybody who has changed the launch since it was confirmed: the last of them alone could be
    a stooge."""
    if before is not None and _hash_launch(before) == _hash_launch(server):
        return
    so_far = (before.launch_by if before else None) or []
    server.launch_by = [*so_far, *([actor] if actor not in so_far else [])]


def _hash_launch(server: Server) -> str | None:
    try:
        return server.launch_hash()
    except ConfigInvalid:  # a secret whose key is lost
        return None


def _read_value(server: Server, name: str) -> object:
    """A field's value; None for a secret whose key is lost, so that it can be entered anew."""
    try:
        return getattr(server, name)
    except ConfigInvalid:
        return None


def may_see_secrets_of_launch(user: User | None) -> bool:
    """Whether a person may read secrets in commands and addresses: everyone who may change or
    confirm servers."""
    rights = ("mcpregistry.change_server", "mcpregistry.confirm_server")
    return user is not None and any(user.has_perm(right) for right in rights)


def _describe_launch(server: Server) -> dict[str, object]:
    """What the audit log keeps for good of a launch: nothing that is secret in its words or its
    address."""
    return {"lifecycle": server.lifecycle} | mask_record_secrets(server.launch_facts())
