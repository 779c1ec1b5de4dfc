"""Keeps a handful of child processes alive and takes all of them along when it ends.

Plain logic without Django. Invariants: a child that dies is started again after a growing pause,
and told whom it replaces, so that it can take over at once what nobody else would before a lease
has run out; each has its own process group; stopping asks politely, waits, then kills; if this
process is killed outright, the kernel kills the children (see ``children``). Their output is passed
on line by line.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from signal import SIGKILL, SIGTERM, Signals

from controlplane.child_processes import die_with_parent, signal_group

Say = Callable[[str, str], None]  # (name of the child, or "up" for ourselves; one line)

# tells a child which process it replaces: that one is certainly dead
PREDECESSOR = "SLIPSNISSE_PREDECESSOR"
_CHUNK = 65_536
_LONGEST_LINE = 1_000_000


@dataclass(frozen=True, slots=True)
class Child:
    """What to run. ``last`` children are stopped after all others, because those need them (the
    broker)."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()
    last: bool = False
    log: str = ""  # file to read when it dies, for a child that does not write to its output


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds. A child that lived ``steady`` starts again after ``first``; each quick death doubles
    the pause.

    One that cannot start dies within seconds. One that is killed at its work, be it each minute,
    must be back at once.
    """

    first: float = 0.2
    longest: float = 30
    steady: float = 10


@dataclass(slots=True)
class _Slot:
    child: Child
    process: subprocess.Popen[bytes] | None = None
    started: float = 0
    pause: float = 0
    due: float = 0
    tail: bytes = b""
    died: int = 0  # process id of the one before


class Supervisor:
    """Use it from one thread, the main one: the kernel binds the children's life to that thread."""

    def __init__(self, say: Say, pauses: Pauses = Pauses()) -> None:
        self._say = say
        self._pauses = pauses
        self._slots: dict[str, _Slot] = {}
        self._outputs = selectors.DefaultSelector()

    def start(self, child: Child) -> None:
        """Start a child now and keep it running; the same name again means: from now on, run it
        this way."""
        slot = self._slots.setdefault(child.name, _Slot(child))
        slot.child = child
        if slot.process is None:
            self._spawn(slot)

    def pids(self) -> dict[str, int]:
        """The process ids of the children that run now, by name."""
        return {name: slot.process.pid for name, slot in self._slots.items() if slot.process}

    def tend(self, wait: float = 0.2) -> None:
        """One round: pass output on, bury the dead, start again what is due. Waits at most ``wait``
        seconds."""
        self._pass_output_on(wait)
        now = time.monotonic()
        for slot in self._slots.values():
            if slot.process is not None and slot.process.poll() is not None:
                self._bury(slot, slot.process, now)
            if slot.process is None and slot.due <= now:
                self._spawn(slot)

    def stop(
        self,
        patience: float,
        hurry: Callable[[], bool] = lambda: False,
        *,
        for_last: float | None = None,
    ) -> None:
        """End every child, and then the ``last`` ones, which get ``for_last`` seconds (else
        ``patience`` again).

        Who has not ended by then is killed, so it all takes no longer than the sum. ``hurry`` cuts
        the patience short.
        """
        for last, seconds in (
            (False, patience),
            (True, patience if for_last is None else for_last),
        ):
            group = [
                slot for slot in self._slots.values() if slot.child.last is last and slot.process
            ]
            self._end(group, seconds, hurry)
        self._outputs.close()

    def _spawn(self, slot: _Slot) -> None:
        child = slot.child
        slot.process = subprocess.Popen(  # noqa: S603 (our own command lines)
            child.argv,
            env=os.environ | dict(child.env) | ({PREDECESSOR: str(slot.died)} if slot.died else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=child.pass_fds,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 (calls prctl and getppid, takes no lock)
        )
        slot.started = time.monotonic()
        assert slot.process.stdout is not None
        os.set_blocking(slot.process.stdout.fileno(), False)
        self._outputs.register(slot.process.stdout, selectors.EVENT_READ, slot)

    def _bury(self, slot: _Slot, process: subprocess.Popen[bytes], now: float) -> None:
        self._close_output(slot, process)
        signal_group(process, SIGKILL)  # what it started must not go on without it
        lived = now - slot.started
        quick = lived < self._pauses.steady and slot.pause
        slot.pause = min(slot.pause * 2, self._pauses.longest) if quick else self._pauses.first
        slot.process = None
        slot.died = process.pid
        slot.due = now + slot.pause
        self._say(
            "up",
            f"{slot.child.name} ended ({describe(process.returncode)}); starting it again in {slot.pause:g} s",
        )

    def _end(self, slots: list[_Slot], patience: float, hurry: Callable[[], bool]) -> None:
        alive = {slot.child.name: slot.process for slot in slots if slot.process}
        for process in alive.values():
            signal_group(process, SIGTERM)
        deadline = time.monotonic() + patience
        while any(process.poll() is None for process in alive.values()):
            if hurry() or time.monotonic() > deadline:
                stubborn = [name for name, process in alive.items() if process.poll() is None]
                self._say("up", f"{', '.join(stubborn)} did not end in time: killed")
                break
            self._pass_output_on(0.05)
        for slot in slots:
            if slot.process:
                signal_group(slot.process, SIGKILL)
                slot.process.wait()
                self._close_output(slot, slot.process)
                slot.process = None

    def _pass_output_on(self, wait: float) -> None:
        if not self._outputs.get_map():
            time.sleep(wait)
            return
        for key, _ in self._outputs.select(wait):
            slot: _Slot = key.data
            chunk = self._read(key.fd)
            if not chunk:
                self._outputs.unregister(key.fileobj)
                continue
            *lines, slot.tail = (slot.tail + chunk).split(b"\n")
            if len(slot.tail) > _LONGEST_LINE:
                lines = [*lines, slot.tail]
                slot.tail = b""
            for line in lines:
                self._say(slot.child.name, line.decode(errors="replace"))

    def _close_output(self, slot: _Slot, process: subprocess.Popen[bytes]) -> None:
        """The last words are often the reason: print them before the pipe is closed."""
        assert process.stdout is not None
        with suppress(KeyError):
            self._outputs.unregister(process.stdout)
            while chunk := self._read(process.stdout.fileno()):
                slot.tail += chunk
        process.stdout.close()
        rest = slot.tail
        slot.tail = b""
        for line in rest.splitlines():
            self._say(slot.child.name, line.decode(errors="replace"))

    @staticmethod
    def _read(descriptor: int) -> bytes:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:  # a grandchild still holds the pipe open
            return b""


def describe(code: int) -> str:
    """An exit code in words: the signal that killed the process, or the code itself."""
    return f"signal {Signals(-code).name}" if code < 0 else f"exit code {code}"
