"""One installer from its start to its end, confined as a server is: it writes its own folders, and
nothing else.

Invariants:
* Its launcher outlives it and dies with this process, however that ends; so nothing of it is ever
  left running.
* It ends within its time, or is killed; the same for its memory and for what it writes.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.installs.reasons import OUTPUT_READ, InstallFailed, out_of_time, too_much
from mcpregistry.domain.servers.target import Sandbox, Target
from mcpregistry.downstream.installers import tree
from mcpregistry.downstream.transports.stdio import spawn
from mcpregistry.downstream.transports.usage import Usage

LOOK_SECONDS = 0.5
KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one installer may take: time in seconds, memory and files in bytes."""

    seconds: float = 300.0
    memory: int = 2 << 30
    written: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """Where an installer works: ``home`` is its own and thrown away, ``build`` becomes what is
    kept.

    ``beat`` is called twice a second; what it raises ends the installer.
    """

    home: str
    build: str
    beat: Callable[[], None] = lambda: None
    bounds: Bounds = field(default_factory=Bounds)


def run(
    argv: list[str], *, place: Place, env: dict[str, str], read: tuple[str, ...] = ()
) -> tuple[int, str]:
    """The installer's exit code and the end of what it wrote. Raises InstallFailed; then nothing of
    it runs any more."""
    try:
        process, control = spawn(target := _target(argv, place, env, read))
    except DownstreamError as error:
        raise InstallFailed(error.message, remedy=error.remedy) from error
    with control, process:
        try:
            return _watched(process, control, place, Usage(target))
        finally:
            control.close()  # by which its launcher kills whatever is left, and ends
            _gone(process)


def _target(argv: list[str], place: Place, env: dict[str, str], read: tuple[str, ...]) -> Target:
    readable = tuple(map(os.path.realpath, (sys.base_prefix, *read)))
    sandbox = Sandbox(home=place.home, read=readable, write=(os.path.realpath(place.build),))
    return Target(
        server_id=0,
        slug="installer",
        revision=0,
        transport="stdio",
        argv=tuple(argv),
        cwd=place.build,
        env=env,
        sandbox=sandbox,
    )


def _watched(
    process: subprocess.Popen[bytes], control: socket.socket, place: Place, usage: Usage
) -> tuple[int, str]:
    assert process.stdin is not None
    process.stdin.close()
    outputs = {stream.fileno() for stream in (process.stdout, process.stderr) if stream}
    told = b""
    tail = b""
    began = time.monotonic()
    looked = 0.0
    while outputs or b"exit" not in told:
        ready = select.select(
            [*outputs, *([] if b"exit" in told else [control.fileno()])], [], [], LOOK_SECONDS
        )[0]
        for stream in outputs & {*ready}:
            data = os.read(stream, 65536)
            tail = (tail + data)[-OUTPUT_READ:]
            outputs -= set() if data else {stream}
        if control.fileno() in ready:
            told += control.recv(256) or b"\nexit -9\n"  # its launcher was killed
        if time.monotonic() - began > place.bounds.seconds:
            raise out_of_time(place.bounds.seconds)
        if time.monotonic() - looked > LOOK_SECONDS and b"exit" not in told:
            _look(told, usage, place)
            looked = time.monotonic()
    return _code(told), tail.decode(errors="replace")


def _look(told: bytes, usage: Usage, place: Place) -> None:
    """Whether it still may: our lease, its memory, and what it has written so far."""
    place.beat()
    if told.startswith(b"pid ") and b"\n" in told:
        usage.look(int(told.split()[1]))
    if (usage.memory_kb or 0) << 10 > place.bounds.memory:
        raise too_much("memory", f"{place.bounds.memory >> 20:,} MB")
    if sum(tree.size(folder)[0] for folder in (place.home, place.build)) > place.bounds.written:
        raise too_much("files", f"{place.bounds.written >> 20:,} MB")


def _code(told: bytes) -> int:
    words = told.split()
    return int(words[words.index(b"exit") + 1])


def _gone(process: subprocess.Popen[bytes]) -> None:
    """Its launcher ends by itself once nobody holds its control socket; should it hang, it is
    killed."""
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
