"""Confirming a server's launch: what will run on this machine, or be reached."""

from __future__ import annotations

import os
import shutil
from typing import Any

from django.utils.translation import gettext

from mcpregistry.admin.confirm_page import ConfirmPage
from mcpregistry.domain.servers.redacted_env import redact_env
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Server
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.services.servers import checks, lifecycle, sandbox
from mcpregistry.services.servers.exposed_secrets import find_open_secrets


class LaunchPage(ConfirmPage[Server]):
    """The page behind "Confirm launch"."""

    template = "admin/mcpregistry/confirm_launch.html"

    def title(self, record: Server) -> str:
        return gettext("Confirm the launch of {server}").format(
            server=show_invisible_characters(record.slug)
        )

    def confirm(self, record: Server, *, shown: str, actor: str, user: object) -> str:
        server = lifecycle.confirm_launch(server=record, actor=actor, launch_hash=shown, user=user)
        return gettext("{server} is active. {test}").format(
            server=server.slug, test=_start_test(server, actor, user)
        )

    def facts(self, record: Server) -> dict[str, Any]:
        field = record._meta.get_field
        facts: dict[str, Any] = {
            "shown": record.launch_hash(),
            "confirmed": record.lifecycle == Lifecycle.ACTIVE,
            "local": record.transport == Transport.STDIO,
            "folders": record.asks_roots,
            "limits": [
                (field(name).verbose_name, value)  # type: ignore[union-attr]
                for name, value in record.list_raised_limits().items()
            ],
        }
        facts["open_secrets"] = find_open_secrets(record)
        return facts | (_program(record) if facts["local"] else {"headers": sorted(record.headers)})


def _start_test(server: Server, actor: str, user: Any) -> str:
    """Have it tested at once by whoever may; what they are told of that."""
    if not user.has_perm("mcpregistry.test_server"):
        return gettext("Next, a user who can test servers must test it.")
    test = checks.request_test(server=server, actor=actor, user=user)
    return (
        gettext("The test has not started yet. {error}").format(error=test.error)
        if test.error
        else gettext("The test has started.")
    )


def _program(server: Server) -> dict[str, Any]:
    program = server.command[0] if server.command else ""
    return {
        "env": redact_env(server.env).items(),
        "words": server.command,
        "program": program,
        "file": resolve_program(program),
        "policy": server.sandbox_policy(),
        "protection": sandbox.find_server_protection(server),
        "hidden": sandbox.list_hidden_from(server),
    }


def resolve_program(program: str) -> str:
    """The file that would be executed now, links followed; empty when there is none."""
    found = shutil.which(program)
    return os.path.realpath(found) if found else ""
