"""Stands at stdin from the first millisecond, while Django and the SDK are still being imported.

Hosts are impatient: one runs without a server that is silent for a second, another's era probe
waits two. So this module (standard library only) claims stdin and stdout before anything else,
reads, and answers the opening ``server/discover`` or ``initialize`` with the bytes that the real
server answered last time to the same question. The request still goes to the real server; its own
answer is not sent a second time but kept for the next start. Without kept bytes nothing is said
early.

From here on nothing but the protocol can reach stdout: descriptor 1 is stderr.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

MAX_LINE = 16 * 1024 * 1024
_OPENINGS = {"server/discover", "initialize"}


class Doorman:
    """Owns the host's pipe. ``attach`` hands over what was read so far and all that follows."""

    def __init__(self, kept: Path, *, early: bool = True) -> None:
        self._kept_path = kept
        self._kept: dict[str, str] = self._load() if early else {}
        self._questions: dict[str, str] = {}  # request id (JSON) -> question asked
        self._answered: set[str] = set()
        self._read: deque[bytes | None] = deque()
        self._lock = threading.Lock()
        self._take: Callable[[bytes | None], None] | None = None
        self._in, self._out = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        for descriptor in (self._in, self._out):
            os.set_inheritable(descriptor, False)
        threading.Thread(target=self._pump, name="stdin", daemon=True).start()

    def attach(self, take: Callable[[bytes | None], None]) -> None:
        """``take`` gets every line, in order, and None at the end; called from the reading thread."""
        with self._lock:
            while self._read:
                take(self._read.popleft())
            self._take = take

    def write(self, line: bytes) -> None:
        """Write one message with its line break, wholly. Blocks while the host does not read."""
        view = memoryview(line)
        while view:
            view = view[os.write(self._out, view) :]

    def settle(self, request_id: str, result: str) -> bool:
        """The real server has answered this id: keep that answer; True if it was sent already."""
        question = self._questions.pop(request_id, None)
        if question is None:
            return False
        if self._kept.get(question) != result:
            self._kept[question] = result
            self._save()
        return request_id in self._answered

    def _pump(self) -> None:
        with os.fdopen(self._in, "rb", closefd=False) as pipe:
            while line := pipe.readline(MAX_LINE):
                if not line.endswith(b"\n") and len(line) >= MAX_LINE:
                    self._refuse_long(pipe)
                elif line.strip():
                    self._open(line)
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

    def _open(self, line: bytes) -> None:
        """Answer an opening question early, if the server is not there yet and the answer is known."""
        if self._take is not None or not any(name.encode() in line[:4096] for name in _OPENINGS):
            return
        try:
            message = json.loads(line)
            method, request_id, params = message["method"], message["id"], message["params"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # the real server will say what is wrong with it
        if method not in _OPENINGS or type(request_id) not in (int, str) or not isinstance(params, dict):
            return
        key, question = json.dumps(request_id), f"{method} {_version(params)}"
        self._questions[key] = question
        if question in self._kept:
            self._answered.add(key)
            self.write(f'{{"jsonrpc":"2.0","id":{key},"result":{self._kept[question]}}}\n'.encode())

    def _load(self) -> dict[str, str]:
        try:
            kept = json.loads(self._kept_path.read_text())
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def _save(self) -> None:
        draft = self._kept_path.with_suffix(f".{os.getpid()}")
        try:
            self._kept_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft.write_text(json.dumps(self._kept))
            draft.replace(self._kept_path)
        except OSError as error:
            print(f"The opening answer could not be kept ({error}); the next start is slower.", file=sys.stderr)


def _version(params: dict[str, object]) -> str:
    meta = params.get("_meta")
    claimed = meta.get("io.modelcontextprotocol/protocolVersion") if isinstance(meta, dict) else None
    return str(claimed or params.get("protocolVersion") or "")


_doorman: Doorman | None = None


def open_door(var: Path, arguments: list[str]) -> Doorman:
    """Claim stdin and stdout, once per process. ``arguments`` and the directory say whose answers to use."""
    global _doorman  # noqa: PLW0603 - a process has one stdin
    if _doorman is None:
        whose = hashlib.sha256("\0".join([*arguments, os.getcwd()]).encode("utf-8", "surrogateescape")).hexdigest()
        _doorman = Doorman(var / "openings" / f"{whose[:32]}.json")
    return _doorman
