"""stdio transport: bounded lines, the exact environment, and a process tree that always ends.

Invariants:
* At most ``message_bytes`` of one line are ever held; a longer line ends the connection at once.
* The child sees exactly the configured environment plus PATH, no descriptor but 0, 1 and 2, umask
  077.
* However the connection ends (also by SIGKILL of this process) no process of the tree survives:
  ``launcher.py`` supervises it. Process creation happens on the loop's own thread, because the
  kernel ties the parent-death signal to the thread that forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import anyio

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, ResourceLimit
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.transports import bubblewrap, sandbox
from mcpregistry.downstream.transports.wire import EndedUnreadError, Wire

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
# after its stdin was closed; hosts give ``runmcp`` itself two seconds, and then it must be at its
# end
EXIT_GRACE = 1.0
TERMINATE_GRACE = 2.0
KILL_GRACE = 3.0
UNREAD_BYTES = 16 * 1024 * 1024


class OutputLines(asyncio.Protocol):
    """Splits a byte stream into lines without ever holding more than one limit of bytes."""

    def __init__(
        self,
        limit: int,
        on_line: Callable[[bytes], None],
        on_end: Callable[[DownstreamError | None], None],
    ):
        self._limit = limit
        self._on_line = on_line
        self._on_end = on_end
        self._partial = bytearray()
        self._ended = False

    def data_received(self, data: bytes) -> None:
        """asyncio's hook: split off whole lines; one beyond the limit ends the connection."""
        start = 0
        while not self._ended and (end := data.find(b"\n", start)) >= 0:
            self._finish_line(data[start:end])
            start = end + 1
        if not self._ended and start < len(data):
            self._partial += data[start:] if start else data
            if len(self._partial) > self._limit:
                self._end_too_long()

    def _finish_line(self, rest: bytes) -> None:
        if len(self._partial) + len(rest) > self._limit:
            self._end_too_long()
            return
        line = bytes(self._partial) + rest if self._partial else rest
        if self._partial:
            self._partial = bytearray()
        if line and not line.isspace():
            self._on_line(line)

    def _end_too_long(self) -> None:
        self._partial = bytearray()
        self._end(
            ResourceLimit(
                f"The server sent a line that is longer than the limit of {self._limit:,} bytes.",
                remedy="Request less data, or raise “Max message bytes” on the page of the server.",
                sent=True,
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's hook: the server has closed its output."""
        self._end(None)

    def _end(self, error: DownstreamError | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error)


class Tail(asyncio.Protocol):
    """Keeps the last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        """asyncio's hook: keep the end."""
        self._bytes += data
        if len(self._bytes) > 2 * self._limit:  # trim rarely: each byte is moved at most once
            del self._bytes[: -self._limit]

    def read(self) -> bytes:
        """The bytes that were kept."""
        return bytes(self._bytes[-self._limit :])


_LIMITS = {
    "M": ("MB of memory", "Memory (MB)"),
    "P": ("processes", "Processes"),
    "C": ("seconds of processor time", "Processor time (seconds)"),
    "T": ("threads", "Processes"),
}


def make_limit_error(what: str, used: str, most: str) -> ResourceLimit:
    """The server was ended because it used more than its limit."""
    unit, field = _LIMITS[what]
    return ResourceLimit(
        f"The server was stopped because it used {int(used):,} {unit}, and its limit is {int(most):,}.",
        remedy=f"Request less data, or raise “{field}” on the page of the server.",
        sent=True,
    )


class Control(asyncio.Protocol):
    """Our end of the supervisor's control socket."""

    def __init__(self, on_killed: Callable[[], None]) -> None:
        self._on_killed = on_killed
        self._data = b""
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.over: ResourceLimit | None = None

    def data_received(self, data: bytes) -> None:
        """asyncio's hook: ``pid``, ``over`` and ``exit`` lines of the supervisor."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self.pid = int(number)
            elif word == b"exit":
                self.exit_code = int(number)
            elif word == b"over":
                self.over = make_limit_error(*number.decode().split())
        self.started.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's hook: the supervisor is gone, and the server with it."""
        self.started.set()
        self.gone.set()
        if self.pid is not None and self.exit_code is None:
            self._on_killed()


class ServerInput(asyncio.Protocol):
    """The server's standard input. ``unread``: bytes of it that the server has not taken.
    ``is_broken``: a message could not be written, because the server had ended before.
    """

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._left = 0
        self.is_broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's hook: the pipe is open."""
        # that of uvloop has no base class of asyncio
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's hook: the pipe is about to be closed, so look a last time."""
        self.is_broken = self.is_broken or exc is not None
        self._left = self.unread
        self._transport = None

    @property
    def unread(self) -> int:
        if self._transport is None:
            return self._left
        pipe = self._transport.get_extra_info("pipe")
        (in_pipe,) = struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, b"\0" * 4))
        return self._transport.get_write_buffer_size() + int(in_pipe)


class StdioChannel(Wire):
    """One stdio server as an SDK transport and as the pipe of our own calls."""

    def __init__(self, target: ServerTarget) -> None:
        super().__init__()
        self._target = target
        self._tail = Tail(target.limits.stderr_bytes)
        self._control = Control(self._handle_supervisor_kill)
        self._process: subprocess.Popen[bytes] | None = None
        self._unattached: list[IO[bytes]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._input = ServerInput()
        self._has_written = False
        self._control_transport: asyncio.WriteTransport

    def read_stderr_tail(self) -> bytes:
        """The end of what the server wrote to its standard error."""
        return self._tail.read()

    async def open(self) -> None:
        """Start the server and attach to its pipes. Raises ConnectionFailed."""
        if self._target.sandbox and self._target.sandbox.strict:
            await asyncio.to_thread(bubblewrap.check)
        process, control = spawn(self._target)
        self._process = process
        try:
            await self._attach(process, control)
            await self._control.started.wait()
        except BaseException:
            control.close()
            await self.close()
            raise
        self.pid = self._control.pid

    async def _attach(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        stdin = process.stdin
        stdout = process.stdout
        stderr = process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._unattached = [stdin, stdout, stderr]
        loop = asyncio.get_running_loop()
        self._control_transport, _ = await loop.create_connection(
            lambda: self._control, sock=control
        )
        lines = OutputLines(
            self._target.limits.message_bytes, self.receive, self._handle_stdout_end
        )
        self._transports.append((await loop.connect_read_pipe(lambda: lines, stdout))[0])
        self._transports.append((await loop.connect_read_pipe(lambda: self._tail, stderr))[0])
        self._stdin, _ = await loop.connect_write_pipe(lambda: self._input, stdin)
        self._unattached = []

    def _handle_stdout_end(self, error: DownstreamError | None) -> None:
        is_unread = self._input.unread or self._input.is_broken or not self._has_written
        reason = EndedUnreadError if is_unread else ConnectionFailed
        ended = reason(
            "The server closed the connection.",
            remedy="Read “Last output on stderr” on the page of the server.",
            sent=True,
        )
        # the supervisor says it before it ends the server
        self.fail(error or self._control.over or ended)

    def _handle_supervisor_kill(self) -> None:
        """The server has died with it; not what it had started, which may hold its pipes for
        ever."""
        assert self._control.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._control.pid, signal.SIGKILL)
        self._handle_stdout_end(None)

    async def transmit(self, data: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Write one line. Raises ConnectionFailed (nothing sent) when the server has ended or does
        not read."""
        stdin = self._stdin
        if stdin is None or stdin.is_closing() or self.error is not None:
            raise ConnectionFailed(
                "The server has exited.",
                remedy="Read “Last output on stderr” on the page of the server.",
            )
        if stdin.get_write_buffer_size() > UNREAD_BYTES:
            raise ConnectionFailed(
                "The server does not read its input.",
                remedy="Press “Reconnect server” on the page of the server.",
            )
        if on_sent is not None:
            on_sent()
        self._has_written = True
        stdin.write(data + b"\n")
        if stdin.is_closing():  # the write has failed, and this side learns more only later
            self._input.is_broken = True

    async def close(self) -> None:
        """End the whole tree: close stdin, wait, SIGTERM, wait, SIGKILL. Survives cancellation."""
        with anyio.CancelScope(shield=True):
            self._close_stdin()
            if self._is_control_started() and not await self._wait_until_gone(EXIT_GRACE):
                self._control_transport.write(b"T")
                if not await self._wait_until_gone(TERMINATE_GRACE):
                    self._control_transport.write(b"K")
                    await self._wait_until_gone(KILL_GRACE)
            for transport in self._transports:
                transport.close()
            if self._is_control_started():
                self._control_transport.close()
            await self._reap()

    def _is_control_started(self) -> bool:
        return hasattr(self, "_control_transport")

    def _close_stdin(self) -> None:
        if self._stdin is None:
            return
        if self._stdin.get_write_buffer_size():
            self._stdin.abort()  # unread input would keep the pipe open for ever
        else:
            self._stdin.close()

    async def _wait_until_gone(self, seconds: float) -> bool:
        # Not asyncio.timeout: that of Python 3.11.2 (Debian 12) leaves a task that was cancelled
        # before with CancelledError instead of TimeoutError, and the tree would live on.
        with anyio.move_on_after(seconds):
            await self._control.gone.wait()
        return self._control.gone.is_set()

    async def _reap(self) -> None:
        """Collect the supervisor. It has closed its control socket, so it is leaving or gone."""
        process = self._process
        if process is None:
            return
        for _ in range(200):
            if process.poll() is not None:
                break
            await asyncio.sleep(0.005)
        else:
            process.kill()
            process.wait()
        for pipe in self._unattached:
            pipe.close()


def build_child_environment(target: ServerTarget) -> dict[str, str]:
    """Exactly what is configured, plus PATH, and in a sandbox a HOME and TMPDIR that it can
    write."""
    own = sandbox.build_sandbox_environment(target.sandbox) if target.sandbox else {}
    return {"PATH": os.environ.get("PATH", os.defpath), **own, **target.env}


def spawn(target: ServerTarget) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the supervised server. Returns it and our end of its control socket.

    Raises ConnectionFailed (nothing sent) when the command or the directory does not exist.
    """
    env = build_child_environment(target)
    check_command(target, env)
    policy, cwd = sandbox.prepare(target, env["PATH"])
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(  # noqa: S603  confirmed by a person before it is ever a target
            [sys.executable, "-I", "-S", LAUNCHER, str(theirs.fileno()), policy, *target.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd or None,
            env={f"_{name}": value for name, value in env.items()},
            umask=0o077,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise ConnectionFailed(
            "The server's process cannot be started.",
            remedy="Check the command on the page of the server.",
        ) from error
    finally:
        theirs.close()
    ours.setblocking(False)
    return process, ours


def check_command(target: ServerTarget, env: dict[str, str]) -> None:
    """Raise ConnectionFailed (nothing sent) for a command, directory or program that cannot be
    started."""
    if not target.argv:
        raise ConnectionFailed(
            "The server has no command.", remedy="Enter the command that starts the server."
        )
    if any("\0" in word for word in (*target.argv, *env, *env.values(), target.cwd)):
        raise ConnectionFailed(
            "The server's command, environment or directory contains a NUL character.",
            remedy="Remove this character.",
        )
    if target.cwd and not os.path.isdir(target.cwd):
        raise ConnectionFailed(
            f"The server's working directory {target.cwd} does not exist.",
            remedy="Create the directory, or choose another directory.",
        )
    command = target.argv[0]
    found = os.path.join(target.cwd, command) if os.sep in command else command
    if shutil.which(found, path=env["PATH"]) is None:
        raise ConnectionFailed(
            f"The command {command} was not found or cannot be run.",
            remedy="Install this program, or enter its full path.",
        )
