"""``runmcp --config FILE``: naming a file on one's own command line vouches for it.

An import alone makes drafts. Here the file's servers are confirmed as they stand in it, asked what
they offer, and its expert tools are offered to one agent on an endpoint of the file's own. What
anybody has decided before stands: a server or tool that was switched off, a definition that was
rejected or has changed since it was approved.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connections, transaction

from mcpregistry.domain import formats
from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, ImportedFile, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access import agents
from mcpregistry.services.access.scopes import allow_file_variables, grant_variables
from mcpregistry.services.exchange.files import map_folder_variables, read_file
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.sections import make_sections
from mcpregistry.services.records import audit
from mcpregistry.services.servers import checks
from mcpregistry.services.servers.lifecycle import confirm_launch, delete_server
from mcpregistry.services.servers.prober import Prober

_FAMILY = "slipsnisse"
_LAST_LINES = 10  # of a server's log
# never handed to a server or a provider
_OWN = ("SLIPSNISSE_", "DJANGO_", "DATABASE_URL", "CELERY_")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-[^}]*)?\}")


class FileRefusedError(ConfigInvalid):
    """The file cannot be used. ``problems``: each with its place and remedy, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "The file cannot be used.", remedy="Correct the problems that are listed above."
        )


@dataclass(frozen=True, slots=True)
class Served:
    """What is served: endpoint, agent, and notes to tell.

    ``variables``: of our environment, what the file's servers and providers refer to.
    """

    agent: str
    endpoint: str
    variables: frozenset[str]
    notes: tuple[str, ...]


def serve_file(
    *, path: Path, agent: str, endpoint: str, actor: str, environ: Mapping[str, str]
) -> Served:
    """Import the file and make it servable. Raises Refused, and then nothing of it is offered.

    ``endpoint`` empty: one of the file's own, which lists its tools and nothing else.
    """
    path = path.absolute()
    with hold_setup_lock():
        with allow_file_variables():
            outcome = _import_trusted_file(path, actor, environ)
        made = _Made(path, outcome, agent, make_endpoint_slug(path))
        try:
            return _make_servable(path, outcome, agent, endpoint, actor)
        except BaseException:
            made.take_back(actor)
            raise


def _make_servable(
    path: Path, outcome: ImportOutcome, agent: str, endpoint: str, actor: str
) -> Served:
    named = [change.slug for change in outcome.changes if change.kind == "server"]
    servers = list(Server.objects.filter(slug__in=named).order_by("slug"))
    _confirm(servers, actor)
    variables = list_server_variables(servers)
    with allow_passed_variables(variables):
        problems = ask_servers(servers)
    if problems:
        raise FileRefusedError(list(problems.values()))
    labels = frozenset(change.label for change in outcome.changes if change.kind != "server")
    caller = Agent.objects.filter(slug=agent).first() or agents.save_agent(
        agent=Agent(slug=agent), actor=actor
    )
    door = _get_or_create_endpoint(endpoint or make_endpoint_slug(path), path, actor)
    for section in make_sections():
        if obstacles := section.serve(labels, agent=caller, endpoint=door, actor=actor):
            raise FileRefusedError([f"{path}: {problem}" for problem in obstacles])
        variables |= _find_variables(section.references(labels))
    kept = tuple(str(note) for note in outcome.notes if note.remedy)
    return Served(caller.slug, door.slug, variables, kept)


class _Made:
    """What a start makes. If nothing of the file is served, it is deleted, so that the next start
    is as good as a first one."""

    def __init__(self, path: Path, outcome: ImportOutcome, agent: str, endpoint: str) -> None:
        self._path = str(path)
        made = [change for change in outcome.changes if change.action == "created"]
        self._servers = [change.slug for change in made if change.kind == "server"]
        self._labels = frozenset(change.label for change in made if change.kind != "server")
        self._agent = "" if Agent.objects.filter(slug=agent).exists() else agent
        self._endpoint = "" if Endpoint.objects.filter(slug=endpoint).exists() else endpoint

    @transaction.atomic
    def take_back(self, actor: str) -> None:
        with audit.collect_entries():
            for section in make_sections():
                section.take_back(self._labels, actor=actor)
            for server in Server.objects.filter(slug__in=self._servers):
                delete_server(server=server, actor=actor, rights=grant_all_rights)
            for endpoint in Endpoint.objects.filter(slug=self._endpoint):
                agents.delete_endpoint(endpoint=endpoint, actor=actor, rights=grant_all_rights)
            for agent in Agent.objects.filter(slug=self._agent):
                agents.delete_agent(agent=agent, actor=actor, rights=grant_all_rights)
            self._forget()

    def _forget(self) -> None:
        for kept in ImportedFile.objects.select_for_update().filter(family=_FAMILY):
            brought = dict(kept.rest.get("brought", {}))
            brought[self._path] = sorted({*brought.get(self._path, ())} - self._labels)
            kept.rest = kept.rest | {
                "brought": {path: labels for path, labels in brought.items() if labels}
            }
            kept.save()


def make_endpoint_slug(path: Path) -> str:
    """A slug that tells files of one name in several folders apart."""
    return (
        f"{make_slug(path.stem)[:50] or 'file'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
    )


@contextmanager
def hold_setup_lock() -> Iterator[None]:
    """Wait for other processes that set up a file: several hosts may start the same one in the same
    moment."""
    settings.VAR_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.VAR_DIR / "config.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _import_trusted_file(path: Path, actor: str, environ: Mapping[str, str]) -> ImportOutcome:
    try:
        raw = read_file(path)
    except OSError as error:
        raise FileRefusedError(
            [
                f"{path} cannot be read: {error.strerror}. Check the name and the permissions of the file."
            ]
        ) from None
    outcome = import_file(
        raw=raw,
        path=str(path),
        actor=actor,
        format_name=_choose_format(raw, path),
        on_conflict="own",
        variables=environ,
        folders=map_folder_variables(path, None),
        may_rule=True,
        may_grant=True,
        rights=grant_all_rights,
    )
    if outcome.refused:
        raise FileRefusedError([str(note) for note in outcome.refused])
    if not any(change.kind == "tool" for change in outcome.changes):
        raise FileRefusedError(
            [
                f"{path}: The file does not contain expert tools. To use the servers of the file, run `manage.py importconfig`."
            ]
        )
    return outcome


def _choose_format(raw: bytes, path: Path) -> str:
    """The extended format understands all that the plain one does; what is only valid as plain is
    read as that."""
    try:
        found = formats.recognise(text.load(raw, str(path)), str(path))
    except FileInvalid as error:
        raise FileRefusedError([str(error.note)]) from None
    if found.family != _FAMILY:
        raise FileRefusedError(
            [
                f"{path}: The file is a {found.title} file, which cannot contain expert tools. To use the servers of the file, run `manage.py importconfig`."
            ]
        )
    refused = {
        name: formats.read(raw, str(path), name)[1].refused
        for name in ("slipsnisse-extended", "slipsnisse")
    }
    return (
        "slipsnisse"
        if refused["slipsnisse-extended"] and not refused["slipsnisse"]
        else "slipsnisse-extended"
    )


def _confirm(servers: Sequence[Server], actor: str) -> None:
    off = [server.slug for server in servers if server.lifecycle == Lifecycle.DISABLED]
    if off:
        raise FileRefusedError(
            [
                f"The server '{name}' is disabled. Enable it, or remove it from the file."
                for name in off
            ]
        )
    for server in servers:
        if server.lifecycle != Lifecycle.ACTIVE or not server.launch_confirmed:
            confirm_launch(server=server, actor=actor, launch_hash=server.launch_hash())
            grant_variables(server.texts(), f"server:{server.slug}", actor)
            # it may be another program now
            Server.objects.filter(pk=server.pk).update(refreshed_at=None)


def ask_servers(servers: Sequence[Server]) -> dict[str, str]:
    """Ask each server once what it offers; later starts know it, and connections notice changes.

    Returns what is wrong with those that do not work, by their slugs.
    """
    new = list(Server.objects.filter(pk__in=[server.pk for server in servers], refreshed_at=None))
    if not new:
        return {}
    prober = Prober()
    try:
        with ThreadPoolExecutor(len(new[:8])) as threads:
            problems = list(threads.map(lambda server: _learn(prober, server), new))
    finally:
        prober.close()
    return {server.slug: problem for server, problem in zip(new, problems, strict=True) if problem}


def _learn(prober: Prober, server: Server) -> str:
    """What is wrong with the server; empty when nothing is."""
    try:
        report = prober.test(server.pk)
        if report.discovery is None or report.error is not None:
            why = f"The server '{server.slug}' does not work: {report.error or 'it did not list any tools.'}"
            return "\n".join([why, *_read_log_tail(report.stderr)])
        checks.record_discovery(server=server, discovery=report.discovery, process="runmcp")
        return ""
    except SlipsnisseError as error:
        return f"The server '{server.slug}' does not work: {error}"
    finally:
        connections.close_all()


def _read_log_tail(stderr: str) -> list[str]:
    """The end of what the server wrote to its log, for there is no page on which it could be
    read."""
    lines = [show_invisible_characters(line, 300) for line in stderr.splitlines() if line.strip()][
        -_LAST_LINES:
    ]
    return (
        ["The last lines of the log of the server:", *(f"  {line}" for line in lines)]
        if lines
        else []
    )


def _get_or_create_endpoint(name: str, path: Path, actor: str) -> Endpoint:
    """One that is not there yet lists nothing but what the file offers on it."""
    found = Endpoint.objects.filter(slug=name).first()
    return found or agents.save_endpoint(
        endpoint=Endpoint(slug=name, name=path.name, scope=Endpoint.Scope.LISTED), actor=actor
    )


def list_server_variables(servers: Sequence[Server]) -> frozenset[str]:
    """Names of the variables of the environment that the servers refer to, without the site's
    own."""
    return _find_variables(_list_texts(servers))


def _list_texts(servers: Sequence[Server]) -> list[str]:
    return [
        each
        for server in servers
        for each in (
            *server.command,
            server.cwd,
            server.url,
            *server.env.values(),
            *server.headers.values(),
        )
    ]


def _find_variables(texts: Sequence[str]) -> frozenset[str]:
    names = (name for each in texts for name in _VARIABLE.findall(each))
    return frozenset(name for name in names if not name.startswith(_OWN))


@contextmanager
def allow_passed_variables(variables: frozenset[str]) -> Iterator[None]:
    """In this block servers may be given these variables of the environment of the process."""
    before = settings.PASS_ENV
    settings.PASS_ENV = sorted({*before, *variables})
    try:
        yield
    finally:
        settings.PASS_ENV = before
