"""The verbs: an entry of ours is put into a host's file, or taken out. Tokens made for a file end
with its entry."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.hosts.entry_file import put_entry, read_file_entries, remove_entry
from mcpregistry.models import Agent, Token
from mcpregistry.services.access import tokens
from mcpregistry.services.hosts.files import HostFile
from mcpregistry.services.hosts.host_connections import OWN, build_connection, check_names
from mcpregistry.services.records import audit

# a token's name begins so if it was made for one file, and stands nowhere else
_MADE_HERE = "connect: "
_UNSEEN = "slp_…"


@dataclass(frozen=True, slots=True)
class ConnectOutcome:
    """``text`` is what the file holds now, or would; ``kept`` where its content before is;
    ``changed``: it is another."""

    file: HostFile
    key: str
    changed: bool
    text: str = field(default="", repr=False)
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class Signing:
    """How a host that comes over HTTP signs in: ``given`` is a token's text, else one is made for
    the file.

    ``by_environment``: the file names SLIPSNISSE_TOKEN, and no token stands in it.
    """

    given: str = field(default="", repr=False)
    by_environment: bool = False


@transaction.atomic
def connect(
    *,
    file: HostFile,
    endpoint: str,
    agent: str,
    http: bool,
    actor: str,
    signing: Signing | None = None,
    key: str = "",
    dry: bool = False,
    keep: bool = True,
) -> ConnectOutcome:
    """Put the entry into the file, in place of one of the same name. ``dry``: say only what would
    stand there; ``keep``: what the file held before is kept beside it. An empty ``endpoint`` is
    explained at ``host_connections.build_connection``.

    Raises ``NotFound`` for an endpoint or agent that cannot be used, ``ConfigInvalid`` for a file
    that cannot be changed without harm; then no token was made either.
    """
    before = file.read_text()
    check_names(endpoint=endpoint, agent=agent)
    plain = build_connection(endpoint=endpoint, agent=agent, http=http, key=key)
    old = extract_bearer_token(
        file, read_file_entries(file.host, before, str(file.path)).get(plain.key, {})
    )
    token = (
        _issue_or_keep_token(
            file, Agent.objects.get(slug=agent), signing or Signing(), old, actor=actor, dry=dry
        )
        if http
        else ""
    )
    entry = file.host.entry(
        build_connection(endpoint=endpoint, agent=agent, http=http, token=token, key=key)
    )
    text = put_entry(file.host, before, plain.key, entry, str(file.path), own=OWN)
    if dry or text == before:
        return ConnectOutcome(file, plain.key, text != before, text)
    if old and old != token:
        _revoke_token(old, actor)
    _note(
        "host.connected",
        file,
        actor,
        agent=agent,
        endpoint=endpoint,
        way="http" if http else "stdio",
    )
    kept = file.replace(before, text, secret=bool(token), keep=keep)
    return ConnectOutcome(file, plain.key, True, text, kept)


@transaction.atomic
def disconnect(*, file: HostFile, key: str, actor: str, dry: bool = False) -> ConnectOutcome:
    """Take the entry of this name out of the file; a token that was made for it is revoked."""
    before = file.read_text()
    token = extract_bearer_token(
        file, read_file_entries(file.host, before, str(file.path)).get(key, {})
    )
    text = remove_entry(file.host, before, key, str(file.path))
    if dry or text == before:
        return ConnectOutcome(file, key, text != before, text)
    if token:
        _revoke_token(token, actor)
    _note("host.disconnected", file, actor, entry=key)
    return ConnectOutcome(file, key, True, text, file.replace(before, text, secret=False))


def extract_bearer_token(file: HostFile, entry: dict[str, object]) -> str:
    """The token that stands in an entry; empty where it names a variable, or none."""
    token = file.host.spelling.read(entry)[3].removeprefix("Bearer ").strip()
    return token if token.startswith(tokens.PREFIX) else ""


def _issue_or_keep_token(
    file: HostFile, agent: Agent, signing: Signing, old: str, *, actor: str, dry: bool
) -> str:
    if signing.by_environment or (file.shared and not signing.given):
        return ""
    if file.shared:
        raise ConfigInvalid(
            f"The file {file.path} belongs to a project. Everyone who can read the files of the project could read the token.",
            remedy="Leave out the token. The host can read it from the environment variable SLIPSNISSE_TOKEN instead.",
        )
    if signing.given:
        return _check_token(signing.given, agent)
    if old and (found := tokens.find_token(old)) and found.agent_id == agent.pk:
        return old
    if dry:
        return _UNSEEN
    return tokens.issue_token(
        name=f"{_MADE_HERE}{file.host.slug} {file.path}"[:200], actor=actor, agent=agent
    )[1]


def _check_token(text: str, agent: Agent) -> str:
    token = tokens.find_token(text)
    if token is None or token.agent_id != agent.pk:
        raise ConfigInvalid(
            f'This is not a valid token of the agent "{agent}".',
            remedy="Issue a token on the agent's page, or leave the token out.",
        )
    return text


def _revoke_token(raw: str, actor: str) -> None:
    made = Token.objects.filter(
        hash=tokens.hash_token(raw), revoked_at=None, name__startswith=_MADE_HERE
    ).first()
    if made is not None:
        tokens.revoke_token(token=made, actor=actor)


def _note(kind: str, file: HostFile, actor: str, **facts: str) -> None:
    audit.record_entry(
        kind=kind, actor=actor, subject=f"host:{file.host.slug}", file=str(file.path), **facts
    )
