"""A server's row becomes a Target: the one place where ``${…}`` turns into values.

Invariants:
* Only an active server whose launch is the confirmed one gets a target, so a draft can never run.
* ``${VAR}`` sees only the variables that the operator lists in SLIPSNISSE_PASS_ENV: a server's
  configuration cannot read the site's own secrets.
* A credential or variable is filled in only where its scope names this server or provider.
* A credential changes no program, option, working directory or destination: whoever may change its
  value need not be somebody who may confirm launches.
* A value that was filled in appears in no message: refusals name variables, never contents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django.conf import settings

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.domain.servers.launch import (
    check_command,
    check_env,
    check_pairs,
    check_same_address,
    check_same_words,
    check_url,
    fill,
    fill_pairs,
)
from mcpregistry.domain.servers.target import ServerLimits, ServerTarget
from mcpregistry.domain.text.redaction import find_secrets
from mcpregistry.domain.text.secret_names import is_secret_name
from mcpregistry.models import Credential, Server
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.services.access.scopes import check_scope
from mcpregistry.services.servers.lifecycle import SCHEMES
from mcpregistry.services.servers.notes import warn_once
from mcpregistry.services.servers.sandbox import build_sandbox

LISTED = (
    "Set the variable and add its name to SLIPSNISSE_PASS_ENV, or store the value as a credential."
)


def build_target(server_id: int, *, in_sandbox: bool = False) -> ServerTarget:
    """The server as it is to be started or reached now, secrets resolved. Keep it no longer than
    needed.

    ``in_sandbox``: confined also where that is switched off, for a test of it.

    Raises NotFound (no such server), Conflict (draft, disabled or changed since it was confirmed)
    and ConfigInvalid (switched off, or a value is missing without which it cannot start).
    """
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        raise NotFound(
            error_texts.say_no_such_number("server", server_id),
            remedy="The server may have been deleted. The page Servers lists the existing servers.",
        )
    refuse_unless_runnable(server)
    check_scope(server.texts(), f"server:{server.slug}")
    target = _Filling(server, list_passed_variables()).make_target()
    return replace(target, sandbox=build_sandbox(server, forced=in_sandbox), bounds=server.bounds())


def refuse_unless_runnable(server: Server) -> None:
    """Raises Conflict or ConfigInvalid when the server may not be started or reached."""
    if server.lifecycle == Lifecycle.DISABLED:
        raise Conflict(
            f"The server '{server.slug}' is disabled.", remedy="Enable the server first."
        )
    if server.lifecycle != Lifecycle.ACTIVE or not server.launch_confirmed:
        raise Conflict(
            f"The server '{server.slug}' is a draft: its launch is not confirmed.",
            remedy="Review the launch of the server, then confirm it.",
        )
    if server.transport == Transport.STDIO and not settings.STDIO_ENABLED:
        raise ConfigInvalid(
            "Local servers are disabled on this site.",
            remedy="Set SLIPSNISSE_STDIO=1, then restart the site.",
        )


def list_passed_variables() -> dict[str, str]:
    """Of our environment, what ``${VAR}`` in a record may see."""
    return {name: os.environ[name] for name in settings.PASS_ENV if name in os.environ}


def fill_record_text(text: str, place: str) -> str | None:
    """``text`` of the record at ``place`` with its variables and credentials filled in; None if one
    has no value.

    A secret. Raises ConfigInvalid when one of them may not go there.
    """
    check_scope([text], place)

    def credential(name: str) -> str | None:
        row = Credential.objects.filter(name=name).first()
        return row.value or None if row else None

    return fill(text, variables=list_passed_variables(), credential=credential)


@dataclass(frozen=True, slots=True)
class _Filling:
    """One server's texts on their way to values."""

    server: Server
    variables: Mapping[str, str]
    credentials: set[str] = field(default_factory=set, repr=False)  # values that were filled in

    def make_target(self) -> ServerTarget:
        server = self.server
        local = server.transport == Transport.STDIO
        argv = tuple(self._fill_argv()) if local else ()
        env = self._fill_pairs(server.env, "environment variable") if local else {}
        url, headers = (
            ("", {}) if local else (self._fill_url(), self._fill_pairs(server.headers, "header"))
        )
        return ServerTarget(
            server_id=server.pk,
            slug=server.slug,
            revision=server.revision,
            transport=server.transport,  # type: ignore[arg-type]  # the choices are the literals
            argv=argv,
            cwd=self._fill_cwd() if local else "",
            env=env,
            url=url,
            headers=headers,
            secrets=frozenset(
                find_secrets(pairs={**env, **headers}, argv=argv, url=url)
                | self._list_given_secrets()
            ),
            allowed_networks=tuple(server.allowed_networks),
            protocol=server.protocol_mode,  # type: ignore[arg-type]
            last_era=server.protocol_era if local else "",
            connect=server.connect_mode,  # type: ignore[arg-type]
            resend=server.resend,  # type: ignore[arg-type]
            questions=self.server.questions,
            limits=_build_limits(server),
        )

    def _list_given_secrets(self) -> set[str]:
        """Credentials, and variables of the site whose names say that they hold a secret."""
        return self.credentials | {
            value for name, value in self.variables.items() if is_secret_name(name)
        }

    def _find_credential(self, name: str) -> str | None:
        row = Credential.objects.filter(name=name).first()
        if row is None or not row.value:
            return None
        self.credentials.add(row.value)
        return row.value

    def _fill_argv(self) -> list[str]:
        words = [
            self._fill_text(word, f"command (word {place})")
            for place, word in enumerate(self.server.command, 1)
        ]
        try:
            check_same_words(
                words, [self._replace_credentials(word) for word in self.server.command]
            )
            return check_command(words)
        except ConfigInvalid as error:
            raise self._make_unusable_error("command") from error

    def _fill_cwd(self) -> str:
        cwd = self._fill_text(self.server.cwd, "working directory")
        if cwd != self._replace_credentials(self.server.cwd):
            raise self._make_unusable_error("working directory")
        return cwd

    def _fill_url(self) -> str:
        url = self._fill_text(self.server.url, "URL")
        try:
            check_same_address(url, self._replace_credentials(self.server.url))
            return check_url(url, SCHEMES[Transport(self.server.transport)])
        except (ConfigInvalid, ValueError):
            # the cause quotes the address, which may hold a secret
            raise self._make_unusable_error("URL") from None

    def _replace_credentials(self, text: str) -> str:
        """The text as a person has confirmed it: with a letter in place of each credential."""
        return fill(text, variables=self.variables, credential=lambda _: "x") or ""

    def _fill_pairs(self, pairs: Mapping[str, str], what: str) -> dict[str, str]:
        """Values filled in; a pair without a value is left out, and the server's page says so."""
        filled, missing = fill_pairs(
            pairs, variables=self.variables, credential=self._find_credential
        )
        if missing:
            names = ", ".join(sorted(missing))
            message = f"The server does not receive these {what}s, because their values are missing: {names}. {LISTED}"
            warn_once(server_id=self.server.pk, kind="value_missing", message=message)
        try:
            return (
                check_env(filled) if what == "environment variable" else check_pairs(filled, what)
            )
        except ConfigInvalid as error:
            raise self._make_unusable_error(what) from error

    def _fill_text(self, text: str, what: str) -> str:
        filled = fill(text, variables=self.variables, credential=self._find_credential)
        if filled is None:
            raise ConfigInvalid(
                f"A value in the {what} of the server '{self.server.slug}' is missing: {text}",
                remedy=LISTED,
            )
        return filled

    def _make_unusable_error(self, what: str) -> ConfigInvalid:
        return ConfigInvalid(
            f"The {what} of the server '{self.server.slug}' is not valid after variables and credentials were replaced with their values.",
            remedy="Check the values of the variables and credentials. A credential cannot change a program, a working "
            "directory or a destination, and it cannot add an option. Write an option and its credential as one word, for "
            "example --token=${cred:NAME}.",
        )


def _build_limits(server: Server) -> ServerLimits:
    return ServerLimits(
        connect_timeout=server.connect_timeout,
        request_timeout=server.request_timeout,
        idle_timeout=server.idle_timeout,
        message_bytes=server.max_message_bytes,
        max_concurrency=server.max_concurrency,
        max_tools=server.max_tools,
        definition_bytes=server.max_definition_bytes,
        max_sessions=server.max_sessions,
    )
