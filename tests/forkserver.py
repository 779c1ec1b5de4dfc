"""Starts processes of the site by forking one that has imported it already: 0.1 s instead of 2 to 4
s of CPU.

A tree of processes, which begins with the first request of a test process and ends with it. Workers
that are forked from a process that has called ``start_root`` share a tree:

* the *root* has imported the libraries that need no settings, and what of the site is pure;
* a *branch* is forked from the root for each kind of program and each environment that matters to
  an import. It takes the environment and imports the site with it, as the program itself would at
  its start; then it waits. All sites share it;
* a *leaf* is forked from a branch for each process that a test asks for. It is what the command
  line would have started: its own pid, descriptors, directory, arguments, environment, session, and
  exit code. It reads the settings of its own site, and ends with the process that asked for it.

Nothing runs in root and branches but one thread without an event loop or a database connection; a
branch looks before it forks. Requests and exit codes pass over unix sockets, descriptors with them
(SCM_RIGHTS).

Real command lines stay under test in ``controlplane/test_up.py``, ``gateway/test_stdio.py``,
``gateway/test_handshake_cache.py``, ``gateway/test_hosts.py``, ``e2e/test_inspector.py``,
``subagents/test_runmcp_config.py``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import psutil

from mcpregistry.garbage_collection import freeze_afterwards
from tests import started
from tests.waiting import HANG_LIMIT

ROOT = Path(__file__).resolve().parent.parent
_LARGEST = 1 << 20  # bytes of one request: arguments and environment
_HIGH = 500  # received descriptors are put out of the way of those that they shall become
_KINDS = {  # by the last word of the module's name
    "web": "web",
    "without_lanes": "web",
    "celery": "worker",
    "worker": "worker",
    "runmcp": "runmcp",
}
_PROGRAM = "program"  # whatever else: a test's own, given with -c or -m
PREDECESSOR = "SLIPSNISSE_PREDECESSOR"
PRELOAD = "TESTS_PRELOAD"  # modules that a branch with this in its environment imports as well
# What matters to an import: tests that differ in something else share a branch, as its leaves read
# that.
_EARLY = re.compile(r"(SLIPSNISSE|DJANGO|MCP|CELERY|DATABASE|EMAIL|PYTHON|TESTS)_?[A-Z_]*")
# Of these, what is looked up when it is used, in the settings or in the environment; see take_site.
_LATE = (
    PREDECESSOR,
    "SLIPSNISSE_HOLD",
    "SLIPSNISSE_PASS_ENV",
    "SLIPSNISSE_FAILPOINT",
    "SLIPSNISSE_BACKUP_PASSPHRASE",
    "SLIPSNISSE_DOORS",
    "SLIPSNISSE_ORIGINS",
    "SLIPSNISSE_PEER_ADDRESS",
)
# What only settings read, and nothing that is imported keeps: leaves read them again, each for its
# own site.
_SITES = ("SLIPSNISSE_VAR", "DATABASE_URL", "SLIPSNISSE_KEYS", "SLIPSNISSE_SECRET_KEY")
_LIBRARIES = (
    "django.core.management",
    "django.db",
    "django.http",
    "django.template",
    "pydantic",
    "jsonschema_rs",
    "msgspec.json",
    "cryptography.hazmat.primitives.ciphers.aead",
    "structlog",
    "yaml",
    "mcp.server",
    "mcp.server.stdio",
    "mcp.client.session",
    "uvicorn",
    "httptools",
    "uvloop",
    "aiohttp",
    "httpx2",
    "websockets",
    "celery.app",
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.worker.worker",
    "kombu.transport.redis",
    "redis",
    "prometheus_client",
    "anyio._backends._asyncio",
    "psycopg",
    "psycopg_pool",
    "jinja2",
    "markdown_it",
    "segno",
    "servestatic",
    "environ",
    "sqlite3",
    "smtplib",
    "tomllib",
    "statistics",
)
# of the site, what may know neither settings nor environment
_PURE = ("mcpregistry.domain", "subagents.domain")
_EXPERTS = "subagents.runs.tool_source"  # every engine asks for it
_SITE = {
    "web": ("controlplane.asgi", _EXPERTS, "uvicorn.server", "uvicorn.lifespan.on"),
    "worker": (
        "controlplane.celery",
        "mcpregistry.tasks",
        "subagents.tasks",
        "mcpregistry.calls.engine",
    ),
    "runmcp": (
        "mcpregistry.management.commands.runmcp",
        "mcpregistry.gateway.stdio.stdio_server",
        _EXPERTS,
    ),
    _PROGRAM: ("mcpregistry.calls.engine", _EXPERTS),
}


_leaves: list[psutil.Process] = []


def leaves() -> list[psutil.Process]:
    """The leaves of this process that run. They are not its children."""
    _leaves[:] = [leaf for leaf in _leaves if leaf.is_running()]
    return [*_leaves]


class Process:
    """A leaf, with the face of ``subprocess.Popen``."""

    def __init__(self, args: Sequence[str], news: socket.socket) -> None:
        self.args = list(args)
        self._news = news
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        # the first of its kind waits for the imports
        self.pid = int(self._hear(4 * HANG_LIMIT) or -1)
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            _leaves.append(psutil.Process(self.pid))

    def __del__(self) -> None:
        self._news.close()  # a test that has killed it need not wait for it

    def _hear(self, patience: float | None) -> bytes:
        self._news.settimeout(patience)
        if not (said := self._news.recv(64)):
            raise RuntimeError(f"the fork server has gone, and with it {self.args}")
        return said

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; negative for the signal that killed it. Raises
        subprocess.TimeoutExpired."""
        if self.returncode is None:
            try:
                self.returncode = int(self._hear(timeout))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._news.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it still writes to a piped stdout, to its end; the time counts for that end only."""
        assert self.stdout is not None
        with self.stdout as stream:
            said = stream.read()
        self.wait(timeout)
        return said, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PipedProcess:
    """A leaf behind two pipes, with the face of ``asyncio.subprocess.Process``."""

    def __init__(
        self, process: Process, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader
    ) -> None:
        self._process = process
        self.stdin = stdin
        self.stdout = stdout
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (code := self._process.poll()) is None:
            await asyncio.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()


def popen(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str = ROOT,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
) -> Process:
    """As ``subprocess.Popen`` of ``[sys.executable, *args]``; args begin with ``manage.py``, ``-m``
    or ``-c``.

    A program that is no process of the site finds Django set up; ``django.setup()`` once more does
    no harm. Of pipes, only one for text at ``stdout``.
    """
    if stdout == subprocess.PIPE:
        ours_out, theirs_out = os.pipe()
        with os.fdopen(theirs_out, "wb", 0) as end:
            process = popen(
                args,
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=end,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=start_new_session,
            )
        process.stdout = os.fdopen(ours_out)
        return process
    standard = [_number(given, usual) for usual, given in enumerate((stdin, stdout, stderr))]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        job = {
            "args": list(args),
            "cwd": str(cwd),
            "become": [0, 1, 2, *pass_fds],
            "session": start_new_session,
        }
        job["env"] = {name: value for name, value in env.items() if name != "PYTEST_CURRENT_TEST"}
        started.note(args, site=args[0] == "manage.py" or _kind(args) != _PROGRAM)
        _ask(_branch(_kind(args), _early(env)), job, [theirs.fileno(), *standard, *pass_fds])
    return Process([sys.executable, *args], ours)


async def piped(
    args: Sequence[str], *, env: Mapping[str, str], cwd: Path | str, stderr: IO[Any], limit: int
) -> PipedProcess:
    """As ``asyncio.create_subprocess_exec`` with pipes at stdin and stdout."""
    (their_in, our_in) = os.pipe()
    (our_out, their_out) = os.pipe()
    try:
        process = await asyncio.to_thread(
            popen, args, env=env, cwd=cwd, stdin=their_in, stdout=their_out, stderr=stderr
        )
    finally:
        os.close(their_in)
        os.close(their_out)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_out, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(our_in, "wb", 0)
    )
    return PipedProcess(process, asyncio.StreamWriter(transport, protocol, None, loop), reader)


def _number(given: int | IO[Any] | None, usual: int) -> int:
    if given is None:
        return usual
    return given if isinstance(given, int) else given.fileno()


def _kind(args: Sequence[str]) -> str:
    return _KINDS.get(args[1].rpartition(".")[2], _PROGRAM)


# The test process's side


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in env.items() if _EARLY.fullmatch(name) and name not in _LATE
    }


_Key = tuple[str, frozenset[tuple[str, str]]]


def _key(kind: str, env: Mapping[str, str]) -> _Key:
    """The kind, and the variables that a branch shares with all its leaves; it has the others from
    its first request."""
    database = env.get("DATABASE_URL", "").partition(":")[0] or "sqlite"
    shared = {name: value for name, value in env.items() if name not in _SITES} | {
        "DATABASE_URL": database
    }
    return kind, frozenset(shared.items())


_lock = threading.Lock()
_root: socket.socket | None = None
_branches: dict[_Key, socket.socket] = {}


def _branch(kind: str, env: Mapping[str, str]) -> socket.socket:
    """This process's control socket of the branch for this kind and environment; made when first
    asked for."""
    with _lock:
        key = _key(kind, env)
        if key not in _branches:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                _ask(start_root(), {"branch": kind, "env": dict(env)}, [theirs.fileno()])
            if not _branches:
                atexit.register(_leave_branches)
            _branches[key] = ours
        return _branches[key]


def start_root() -> socket.socket:
    """Start the root unless it runs, and return its control socket. Processes that are forked from
    now on share it."""
    global _root
    if _root is None:
        _root, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "tests.forkserver", str(number)]
            process = subprocess.Popen(command, cwd=ROOT, pass_fds=[number], process_group=0)
        atexit.register(_end, process, os.getpid())
    return _root


def _leave_branches() -> None:
    """Each branch ends the leaves of this process. When it has done so, it closes its end of the
    control socket."""
    for control in _branches.values():
        with control, contextlib.suppress(OSError):  # it has gone
            control.shutdown(socket.SHUT_WR)
            control.recv(1)


def _end(root: subprocess.Popen[bytes], starter: int) -> None:
    """The root ends when every process that shares it has closed its side."""
    assert _root is not None
    _root.close()
    if os.getpid() == starter:
        root.wait()


def _ask(control: socket.socket, job: dict[str, Any], descriptors: list[int]) -> None:
    socket.send_fds(control, [json.dumps(job).encode()], descriptors)


# The side of root and branches


@dataclass
class Job:
    """What a forked process has to become."""

    what: dict[str, Any]
    descriptors: list[int]


@dataclass
class Leaf:
    """A process that a branch has forked."""

    news: socket.socket
    control: socket.socket  # of the process that asked for it


class Forker:
    """Forks for each request on one of its ``controls``. When a leaf ends, it sends the exit code
    to the socket of its request.

    The first control belongs to the process that started this one, and they end together. A branch
    gets one more for each test process that uses it.
    """

    def __init__(self, control: socket.socket) -> None:
        self._controls = [control]
        self._branches: dict[_Key, socket.socket] = {}  # of the root
        self._leaves: dict[int, Leaf] = {}

    def serve(self) -> Job:
        """Returns in the forked processes only."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        while True:
            waited: list[socket.socket | int] = [*self._controls, wake]
            ready, _, _ = select.select(waited, [], [])
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            for control in [control for control in self._controls if control in ready]:
                if job := self._hear(control):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return job

    def _hear(self, control: socket.socket) -> Job | None:
        """Do what is asked there. Returns a job in the process that is forked for it."""
        data, descriptors, _, _ = socket.recv_fds(control, _LARGEST, 64)
        if not data:
            self._end_leaves(control)
            return None
        job = Job(json.loads(data), descriptors)
        if "args" in job.what:
            _read_ahead(job.what["args"])
            return self._fork_leaf(job, control)
        if "branch" in job.what:
            return self._use_branch(job)
        self._controls.append(socket.socket(fileno=descriptors[0]))
        return None

    def _use_branch(self, job: Job) -> Job | None:
        """Connect a test process to a branch. If there is no such branch yet, fork it."""
        key = _key(job.what["branch"], job.what["env"])
        if key not in self._branches:
            self._branches[key], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if not self._fork():
                    return Job(job.what, [theirs.detach()])
        # the branch could not import the site; its next request fails
        with contextlib.suppress(OSError):
            _ask(self._branches[key], {}, job.descriptors)
        os.close(job.descriptors[0])
        return None

    def _fork_leaf(self, job: Job, control: socket.socket) -> Job | None:
        if not (pid := self._fork()):
            return job
        self._leaves[pid] = Leaf(socket.socket(fileno=job.descriptors[0]), control)
        for each in job.descriptors[1:]:
            os.close(each)
        return None

    def _fork(self) -> int:
        """The pid of the new process, and 0 in it."""
        assert len(os.listdir("/proc/self/task")) == 1, (
            "this process has threads, so it cannot be forked"
        )
        parent = os.getpid()
        if pid := os.fork():
            return pid
        die_with(parent)
        return 0

    def _reap(self) -> None:
        while self._leaves:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with (
                contextlib.suppress(OSError),
                self._leaves.pop(pid).news as news,
            ):  # the process that waited for it has ended
                news.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _end_leaves(self, control: socket.socket) -> None:
        """The process at the other end of this control socket has ended, so its leaves end as
        well."""
        last = control is self._controls[0]
        for pid, leaf in [*self._leaves.items()]:
            if last or leaf.control is control:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._leaves.pop(pid).news.close()
        if last:
            self._end()
        self._controls.remove(control)
        control.close()

    def _end(self) -> None:
        """Branches end when the root closes its side."""
        for link in self._branches.values():
            with contextlib.suppress(OSError):  # it has gone
                link.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        os._exit(0)


def _read_ahead(args: Sequence[str]) -> None:
    """What each command of ``manage.py`` reads to check the site first is read in the branch, once
    for all that follow."""
    if args and args[0] == "manage.py" and _kind(args) == _PROGRAM:
        with freeze_afterwards():
            importlib.import_module("controlplane.urls")


def die_with(parent: int) -> None:
    """The kernel ends this process with the thread that forked it, which is its parent's only
    one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _become_branch(job: Job) -> socket.socket:
    os.environ.clear()
    os.environ.update(job.what["env"])
    kind = job.what["branch"]
    if kind == "worker":  # the site reads off the command line which process it is
        import celery

        sys.argv = [str(Path(celery.__file__).with_name("__main__.py")), "worker"]
    if kind == "runmcp":
        os.environ.setdefault("SLIPSNISSE_PROCESS", "runmcp")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    with freeze_afterwards():  # a leaf's collector would walk all of it, and by that copy it
        django.setup()
        for name in (*_SITE[kind], *os.environ.get(PRELOAD, "").split()):
            importlib.import_module(name)
    return socket.socket(fileno=_only(job.descriptors)[0])


def _only(keep: list[int], become: Sequence[int] | None = None) -> list[int]:
    """Close every descriptor but the standard ones and these, which get the numbers ``become``."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, _HIGH) for each in keep]
    numbers = list(become) if become is not None else [3 + at for at in range(len(keep))]
    for at, number in zip(high, numbers, strict=True):
        os.dup2(at, number)
    kept = {0, 1, 2, *numbers}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(name))
    return numbers


def _become_leaf(job: Job) -> None:
    """Run the program as its command line would, to its end."""
    if job.what["session"]:
        os.setsid()
    # from now on it may be signalled, alone or as a group
    with socket.socket(fileno=job.descriptors[0]) as news:
        news.send(str(os.getpid()).encode())
    _only(job.descriptors[1:], job.what["become"])
    os.chdir(job.what["cwd"])
    started.install()
    _take_environment(job.what["env"])
    take_site()
    leave(_run(job.what["args"]))


def _run(args: Sequence[str]) -> int:
    """The program's exit code, as Python makes it of what the program ends with."""
    try:
        if args[0] == "-c":
            sys.argv = ["-c", *args[2:]]
            main = ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(args[1], "<string>", "exec"), main.__dict__)
        elif args[0] == "-m":
            sys.argv = ["-m", *args[2:]]
            runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(args)
            runpy.run_path(args[0], run_name="__main__")
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """All that is promised of an end: threads are waited for, what was registered is called, what
    was said is out.

    Not that each module is taken down: of a site that takes 0.2 s of CPU, as it copies the whole of
    it first.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more, or the program has closed it
            code = code or (0 if stream.closed else 120)
    os._exit(code & 0xFF)


def _take_environment(given: dict[str, str]) -> None:
    """Exactly this one, but for what imports of the branch have put into it."""
    from mcpregistry import failpoints

    for name in (
        set(os.environ)
        - set(given)
        - {"DJANGO_SETTINGS_MODULE", "SLIPSNISSE_PROCESS", "CELERY_SKIP_CHECKS"}
    ):
        del os.environ[name]
    os.environ.update(given)
    failpoints.arm()


def take_site() -> None:
    """Settings as this environment and the files of its folder give them now."""
    from django.conf import Settings, settings
    from django.db import connections

    del sys.modules["controlplane.settings"]
    settings._wrapped = Settings("controlplane.settings")
    connections.__dict__.pop("settings", None)
    connections.__init__()  # type: ignore[misc]


def _pure() -> Iterator[str]:
    for name in _PURE:
        yield from (
            found.name
            for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
        )


def main() -> None:
    """The root. Its branches and leaves are forked off in here, and leave through here."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    with freeze_afterwards():
        for name in (*_LIBRARIES, *_pure()):
            importlib.import_module(name)
    from django.conf import settings

    assert not settings.configured, "a library has read the settings, which are a branch's to read"
    branch = Forker(control).serve()
    control.detach()
    leaf = Forker(_become_branch(branch)).serve()
    _become_leaf(leaf)


if __name__ == "__main__":
    main()
