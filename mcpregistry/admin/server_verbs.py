"""The buttons on the page of a server, and what they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from mcpregistry.admin.annotations_page import AUTO_VERBS
from mcpregistry.admin.base import Verb, actor
from mcpregistry.admin.confirm_page import MAY_CONFIRM
from mcpregistry.models import Server
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.queries import consequences
from mcpregistry.services.configuration.dispatch import NO_BROKER
from mcpregistry.services.definitions import decisions
from mcpregistry.services.servers import checks, exposed_secrets, lifecycle, sandbox


def is_active(server: Server) -> bool:
    """For verbs that need a confirmed, enabled server."""
    return server.lifecycle == Lifecycle.ACTIVE


def is_unconfined(server: Server) -> bool:
    """For verbs that lead a running local server into its sandbox."""
    return (
        is_active(server)
        and server.transport == Transport.STDIO
        and not server.sandbox_policy().enforced
    )


def is_draft(server: Server) -> bool:
    """For the verb that confirms a launch."""
    return server.lifecycle == Lifecycle.DRAFT


def is_unfinished(server: Server) -> bool:
    """For the way on of a server that nothing can be called of yet."""
    return is_draft(server) or (is_active(server) and not server.tools.serving().exists())


def request_test(request: HttpRequest, server: Server) -> str:
    """Request a server test, and return the message for the user."""
    test = checks.request_test(server=server, actor=actor(request), user=request.user)  # type: ignore[arg-type]
    return (
        gettext("The test has not started yet. {error}").format(error=test.error)
        if test.error
        else gettext("The test has started. Its result appears below in a moment.")
    )


def _try_sandbox(request: HttpRequest, server: Server) -> str:
    test = checks.request_test(
        server=server,
        actor=actor(request),
        user=request.user,  # type: ignore[arg-type]
        in_sandbox=True,
    )
    return (
        gettext("The sandbox test has not started yet. {error}").format(error=test.error)
        if test.error
        else gettext("The sandbox test has started. Its result appears under Server tests.")
    )


def _enforce_sandbox(request: HttpRequest, server: Server) -> str:
    lifecycle.enforce_sandbox(server=server, actor=actor(request))
    return gettext("The sandbox is enabled. All processes restart the server in it.")


def _keep_secrets(request: Any, server: Server) -> str:
    names = exposed_secrets.keep_open_secrets(
        server=server, user=request.user, actor=actor(request)
    )
    stored = ngettext(
        "Stored as the credential {names}. {note} Then confirm the launch again.",
        "Stored as the credentials {names}. {note} Then confirm the launch again.",
        len(names),
    )
    return stored.format(names=", ".join(names), note=exposed_secrets.STILL_THERE)


def _refresh(request: HttpRequest, server: Server) -> str:
    sent = checks.request_refresh(server=server, actor=actor(request))
    return (
        gettext("The tools are being read again.")
        if sent
        else gettext("The tools will be read later. {reason}").format(reason=NO_BROKER)
    )


def _connect(request: HttpRequest, server: Server) -> str:
    sent = checks.request_connect(server=server, actor=actor(request))
    return (
        gettext("A worker is connecting to the server.")
        if sent
        else gettext("A worker will connect to the server later. {reason}").format(reason=NO_BROKER)
    )


def _disconnect(request: HttpRequest, server: Server) -> str:
    checks.request_disconnect(server=server, actor=actor(request))
    return gettext(
        "All processes close their connections. The next call, the next check or the button “Connect "
        "server” opens a new connection."
    )


def _reconnect(request: HttpRequest, server: Server) -> str:
    checks.request_reconnect(server=server, actor=actor(request))
    return gettext("All processes close their connections. The next call opens a new connection.")


def enable(request: HttpRequest, server: Server) -> str:
    """Enable the server, and return the message for the user."""
    if is_active(lifecycle.enable_server(server=server, actor=actor(request))):
        return gettext("The server is active again.")
    return gettext(
        "The server is a draft again, because its launch has changed since it was confirmed. Confirm the launch next."
    )


def disable(request: HttpRequest, server: Server) -> str:
    """Disable the server, and return the message for the user."""
    lifecycle.disable_server(server=server, actor=actor(request))
    return gettext("The server is disabled. Its tools disappear from all lists within a second.")


def _approve_all(request: HttpRequest, server: Server) -> str:
    count = decisions.approve_waiting(server=server, actor=actor(request), user=request.user)
    return ngettext("{count} definition approved.", "{count} definitions approved.", count).format(
        count=count
    )


SERVER_VERBS = (
    Verb(
        "set-up",
        _("Set up server"),
        "view_server",
        "route",
        _("Continue with the next open step."),
        page="mcpregistry_server_set_up_step",
        applies=is_unfinished,
    ),
    Verb(
        "confirm",
        _("Confirm launch"),
        MAY_CONFIRM,
        "verified_user",
        _("Check exactly what will run, then confirm it."),
        page="mcpregistry_server_confirm",
        applies=is_draft,
        style="primary",
    ),
    Verb(
        "test",
        _("Test server"),
        "test_server",
        "network_check",
        _("Connect, list the tools and measure the time."),
        request_test,
        applies=is_active,
        style="primary",
    ),
    Verb(
        "try-sandbox",
        _("Test in the sandbox"),
        "test_server",
        "experiment",
        _("Test the server as it would run in its sandbox. The running server is not affected."),
        _try_sandbox,
        applies=is_unconfined,
    ),
    Verb(
        "enforce-sandbox",
        _("Enable sandbox"),
        "change_server",
        "shield",
        _("The server worked in the sandbox. Always run it there."),
        _enforce_sandbox,
        applies=lambda server: is_unconfined(server) and sandbox.has_passed_sandbox_test(server),
    ),
    Verb(
        "keep-secrets",
        _("Store secrets as credentials"),
        "change_configuration",
        "key",
        _(
            "The command or address contains a secret that all users who can change servers can read."
        ),
        _keep_secrets,
        applies=exposed_secrets.has_open_secrets,
    ),
    Verb(
        "refresh",
        _("Refresh tools"),
        "test_server",
        "refresh",
        _("Read the list of tools again."),
        _refresh,
        applies=is_active,
    ),
    Verb(
        "connect",
        _("Connect server"),
        "test_server",
        "power",
        _("Connect to the server now."),
        _connect,
        applies=is_active,
    ),
    Verb(
        "disconnect",
        _("Disconnect server"),
        "test_server",
        "power_off",
        _("Close all connections. A new connection is opened when it is needed."),
        _disconnect,
        applies=is_active,
    ),
    Verb(
        "reconnect",
        _("Reconnect server"),
        "test_server",
        "restart_alt",
        _("Close all connections and open new ones."),
        _reconnect,
        applies=is_active,
    ),
    Verb(
        "approve",
        _("Approve all definitions"),
        "approve_definition",
        "done_all",
        _("Approve the newest definitions of all tools that wait for approval. Read them first."),
        _approve_all,
        applies=lambda server: server.tools.waiting().exists(),
        asks=consequences.approving_waiting,
    ),
    Verb(
        "enable",
        _("Enable server"),
        "change_server",
        "play_arrow",
        _("Offer the tools of the server again."),
        enable,
        applies=lambda server: server.lifecycle == Lifecycle.DISABLED,
        style="primary",
    ),
    Verb(
        "disable",
        _("Disable server"),
        "change_server",
        "block",
        _("Stop offering the tools of the server."),
        disable,
        applies=lambda server: server.lifecycle != Lifecycle.DISABLED,
        style="danger",
        asks=consequences.disabling,
    ),
    *(
        replace(verb, asks=consequences.auto_approving) if verb.name == "auto-approve" else verb
        for verb in AUTO_VERBS
    ),
)
