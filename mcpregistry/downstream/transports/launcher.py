"""Supervisor of one stdio server: it starts the server and outlives every process that it leaves.

Run as ``python -I -S launcher.py CONTROL_FD POLICY ARGV...``; standard library only, because it is
one small process for each running server. POLICY is empty, or lines for ``confinement.py`` (small
letters; with ``x``, ``namespaces.py``) and ``resource_limits.py`` (capital ones).

Invariants:
* The server's working directory and umask are those this process was given, and its environment
  what stands there behind ``_``: some of it (LD_PRELOAD, LD_LIBRARY_PATH) would load code, which
  nothing confines, into this one.
* When the server ends, when our parent says so, or when the parent dies in any way (also by
  SIGKILL), every descendant is killed, also one that made itself a daemon: on Linux orphans are
  re-parented to us (PR_SET_CHILD_SUBREAPER). Elsewhere only the server's process group is.
* With a policy, the server runs confined or not at all.
* The control socket carries ``pid N`` and ``exit N`` lines to the parent, before the latter ``over
  WHAT USED MOST`` of one that was ended for a limit; ``T`` (terminate) and ``K`` (kill) bytes from
  it. Its end of file means that the parent is gone.
"""

# The C module behind ``signal``. That one imports ``enum``, as does ``socket``, and what this needs
# in turn: a third of the time of this program's start, and 1 MB for each running server.
import _signal as signal  # type: ignore[import-not-found]
import ctypes
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform.startswith("linux")


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2); does nothing elsewhere."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def load_sibling(name: str) -> "ModuleType":
    """A module that lies beside this file; loaded for those servers alone that need it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder not in sys.path:
        sys.path.append(folder)  # last: ``http`` and its kin there are none of Python's
    return __import__(name)


def has_limits(policy: str) -> bool:
    """Whether it names limits."""
    return any(line[:1].isupper() for line in policy.split("\n"))


def is_strict(policy: str) -> bool:
    """Whether bubblewrap stands between this process and the server."""
    return any(line[:1] == "x" for line in policy.split("\n"))


def confine(policy: str, file: str, argv: list[str], env: dict[bytes, bytes]) -> None:
    """Become the server, within its limits and its sandbox; raises OSError where its program cannot
    be started.

    Ends the process where one of them fails.
    """
    try:
        limits = load_sibling("resource_limits") if has_limits(policy) else None
        if limits:
            limits.apply_limits(limits.parse_limits(policy))
        if is_strict(policy):
            argv = load_sibling("namespaces").build_bwrap_command(policy, file, argv, env)
            env = {}
            file = argv[0]
        elif any(line[:1].islower() for line in policy.split("\n")):
            load_sibling("confinement").apply(policy)
    except Exception as error:  # noqa: BLE001  whatever it is: nothing is started, and the server's log says why
        os.write(
            2,
            f"the server was not started, because the sandbox cannot be applied: {error}\n".encode(
                errors="replace"
            ),
        )
        os._exit(126)
    os.execve(file, argv, env)  # noqa: S606  an argv list, never a shell


def read_environment() -> dict[bytes, bytes]:
    """The server's environment; not what the interpreter adds to a bare one (PEP 538)."""
    return {name[1:]: value for name, value in os.environb.items() if name[:1] == b"_"}


def find_server_program(program: str, path: str) -> str:
    """The program's file, by PATH. Looked up before the sandbox: ``os.execvpe`` loads a module of
    Python's on its way."""
    folders = [] if "/" in program else path.split(":")
    files = [os.path.join(folder, program) for folder in folders]
    return next(
        (file for file in files if os.access(file, os.X_OK) and not os.path.isdir(file)), program
    )


def start_server(policy: str, argv: list[str]) -> int:
    """Fork and exec the server in its own session. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should even this supervisor be killed
        signal.set_wakeup_fd(-1)
        for number in (
            signal.SIGCHLD,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGINT,
            signal.SIGPIPE,
        ):
            signal.signal(number, signal.SIG_DFL)
        env = read_environment()
        file = find_server_program(argv[0], os.fsdecode(env.get(b"PATH", os.defpath.encode())))
        confine(policy, file, argv, env)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def list_children(pid: int) -> list[int]:
    """Process ids of the direct children, whichever thread has started them, from /proc; empty
    where there is none."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # gone meanwhile
        pass
    return found


def list_descendants(pid: int) -> list[int]:
    """Process ids of all descendants, the nearest first."""
    found = list_children(pid)
    for child in found:  # grows while we walk: breadth first
        found.extend(list_children(child))
    return found


def signal_each(pids: list[int], number: int) -> None:
    """Send a signal to each process; one that is gone already is no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def signal_group(server: int, number: int) -> None:
    """Send a signal to the server's process group; one that is gone already is no error."""
    try:
        os.killpg(server, number)
    except (ProcessLookupError, PermissionError):
        return


def reap(server: int) -> tuple[int | None, bool]:
    """Collect what has ended: the server's exit code if it is among it, and whether any child is
    left."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == server:
            code = os.waitstatus_to_exitcode(status)


def kill_all(server: int, code: int | None) -> int:
    """Kill until no child is left; orphans of what we kill become our children and are next."""
    pause = 0.0005
    while True:
        signal_group(server, signal.SIGKILL)
        signal_each(list_descendants(os.getpid()), signal.SIGKILL)
        ended, left = reap(server)
        code = ended if ended is not None else code
        if not left or not LINUX:
            return code if code is not None else -signal.SIGKILL
        select.select([], [], [], pause)
        pause = min(2 * pause, 0.02)


def terminate(server: int, policy: str) -> None:
    """Ask the server to end; bubblewrap is not asked, for with it all would end at once."""
    if is_strict(policy):
        signal_each(list_descendants(server), signal.SIGTERM)
    else:
        signal_group(server, signal.SIGTERM)


def supervise(control: int, wake: int, server: int, policy: str) -> int:
    """Wait for the server's end, the parent's word, or a limit. Returns the server's exit code."""
    limits = load_sibling("resource_limits") if has_limits(policy) else None
    watch = None
    if limits:
        watch = limits.UsageWatch(limits.parse_limits(policy), 2 if is_strict(policy) else 0)
    while True:
        readable, _, _ = select.select([control, wake], [], [], watch.pause if watch else None)
        numbers = os.read(wake, 512) if wake in readable else b""
        word = os.read(control, 16) if control in readable else b"-"
        code, _ = reap(server)
        if code is not None or not word or b"K" in word or signal.SIGHUP in numbers:
            return kill_all(server, code)
        if b"T" in word or signal.SIGTERM in numbers or signal.SIGINT in numbers:
            terminate(server, policy)
        if watch and watch.is_due() and (over := watch.check_usage(list_descendants(os.getpid()))):
            os.write(control, b"over %s %d %d\n" % (over[0].encode(), over[1], over[2]))
            return kill_all(server, None)


def main() -> None:
    """Read the arguments, start the server, supervise it, and exit with its code."""
    control = int(sys.argv[1])
    os.set_inheritable(control, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = start_server(sys.argv[2], sys.argv[3:])
    nothing = os.open(os.devnull, os.O_RDWR)
    # only the server may hold the pipes, or their end would never show
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    try:
        os.write(control, b"pid %d\n" % server)
        code = supervise(control, wake, server, sys.argv[2])
        os.write(control, b"exit %d\n" % code)
    except OSError:
        kill_all(server, None)


if __name__ == "__main__":
    main()
