"""Command lines for hosts that are programs of their own (the SDK's client, the Inspector): what
they start is forked.

Such a host gets a small program in place of ``manage.py runmcp``, which hands its standard input
and output to a leaf of the fork server, passes signals on to it, and ends with its exit code. If it
is killed, the leaf is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp import StdioServerParameters

    from tests.forkserver import Process

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Launcher:
    """Starts leaves with one environment, for whoever runs ``command``."""

    def __init__(self, env: Mapping[str, str], listener: socket.socket) -> None:
        self._env = dict(env)
        self._listener = listener
        threading.Thread(target=self._serve, name="launcher", daemon=True).start()

    def command(self, *args: str) -> list[str]:
        """In place of ``[sys.executable, *args]``."""
        return [
            sys.executable,
            "-S",
            "-P",
            str(Path(__file__)),
            self._listener.getsockname(),
            *args,
        ]

    def parameters(self, *args: str) -> StdioServerParameters:
        """The same for the SDK's client."""
        from mcp import StdioServerParameters

        command, *rest = self.command(*args)
        return StdioServerParameters(
            command=command, args=rest, cwd=str(Path(__file__).parent.parent)
        )

    def _serve(self) -> None:
        with suppress(OSError):  # closed: nobody will come any more
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._launch, args=[connection], daemon=True).start()

    def _launch(self, connection: socket.socket) -> None:
        from tests import forkserver  # not in the program below, which has to be small

        with connection:
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if not data:
                return
            job = json.loads(data)
            standard = dict(zip(("stdin", "stdout", "stderr"), descriptors, strict=True))
            process = forkserver.popen(job["args"], env=self._env, cwd=job["cwd"], **standard)
            for each in descriptors:
                os.close(each)
            with suppress(OSError):
                connection.send(str(process.pid).encode())
            threading.Thread(
                target=_end_with, args=[connection.dup(), process], daemon=True
            ).start()
            code = process.wait()
            with suppress(OSError):
                connection.send(str(code).encode())


def _end_with(connection: socket.socket, process: Process) -> None:
    """Kill the leaf if the program in its place is gone before it."""
    with connection, suppress(OSError):
        connection.recv(1)
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)


@contextmanager
def launching(env: Mapping[str, str], folder: Path) -> Iterator[Launcher]:
    """A launcher that listens in this folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "launcher"))
        listener.listen()
        yield Launcher(env, listener)
        listener.shutdown(socket.SHUT_RDWR)


def main() -> int:
    """The program in place of the leaf."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(sys.argv[1])
        job = {"args": sys.argv[2:], "cwd": os.getcwd()}
        socket.send_fds(connection, [json.dumps(job).encode()], [0, 1, 2])
        leaf = int(connection.recv(64))
        for number in _SIGNALS:
            signal.signal(number, lambda number, _: _pass_on(leaf, number))
        os.close(0)
        os.close(1)
        code = int(connection.recv(64) or -signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _pass_on(leaf: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(leaf, number)


if __name__ == "__main__":
    sys.exit(main())
