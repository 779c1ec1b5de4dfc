"""Which entries of ours stand in hosts' files, whether they still lead here, and mending those that
do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.hosts.connection import build_command_line, read_option
from mcpregistry.domain.hosts.entry_file import read_file_entries
from mcpregistry.models import Token
from mcpregistry.services.access.tokens import hash_token
from mcpregistry.services.hosts.connecting import ConnectOutcome, connect, extract_bearer_token
from mcpregistry.services.hosts.files import HostFile
from mcpregistry.services.hosts.host_connections import (
    OWN,
    VAR,
    build_connection,
    build_endpoint_url,
    check_names,
    find_program,
)

_ENDPOINT = re.compile(r"(?P<site>https?://[^/?#]+(?:/[^?#]*)?)/mcp/(?P<slug>[-a-z0-9_]+)/?\Z")


@dataclass(frozen=True, slots=True)
class EntryStanding:
    """One entry. ``endpoint`` empty: that of the directory. ``agent`` empty: whoever
    SLIPSNISSE_TOKEN belongs to, or over stdio the agent of its workspace. ``problem``: why it is
    stale; empty if it is not.

    ``elsewhere``: it leads to another site, and is none of our business.
    """

    file: HostFile
    key: str = ""
    endpoint: str = ""
    agent: str = ""
    http: bool = False
    problem: str = ""
    elsewhere: bool = False
    mendable: bool = False


def list_standing(files: Iterable[HostFile]) -> list[EntryStanding]:
    """Every entry that is ours, in these files; a file that cannot be read is one with its problem,
    and no key."""
    found: list[EntryStanding] = []
    for file in files:
        try:
            there = read_file_entries(file.host, file.read_text(), str(file.path))
        except SlipsnisseError as error:
            found.append(EntryStanding(file, problem=str(error)))
            continue
        found += [
            entry for key, item in there.items() if (entry := _read_standing(file, key, item))
        ]
    return found


def rewrite_entry(*, entry: EntryStanding, actor: str, keep: bool = True) -> ConnectOutcome:
    """Write the entry anew, for the same endpoint, agent and way. ``keep`` as in ``connect``."""
    return connect(
        file=entry.file,
        endpoint=entry.endpoint,
        agent=entry.agent,
        http=entry.http,
        actor=actor,
        key=entry.key,
        keep=keep,
    )


def _read_standing(file: HostFile, key: str, item: dict[str, Any]) -> EntryStanding | None:
    words, env, url, _ = file.host.spelling.read(item)
    if "runmcp" in words:
        return _read_local_standing(file, key, item, words, env)
    if match := _ENDPOINT.match(url):
        return _read_remote_standing(file, key, item, match["site"], match["slug"])
    return None


def _read_local_standing(
    file: HostFile, key: str, item: dict[str, Any], words: tuple[str, ...], env: Mapping[str, str]
) -> EntryStanding:
    endpoint = "" if "--workspace" in words else read_option(words, "--endpoint", "default")
    agent = read_option(words, "--agent", "")
    manage = Path(next((word for word in words if word.endswith("manage.py")), ""))
    var = manage.parent / (env.get(VAR) or "var")  # as the settings read it
    away = (manage, var) != (find_program(), Path(settings.VAR_DIR)) and manage.is_absolute()
    if away and manage.exists() and var.is_dir():
        return EntryStanding(file, key, endpoint, agent, elsewhere=True)
    if (
        words[1:] != build_command_line("", str(manage), endpoint, agent)[1:]
        or not manage.is_absolute()
    ):
        # Somebody's own way to start it (through ssh, with --config): theirs to change.
        return EntryStanding(file, key, endpoint, agent, problem=_explain_missing_path(words))
    problem = _explain_unusable(endpoint, agent)
    if problem:
        return EntryStanding(file, key, endpoint, agent, problem=problem)
    expected = file.host.entry(
        build_connection(endpoint=endpoint, agent=agent, http=False, key=key)
    )
    problem = _explain_difference(file, item, expected, words)
    return EntryStanding(file, key, endpoint, agent, problem=problem, mendable=bool(problem))


def _explain_difference(
    file: HostFile, item: dict[str, Any], expected: dict[str, Any], words: tuple[str, ...]
) -> str:
    new_words, new_env, _, _ = file.host.spelling.read(expected)
    if gone := _explain_missing_path(words):
        return gone
    if words != new_words:
        return "The command of the entry is out of date."
    env = file.host.spelling.read(item)[1]
    if missing := [
        name
        for name in {**new_env, **dict.fromkeys(sorted(OWN))}
        if env.get(name) != new_env.get(name)
    ]:
        return (
            f"These variables of the entry are missing or have other values: {', '.join(missing)}."
        )
    always = [name for name in file.host.spelling.always if item.get(name) != expected[name]]
    return f'The key "{always[0]}" of the entry is missing or has another value.' if always else ""


def _explain_missing_path(words: tuple[str, ...]) -> str:
    gone = [word for word in words[:2] if Path(word).is_absolute() and not Path(word).exists()]
    return f"The file {gone[0]} does not exist any more." if gone else ""


def _read_remote_standing(
    file: HostFile, key: str, item: dict[str, Any], site: str, endpoint: str
) -> EntryStanding | None:
    raw = extract_bearer_token(file, item)
    token = (
        Token.objects.select_related("agent").filter(hash=hash_token(raw)).first() if raw else None
    )
    agent = token.agent.slug if token and token.agent else ""
    here = site == settings.SITE_URL
    if not here and token is None:
        return (
            EntryStanding(file, key, endpoint, http=True, elsewhere=True)
            if key.startswith("slipsnisse")
            else None
        )
    problem = _explain_unusable(endpoint, agent) or (
        "" if here else f"The address of the endpoint is now {build_endpoint_url(endpoint)}."
    )
    problem = problem or _explain_token_problem(raw, token)
    mendable = bool(problem and agent) and not _explain_unusable(endpoint, agent)
    return EntryStanding(file, key, endpoint, agent, True, problem, mendable=mendable)


def _explain_token_problem(raw: str, token: Token | None) -> str:
    if raw and token is None:
        return "This site does not know the token of the entry. Connect the host again."
    if token is None:
        return ""
    if token.revoked_at:
        return "The token of the entry was revoked."
    return (
        "The token of the entry has expired."
        if token.expires_at and token.expires_at <= timezone.now()
        else ""
    )


def _explain_unusable(endpoint: str, agent: str) -> str:
    try:
        if agent:
            check_names(endpoint=endpoint, agent=agent)
    except SlipsnisseError as error:
        return str(error)
    return ""
