"""The first milliseconds of ``runmcp``: claim the host's pipe and answer its opening while Django
is still loading.

Hosts are impatient: one runs without a server that is silent for a second, another's era probe
waits two. So this module (standard library only, as ``kept_answers``) claims stdin and stdout
before anything else, reads, and answers the opening ``server/discover`` or ``initialize`` with the
bytes that the real server answered last time to the same question. It answers ``tools/list``
likewise, but only while the configuration still has the revision at which that list was made.
Modern hosts wait for their change stream before they ask for it, so ``subscriptions/listen`` is
acknowledged as well. The request still goes to the real server; its own answer is not sent a second
time but kept for the next start. At a host's first start, or its first after a change, what a web
process has kept meanwhile is said (``handshake_cache.py``): openings that every endpoint without
instructions answers alike, and the openings and lists of endpoints and agents. A web process needs
a moment after a change, so this module looks for its answers again until the real server is there.
Without kept bytes there is no early answer.

From here on nothing but the protocol can reach stdout: descriptor 1 is stderr.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from mcpregistry.domain.project_files import PROJECT_FILES
from mcpregistry.gateway.stdio.kept_answers import (
    StoredAnswer,
    get_common_path,
    get_lists_path,
    get_wanted_path,
    load,
    make_file_name,
    read_change_time,
    save,
    touch_wanted_file,
)

MAX_LINE = 16 * 1024 * 1024
_LOOK_SECONDS = 0.02  # between looks for what a web process keeps
_LISTEN = "subscriptions/listen"
_OPENINGS = {"server/discover", "initialize", "tools/list", _LISTEN}
_STREAMS = {"toolsListChanged", "promptsListChanged", "resourcesListChanged"}
_NAMES = "variables"  # among what is kept: those that the file of --config was served for
# however a host writes them; of a name too many nothing comes
_VARIABLE = re.compile(rb"\{(?:env:)?([A-Za-z_]\w*)")
_OPENING_BYTES = [f'"{name}"'.encode() for name in sorted(_OPENINGS)]


SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
# in a request's _meta; what it may see is no part of the configuration
_CONVERSATION = "slipsnisse/conversation"

# How many endpoints and servers let an opening say more than the common one does.
_OWN = """SELECT (SELECT COUNT(*) FROM mcpregistry_endpoint WHERE instructions <> '')
    + (SELECT COUNT(*) FROM mcpregistry_server WHERE features <> '[]' OR server_instructions <> '')"""


class ServedFile:
    """The file of ``--config``, or those of ``--workspace``, and all else that decides whether the
    same is served as the last time.

    It may be refused now: edited, without a variable that it had, or beside a site that has started
    meanwhile and whose workers do not get its keys. Then its host must not have seen what it
    offered before.
    """

    def __init__(self, var: Path, *names: Path) -> None:
        self._var = var
        self._content = b"\0".join(map(_read_content, names))

    def compute_digest(self, names: Iterable[str]) -> str:
        """The same while nothing of that has changed. ``names``: variables besides those that stand
        in the file."""
        found = {name.decode() for name in _VARIABLE.findall(self._content)} | {*names, "HOME"}
        values = "\0".join(f"{name}={os.environ.get(name)!r}" for name in sorted(found))
        state = hashlib.sha256(self._content + os.fsencode(values) + self._read_site_state())
        return state.hexdigest()[:32]

    def _read_site_state(self) -> bytes:
        """When the site was started, and its key, which keeps the digest from telling anything of a
        short secret."""
        if {"CELERY_BROKER_URL", "CELERY_BROKER_URL_FILE"} & set(os.environ):
            return os.urandom(16)  # its workers start and end unseen
        parts = []
        for name in ("up.lock", "keys.json"):
            with suppress(OSError):
                file = self._var / name
                parts.append(f"{file.stat().st_mtime_ns} ".encode() + file.read_bytes())
        return b"\0".join(parts)


def _read_content(name: Path) -> bytes:
    try:
        return name.read_bytes() if name.is_file() else b""
    except OSError:
        return b""


class Preload:
    """Owns the host's pipe. ``attach`` hands over what was read so far and all that follows."""

    def __init__(
        self,
        kept: Path,
        common: Path | None,
        lists: Path | None,
        database: Path | None,
        file: ServedFile | None = None,
    ) -> None:
        """``file``: of what a list is made besides the configuration."""
        self._kept_path = kept
        self._common_path = common
        self._lists_path = lists
        self._database = database
        self._file = file
        self._kept = load(kept)
        self._list_question = self._name_list_question(_list_variables(self._kept))
        self._common: dict[str, StoredAnswer] | None = None  # read when first needed
        # request id (JSON) -> method and version asked
        self._questions: dict[str, tuple[str, str]] = {}
        self._answered: dict[str, str] = {}  # request id (JSON) -> result that was said
        self._acknowledged: set[str] = set()  # request ids (JSON) of change streams
        # of the host's first line: "legacy", "modern" or, for anything else, ""
        self._era: str | None = None
        self._read: deque[bytes | None] = deque()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._attached = threading.Event()
        self._take: Callable[[bytes | None], None] | None = None
        self._in = os.dup(0)
        self._out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        for descriptor in (self._in, self._out):
            os.set_inheritable(descriptor, False)
        threading.Thread(target=self._read_pipe, name="stdin", daemon=True).start()

    def attach(self, take: Callable[[bytes | None], None]) -> None:
        """``take`` gets every line, in order, and None at the end; called from the reading
        thread."""
        with self._lock:
            while self._read:
                take(self._read.popleft())
            self._take = take
        self._attached.set()

    def set_variables(self, variables: Iterable[str]) -> None:
        """What the file of ``--config`` is served for: said as soon as that is known, by
        ``runmcp``.

        ``variables``: names of the environment that its servers and providers refer to, also where
        it does not itself.
        """
        names = StoredAnswer(json.dumps(sorted(variables)))
        self._list_question = self._name_list_question(json.loads(names.result))
        self._kept = self._kept | {_NAMES: names}

    def write(self, line: bytes) -> None:
        """Write one message with its line break, wholly. Blocks while the host does not read."""
        view = memoryview(line)
        with self._writing:
            while view:
                view = view[os.write(self._out, view) :]

    def settle_answer(self, request_id: str, answer: StoredAnswer) -> bool | None:
        """The real server has answered this id: keep that for the next start.

        False: it must be sent. True: the same was said already. None: something older was said.
        """
        asked = self._questions.pop(request_id, None)
        if asked is None:
            return False
        question = self._make_question_key(*asked)
        if self._kept.get(question) != answer:
            current = {
                known: kept
                for known, kept in self._kept.items()
                if not self._is_outdated_question(known)
            }
            self._kept = current | {question: answer}
            save(self._kept_path, self._kept)
        said = self._answered.pop(request_id, None)
        if said is None:
            return False
        return True if said == answer.result else None

    def _name_list_question(self, names: Iterable[str]) -> str:
        return f"tools/list {self._file.compute_digest(names)}" if self._file else "tools/list"

    def _make_question_key(self, method: str, version: str) -> str:
        return f"{self._list_question if method == 'tools/list' else method} {version}"

    def _is_outdated_question(self, question: str) -> bool:
        """Whether it asks for a list of what the file was once."""
        return question.startswith("tools/list ") and not question.startswith(
            f"{self._list_question} "
        )

    def has_answered(self, request_id: str) -> bool:
        """Whether this id got its answer here; says so once, since a host may use an id again."""
        return self._answered.pop(request_id, None) is not None

    def has_acknowledged(self, request_id: str) -> bool:
        """Whether this change stream was acknowledged here; says so once."""
        known = request_id in self._acknowledged
        self._acknowledged.discard(request_id)
        return known

    def _read_pipe(self) -> None:
        with os.fdopen(self._in, "rb", closefd=False) as pipe:
            while line := pipe.readline(MAX_LINE):
                if not line.endswith(b"\n") and len(line) >= MAX_LINE:
                    self._refuse_long(pipe)
                elif line.strip():
                    self._handle_opening(line)
                    self._hand_over(line)
        self._hand_over(None)

    def _refuse_long(self, pipe: object) -> None:
        while (rest := pipe.readline(MAX_LINE)) and not rest.endswith(b"\n"):  # type: ignore[attr-defined]
            pass
        self.write(
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is longer than 16 MiB."}}\n'
        )

    def _hand_over(self, line: bytes | None) -> None:
        with self._lock:
            if self._take is None:
                self._read.append(line)
                return
        self._take(line)

    def _handle_opening(self, line: bytes) -> None:
        """Note an opening question; answer it, if the server is not there yet and the answer is
        known."""
        asked = _parse_opening(line)
        if self._era is None:
            self._era = asked.era if asked and asked.first else ""
        if asked is None:
            return
        key = json.dumps(asked.id)
        question = self._make_question_key(asked.method, asked.version)
        if asked.method == _LISTEN:
            self._acknowledge(key, asked)
            return
        self._questions[key] = asked.method, asked.version
        # The first line decides the era of the whole pipe; what is of the other one the server
        # refuses.
        if (
            self._take is None
            and asked.era == self._era
            and not self._answer(key, question)
            and self._lists_path
        ):
            threading.Thread(
                target=self._answer_when_kept, args=(key, question), name="early", daemon=True
            ).start()

    def _answer(self, key: str, question: str) -> bool:
        """Answer from kept bytes, if the server is not there yet. Returns whether it was
        answered."""
        kept = self._find_stored_answer(question)
        with self._lock:
            if kept is None or self._take is not None:
                return False
            self._answered[key] = kept.result
        self.write(f'{{"jsonrpc":"2.0","id":{key},"result":{kept.result}}}\n'.encode())
        return True

    def _answer_when_kept(self, key: str, question: str) -> None:
        """Answer as soon as a web process has kept the answer, as it does after each change."""
        seen = -1
        while not self._attached.wait(_LOOK_SECONDS):
            changed = read_change_time(self._lists_path)
            if changed != seen and self._answer(key, question):
                return
            seen = changed

    def _acknowledge(self, key: str, asked: _Handshake) -> None:
        """Say that the stream is open. The server opens it as soon as it is there; what changed
        until then it tells by itself, since a list that was said here and is not true any more
        makes it speak up.
        """
        if self._take is not None or self._era != "modern" or asked.streams is None:
            return
        if (
            self._find_stored_answer(f"server/discover {asked.version}") is None
        ):  # it may refuse this version
            return
        self._acknowledged.add(key)
        params = (
            f'{{"notifications":{json.dumps(asked.streams)},"_meta":{{"{SUBSCRIPTION}":{key}}}}}'
        )
        self.write(f'{{"jsonrpc":"2.0","method":"{ACKNOWLEDGED}","params":{params}}}\n'.encode())

    def _find_stored_answer(self, question: str) -> StoredAnswer | None:
        """Said by this very server before, or kept by a web process, and still true."""
        sources: list[Callable[[], dict[str, StoredAnswer]]] = [
            lambda: self._kept,
            self._load_lists,
            self._load_common_answers,
        ]
        for source in sources:
            kept = source().get(question)
            if kept is not None and self._is_still_true(kept):
                return kept
        return None

    def _is_still_true(self, kept: StoredAnswer) -> bool:
        if kept.until is not None and kept.until <= time.time():
            return False
        return kept.revision is None or kept.revision == self._read_revision()

    def _read_revision(self) -> int | None:
        return self._query_number("SELECT revision FROM mcpregistry_configuration WHERE id = 1")

    def _query_number(self, query: str) -> int | None:
        """A number from the database, read without Django; None where that is not the embedded
        one."""
        if self._database is None:
            return None
        try:
            with closing(
                sqlite3.connect(
                    f"{self._database.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2
                )
            ) as raw:
                return int(raw.execute(query).fetchone()[0])
        except (sqlite3.Error, TypeError):
            return None

    def _load_lists(self) -> dict[str, StoredAnswer]:
        return load(self._lists_path) if self._lists_path else {}

    def _load_common_answers(self) -> dict[str, StoredAnswer]:
        """What all endpoints say to an opening, as long as none has instructions of its own, and no
        server features."""
        if self._common is None:
            own = self._query_number(_OWN)
            self._common = load(self._common_path) if self._common_path and own == 0 else {}
        return self._common


def _list_variables(kept: dict[str, StoredAnswer]) -> list[str]:
    return [str(name) for name in json.loads(kept[_NAMES].result)] if _NAMES in kept else []


class _Handshake(NamedTuple):
    method: str
    id: int | str
    version: str
    era: str
    # what a change stream is asked to tell; None: the server must look at it
    streams: dict[str, bool] | None = None

    @property
    def first(self) -> bool:
        """May a conversation begin with it?"""
        return self.era == "modern" or self.method == "initialize"


def _parse_opening(line: bytes) -> _Handshake | None:
    """None for everything else, also for what is wrong in some way: the real server will say so."""
    request = _parse_request(line) if any(name in line for name in _OPENING_BYTES) else None
    if request is None:
        return None
    method, request_id, params = request
    meta = params.get("_meta")
    modern = meta.get("io.modelcontextprotocol/protocolVersion") if isinstance(meta, dict) else None
    if (method == "initialize" and modern) or (
        method in ("server/discover", _LISTEN) and not modern
    ):
        return None
    version = str(modern or params.get("protocolVersion") or "")
    return _Handshake(
        method, request_id, version, "modern" if modern else "legacy", _read_streams(params)
    )


def _parse_request(line: bytes) -> tuple[str, int | str, dict[str, object]] | None:
    """Method, id and parameters of a well-formed request for something that is kept: a first page,
    no later one."""
    try:
        message = json.loads(line)
        method = message["method"]
        request_id = message["id"]
        params = message.get("params", {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if method not in _OPENINGS or type(request_id) not in (int, str):
        return None
    if not isinstance(params, dict) or "cursor" in params:
        return None
    if isinstance(meta := params.get("_meta"), dict) and _CONVERSATION in meta:
        return None
    return method, request_id, params


def _read_streams(params: dict[str, object]) -> dict[str, bool] | None:
    """The kinds of changes that are asked for, if it is nothing but these."""
    wanted = params.get("notifications")
    if not isinstance(wanted, dict) or not wanted or not set(wanted) <= _STREAMS:
        return None
    return dict.fromkeys(wanted, True) if all(value is True for value in wanted.values()) else None


_preload: Preload | None = None


def claim_pipe(var: Path, arguments: list[str]) -> Preload:
    """Claim stdin and stdout, once per process. ``arguments`` say whose answers to use, and where
    they do not name both endpoint and agent, the directory (by the workspaces) as well.
    """
    global _preload  # noqa: PLW0603 - a process has one stdin
    if _preload is None:
        named = {argument.partition("=")[0] for argument in arguments}
        endpoint = _find_option(arguments, "--endpoint")
        agent = _find_option(arguments, "--agent")
        place = [] if endpoint and agent and "--workspace" not in named else [os.getcwd()]
        embedded = not {"DATABASE_URL", "DATABASE_URL_FILE"} & set(os.environ)
        database = var / "slipsnisse.sqlite3" if embedded else None
        # it says what one of the two eras refuses
        common = None if "--era" in named else get_common_path(var)
        own = {"--era", "--config", "--conversation", "--workspace"} & named
        lists = get_lists_path(var, endpoint, agent) if endpoint and agent and not own else None
        if lists is not None:
            touch_wanted_file(get_wanted_path(var, endpoint, agent))
        kept = var / "openings" / f"{make_file_name(*arguments, *place)}.json"
        _preload = Preload(kept, common, lists, database, _find_served_file(var, arguments))
    return _preload


def _find_served_file(var: Path, arguments: list[str]) -> ServedFile | None:
    name = _find_option(arguments, "--config")
    if "--workspace" in arguments:
        directory = Path(_find_option(arguments, "--cwd") or os.getcwd())
        return ServedFile(var, *(directory / file for file in PROJECT_FILES))
    return ServedFile(var, Path(name)) if name else None


def _find_option(arguments: list[str], name: str) -> str:
    """Its value, as ``--name value`` or ``--name=value``; the last one counts. Empty without
    one."""
    found = ""
    for at, argument in enumerate(arguments, 1):
        if argument == name:
            found = "".join(arguments[at : at + 1])
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found
