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
from mcpregistry.domain.installs.reasons import (
    OUTPUT_READ,
    InstallFailed,
    explain_excess_usage,
    explain_timeout,
)
from mcpregistry.domain.servers.target import Sandbox, ServerTarget
from mcpregistry.downstream.installers import package_tree
from mcpregistry.downstream.transports.process_usage import ProcessUsage
from mcpregistry.downstream.transports.stdio import spawn

LOOK_SECONDS = 0.5
KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class InstallerBounds:
    """What one installer may take: time in seconds, memory and files in bytes."""

    seconds: float = 300.0
    memory: int = 2 << 30
    written: int = 2 << 30


@dataclass(frozen=True, slots=True)
class InstallerPlace:
    """Where an installer works: ``home`` is its own and thrown away, ``build`` becomes what is
    kept.

    ``beat`` is called twice a second; what it raises ends the installer.
    """

    home: str
    build: str
    beat: Callable[[], None] = lambda: None
    bounds: InstallerBounds = field(default_factory=InstallerBounds)


def run_installer(
    argv: list[str], *, place: InstallerPlace, env: dict[str, str], read: tuple[str, ...] = ()
) -> tuple[int, str]:
    """The installer's exit code and the end of what it wrote. Raises InstallFailed; then nothing of
    it runs any more."""
    try:
        process, control = spawn(target := _make_target(argv, place, env, read))
    except DownstreamError as error:
        raise InstallFailed(error.message, remedy=error.remedy) from error
    with control, process:
        try:
            return _watch_process(process, control, place, ProcessUsage(target))
        finally:
            control.close()  # by which its launcher kills whatever is left, and ends
            _wait_for_exit(process)


def _make_target(
    argv: list[str], place: InstallerPlace, env: dict[str, str], read: tuple[str, ...]
) -> ServerTarget:
    readable = tuple(map(os.path.realpath, (sys.base_prefix, *read)))
    sandbox = Sandbox(home=place.home, read=readable, write=(os.path.realpath(place.build),))
    return ServerTarget(
        server_id=0,
        slug="installer",
        revision=0,
        transport="stdio",
        argv=tuple(argv),
        cwd=place.build,
        env=env,
        sandbox=sandbox,
    )


def _watch_process(
    process: subprocess.Popen[bytes],
    control: socket.socket,
    place: InstallerPlace,
    usage: ProcessUsage,
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
            raise explain_timeout(place.bounds.seconds)
        if time.monotonic() - looked > LOOK_SECONDS and b"exit" not in told:
            _check_usage(told, usage, place)
            looked = time.monotonic()
    return _read_exit_code(told), tail.decode(errors="replace")


def _check_usage(told: bytes, usage: ProcessUsage, place: InstallerPlace) -> None:
    """Whether it still may: our lease, its memory, and what it has written so far."""
    place.beat()
    if told.startswith(b"pid ") and b"\n" in told:
        usage.measure_tree(int(told.split()[1]))
    if (usage.memory_kb or 0) << 10 > place.bounds.memory:
        raise explain_excess_usage("memory", f"{place.bounds.memory >> 20:,} MB")
    if (
        sum(package_tree.measure_size(folder)[0] for folder in (place.home, place.build))
        > place.bounds.written
    ):
        raise explain_excess_usage("disk space", f"{place.bounds.written >> 20:,} MB")


def _read_exit_code(told: bytes) -> int:
    words = told.split()
    return int(words[words.index(b"exit") + 1])


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Its launcher ends by itself once nobody holds its control socket; should it hang, it is
    killed."""
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
