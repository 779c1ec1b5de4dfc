"""The sandbox of stdio servers: a probe server tries everything, and what it is refused is what the
page says.

It is tried as this kernel has it, and as lesser kernels would. Where this one has no Landlock, each
test holds that the server was not started and the page says "none"; what a sandbox refuses cannot
be seen there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.domain.servers.sandbox import (
    NAMES,
    OTHERS,
    Machine,
    SandboxPolicy,
    describe_protection,
)
from mcpregistry.domain.servers.target import Ports, ResourceBounds, Sandbox
from mcpregistry.downstream.transports import bubblewrap, confinement, stdio
from mcpregistry.downstream.transports.sandbox import build_policy, find_needed_files
from mcpregistry.downstream.transports.stdio import LAUNCHER
from tests.downstream.conftest import Bench, gone
from tests.fakes.targets import SERVERS, stdio_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
REFUSED = {"EACCES", "EPERM"}
GONE = {"ENOENT", "ESRCH", "EROFS"}  # where it has namespaces of its own
LAUNCHED = [
    Path(LAUNCHER).with_name(f"{name}.py")
    for name in ("launcher", "confinement", "namespaces", "resource_limits")
]
# An interpreter that refuses itself the first call of Landlock (444, on every architecture), and
# runs the file it is given.
WITHOUT_LANDLOCK = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    """
import ctypes, runpy, struct, sys
code = b"".join(struct.pack("=HBBI", *each) for each in
    [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)])
body = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(body)), 0, 0) == 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
""",
]

MAY = {
    "read given",
    "read kept",
    "write kept",
    "empty kept",
    "link",
    "command line of another",
    "runs",
}
# What a probe may get at besides where the page has these words.
TOLD = {
    "empty other": "truncated",
    "empty given": "truncated",
    "signal": "signals can reach",
    **dict.fromkeys(
        ("tcp", "tcp to another port", "fast open", "listens", "listens anywhere"), "TCP is open"
    ),
    "udp": "UDP",
    **dict.fromkeys(("raw", "ping", "multipath", "udp-lite"), "other protocols"),
    **dict.fromkeys(
        ("path's socket", "path's datagrams", "abstract socket"), "sockets of other programs"
    ),
    "unshare": "namespaces",
    "mount": "namespaces",
    "limits of another": "limits of other processes",
    "kernel's log": "the kernel's keys and log",
    "shared memory": "shared memory",
    **dict.fromkeys(("semaphores", "queue of messages", "named queue"), "queues"),
    "keyctl": "the kernel's keys",
    **dict.fromkeys(
        ("clone3", "io_uring", "userfaultfd", "32-bit calls", "x32 calls"), "system-call filter"
    ),
}
LEVELS = [(99, True), (5, True), (2, True), (1, True), (99, False), (1, False), (0, True)]


@pytest.fixture
def lesser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int, bool], None]:
    """``lesser(most, filters)``: confined as a kernel with at most that version of Landlock would,
    with a filter or without."""

    def lessen(most: int, filters: bool) -> None:
        here = confinement.get_landlock_version()
        has_filter = confinement.is_filter_supported()
        folder = tmp_path / "lesser"
        folder.mkdir()
        for file in LAUNCHED:
            shutil.copy(file, folder)
        with (folder / "confinement.py").open("a") as copied:
            copied.write(
                f"\n\nabi = lambda: {min(here, most)}\nfiltered = lambda: {has_filter and filters}\n"
            )
        monkeypatch.setattr(stdio, "LAUNCHER", str(folder / "launcher.py"))
        monkeypatch.setattr(confinement, "get_landlock_version", lambda: min(here, most))
        monkeypatch.setattr(confinement, "is_filter_supported", lambda: has_filter and filters)

    return lessen


def said(*, network: bool = True, **policy: Any) -> str:
    """What the page says of a server whose sandbox is on."""
    here = Machine(
        confinement.get_landlock_version(),
        confinement.is_filter_supported(),
        bubblewrap.explain_missing(),
    )
    return str(describe_protection(SandboxPolicy(enforced=True, network=network, **policy), here))


async def not_started(here: Bench, tool: str = "try") -> bool:
    """Whether this kernel has no Landlock; the server must not have been started then, and the page
    says so."""
    if confinement.get_landlock_version():
        return False
    with pytest.raises(ConnectionFailed, match="Landlock") as caught:
        await here.call(tool)
    assert not caught.value.sent
    assert said().startswith("none: ")
    assert "not started" in said()
    return True


def held(
    found: dict[str, Any], may: set[str], *, gone: set[str] = frozenset(), **policy: Any
) -> None:
    """It did all that it ``may``; what it was not refused besides, the page names, and the rest it
    was refused."""
    assert {name for name in may if found[name] != "done"} == set(), found
    besides = {name for name in {*found} - may if found[name] not in REFUSED | gone}
    if (
        confinement.is_filter_supported() and found["clone3"] == "ENOSYS"
    ):  # libc takes another way then
        besides -= {"clone3"}
    assert {
        name for name in besides if name not in TOLD or TOLD[name] not in said(**policy)
    } == set(), found


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A TCP port, a socket with a path and one with an abstract name, as databases and desktops
    have them."""
    path = str(tmp_path / "outside.sock")
    abstract = f"slipsnisse-test-{os.getpid()}"
    datagrams = str(tmp_path / "log.sock")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        free = unused.getsockname()[1]
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.create_server(("127.0.0.1", 0)) as another,
        socket.socket(socket.AF_UNIX) as by_path,
        socket.socket(socket.AF_UNIX) as by_name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        log.bind(datagrams)
        by_path.bind(path)
        by_name.bind("\0" + abstract)
        for each in (by_path, by_name):
            each.listen()
        ports = {
            "port": tcp.getsockname()[1],
            "other port": another.getsockname()[1],
            "free port": free,
        }
        yield ports | {"socket": path, "abstract": abstract, "datagrams": datagrams}


def confined(
    tmp_path: Path, name: str = "probe", *, env: dict[str, str] | None = None, **policy: Any
) -> Any:
    sandbox = Sandbox(
        home=str(tmp_path / "home"), read=(str(SERVERS), *policy.pop("read", ())), **policy
    )
    return stdio_target(name, sandbox=sandbox, env=env or {})


async def tries(here: Bench, wanted: dict[str, Any]) -> dict[str, Any]:
    return json.loads(
        (await here.call("try", json.dumps(wanted).encode(), timeout=HANG_LIMIT))["content"][0][
            "text"
        ]
    )


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@pytest.mark.parametrize(("most", "filters"), LEVELS)
async def test_a_probe_gets_at_nothing_but_what_its_policy_names(
    bench: Make, tmp_path: Path, listening: dict, lesser: Callable, most: int, filters: bool
):
    lesser(most, filters)
    for name in ("other", "given", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("secret")
    outside = {name: str(tmp_path / name / "file") for name in ("other", "given", "kept")}
    target = confined(
        tmp_path,
        network=False,
        read=(str(tmp_path / "given"),),
        write=(str(tmp_path / "kept"),),
        env={"TOKEN": "t"},
    )
    here = bench(target)
    if await not_started(here):
        return
    found = await tries(
        here, {"read": outside | {"shadow": "/etc/shadow"}, "write": outside, **listening}
    )
    # Python's own addition
    assert {*found.pop("environment")} - {"LC_CTYPE"} == {"HOME", "PATH", "TMPDIR", "TOKEN"}
    assert (found.pop("folder"), found.pop("descriptors")) == (str(tmp_path / "home"), [])
    held(found, MAY, network=False)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.bubblewrap
@pytest.mark.parametrize(("most", "filters"), [(99, True), (0, True), (99, False)])
async def test_in_namespaces_of_its_own_the_probe_does_not_even_see_the_rest(
    bench: Make, tmp_path: Path, listening: dict, lesser: Callable, most: int, filters: bool
):
    """Also where the kernel has no Landlock. Its links lead where they did; its program and its
    folder are reached by them."""
    lesser(most, filters)
    for name in ("other", "given", "kept", "kept/inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "given")
    outside = {name: str(tmp_path / name / "file") for name in ("other", "given", "kept")}
    target = confined(
        tmp_path,
        network=False,
        strict=True,
        read=(str(tmp_path / "given"), str(tmp_path / "kept" / "inner")),
        write=(str(tmp_path / "kept"),),
        named=(str(tmp_path / "link"),),
        env={
            "TOKEN": "t",
            "LD_DEBUG": "files",
            "LD_DEBUG_OUTPUT": str(tmp_path / "other" / "debug"),
        },
    )
    here = bench(target)
    wanted = {
        "read": outside | {"linked": str(tmp_path / "link" / "file"), "hosts": "/etc/hosts"},
        "write": outside | {"inner": str(tmp_path / "kept" / "inner" / "file")},
    }
    found = await tries(here, {**wanted, **listening, "another": os.getpid()})
    assert (
        {"HOME", "PATH", "TMPDIR", "TOKEN"}
        <= {*found["environment"]}
        <= {"HOME", "PATH", "TMPDIR", "TOKEN", "PWD", "LC_CTYPE", "LD_DEBUG", "LD_DEBUG_OUTPUT"}
    )
    assert (found["folder"], found["descriptors"]) == (str(tmp_path / "home"), [])
    for name in ("environment", "folder", "descriptors", "path's datagrams"):
        del found[name]
    assert not [*(tmp_path / "other").glob("debug*")], "bubblewrap obeys the server's environment"
    own = {
        "shared folder",
        "shared memory's folder",
        "read linked",
        "read hosts",
        "write inner",
        "empty inner",
    }
    may = MAY - {"command line of another"} | own
    gone = GONE | (set() if filters else {"ECONNREFUSED", "ENETUNREACH", "ECHILD", "EINVAL"})
    if not filters:  # in its own namespaces it may do what it likes
        mine = (
            "shared memory",
            "semaphores",
            "queue of messages",
            "named queue",
            "udp",
            "listens",
            "listens anywhere",
        )
        for name in (*mine, "limits of another", "ptrace"):
            del found[name]
    held(found, may, gone=gone, network=False, strict=True)
    assert (tmp_path / "other" / "file").read_text() == "secret"


@pytest.mark.attack
async def test_an_open_network_is_tcp_and_udp_and_nothing_else(
    bench: Make, tmp_path: Path, listening: dict
):
    # by its bare name, which PATH is searched for
    program = ("env", sys.executable, "-S", str(SERVERS / "probe.py"))
    target = replace(
        confined(tmp_path, read=tuple(map(os.path.realpath, (sys.prefix, sys.base_prefix)))),
        argv=program,
    )
    here = bench(target)
    if await not_started(here):
        return
    found = await tries(here, listening)
    del found["environment"], found["folder"], found["descriptors"]
    everywhere = {"tcp", "tcp to another port", "fast open", "listens", "listens anywhere", "udp"}
    held(found, {"link", "command line of another", "runs"} | everywhere)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.bubblewrap)])
@pytest.mark.parametrize("listens", [False, True])
async def test_of_a_network_that_is_limited_to_ports_nothing_else_is_reached(
    bench: Make, tmp_path: Path, listening: dict, strict: bool, listens: bool
):
    ports = Ports(connect=(listening["port"],), listen=(listening["free port"],) if listens else ())
    here = bench(confined(tmp_path, ports=ports, strict=strict))
    if await not_started(here):
        return
    found = await tries(here, listening | {"another": os.getpid()})
    for name in ("environment", "folder", "descriptors"):
        del found[name]
    may = {"link", "runs", "tcp"} | ({"listens", "listens anywhere"} if listens else set())
    may |= {"shared folder", "shared memory's folder"} if strict else {"command line of another"}
    held(found, may, gone=GONE if strict else set(), ports=ports, strict=strict)


@pytest.mark.attack
async def test_without_the_sandbox_the_same_probe_gets_at_it(
    bench: Make, tmp_path: Path, listening: dict
):
    """Else the refusals above would show nothing."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "other").write_text("secret")
    target = stdio_target("probe", env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")})
    found = await tries(bench(target), {"read": {"other": str(tmp_path / "other")}, **listening})
    open_ones = (
        "read other",
        "environment of another",
        "limits of another",
        "signal",
        "tcp",
        "udp",
    )
    for name in (*open_ones, "path's socket", "path's datagrams", "abstract socket"):
        assert found[name] == "done", name


@pytest.mark.attack
@pytest.mark.parametrize("enforced", [True, False])
async def test_the_servers_environment_means_nothing_to_its_launcher(
    bench: Make, tmp_path: Path, enforced: bool
):
    """The loader obeys some of it (LD_PRELOAD, …): code from the server's own folder would run
    before it is confined."""
    env = {
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": str(tmp_path / "outside"),
        "LD_LIBRARY_PATH": str(tmp_path),
    }
    target = confined(tmp_path, env=env) if enforced else stdio_target("envdump", env=env)
    here = bench(target)
    if not enforced:
        assert (await here.call("env"))["content"]
    elif not await not_started(here):
        assert {*(await tries(here, {}))["environment"]} >= {*env}
    assert len([*tmp_path.glob("outside.*")]) == (0 if enforced else 1)


@pytest.mark.fault
async def test_a_confined_servers_daemon_ends_with_it_too(bench: Make, tmp_path: Path):
    path = tmp_path / "home" / "pids"
    here = bench(confined(tmp_path, "stubborn", env={"FAKE_PIDS": str(path)}))
    if await not_started(here):
        return
    await here.pool.connect(1)
    await until(lambda: path.exists() and len(path.read_text().split()) >= 2)
    pids = [int(line) for line in path.read_text().split()]
    await here.pool.disconnect(1)
    for pid in pids:
        await gone(pid)


async def test_without_landlock_a_confined_server_is_not_started(
    bench: Make, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 0)
    assert await not_started(bench(confined(tmp_path)))
    assert not (tmp_path / "home").exists()


async def test_without_bubblewrap_a_strict_server_is_not_started_with_less(
    bench: Make, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(bubblewrap, "_answer", None)
    monkeypatch.setattr(bubblewrap, "PROGRAM", "bwrap-that-is-not-there")
    with pytest.raises(
        ConnectionFailed, match="in its own namespaces: bubblewrap is not installed"
    ) as caught:
        await bench(confined(tmp_path, strict=True)).call("try")
    assert "apt install bubblewrap" in caught.value.remedy
    assert not caught.value.sent
    assert not (tmp_path / "home").exists()
    assert said(strict=True).startswith("none: bubblewrap is not installed")
    monkeypatch.setattr(bubblewrap, "_answer", None)
    (tmp_path / "bwrap-old").write_text(
        "#!/bin/sh\necho 'bwrap: Unknown option --ro-bind-fd' >&2\nexit 1\n"
    )
    (tmp_path / "bwrap-old").chmod(0o700)
    monkeypatch.setattr(bubblewrap, "PROGRAM", str(tmp_path / "bwrap-old"))
    assert "Unknown option --ro-bind-fd" in said(strict=True)
    monkeypatch.setattr(bubblewrap, "_answer", None)


def test_the_page_names_what_the_probe_could_do() -> None:
    """Where all is enforced, with the network closed: the command lines of others, and no more of
    what it tried."""
    bounded = ResourceBounds(memory_mb=1, processes=1, cpu_seconds=1)
    machine = Machine(6, True)
    best = describe_protection(SandboxPolicy(enforced=True, network=False), machine, bounded)
    assert (best.level, best.missing, best.uncovered) == ("full", (), (NAMES, OTHERS))
    assert any("command lines" in each for each in best.uncovered)
    strict = describe_protection(
        SandboxPolicy(enforced=True, network=False, strict=True), replace(machine, abi=0), bounded
    )
    assert (strict.level, strict.uncovered) == ("full", ())


def test_a_script_may_read_its_interpreter_and_the_libraries_beside_it(tmp_path: Path):
    for folder in ("real/bin", "real/lib", "venv/bin", "venv/lib"):
        (tmp_path / folder).mkdir(parents=True)
    python = tmp_path / "real/bin/python3"
    script = tmp_path / "venv/bin/serve"
    python.write_bytes(b"\x7fELF")
    link = tmp_path / "venv/bin/python"
    link.symlink_to(python)
    script.write_text(f"#!{link}\n")
    for file in (python, script):
        file.chmod(0o700)
    needed = find_needed_files("serve", "", str(tmp_path / "venv/bin"))
    assert {str(script), str(link), str(python)} <= {*needed}
    assert {
        str(tmp_path / "venv/lib"),
        str(tmp_path / "venv/pyvenv.cfg"),
        str(tmp_path / "real/lib"),
    } <= {*needed}
    assert str(tmp_path) not in needed


@pytest.mark.attack
async def test_a_link_in_its_own_folder_lets_it_in_nowhere_at_its_next_start(
    bench: Make, tmp_path: Path
):
    kept = tmp_path / "kept"
    other = tmp_path / "other"
    for folder in (kept / "bin", other / "lib"):
        folder.mkdir(parents=True)
    (other / "lib" / "file").write_text("secret")
    (kept / "read").symlink_to(other)
    (kept / "write").symlink_to(other)
    policy = {"read": (f"{kept}/read",), "write": (str(kept), f"{kept}/write")}
    here = bench(confined(tmp_path, **policy))
    if not await not_started(here):
        assert (await tries(here, {"read": {"other": str(other / "lib" / "file")}}))[
            "read other"
        ] == "EACCES"
    program = kept / "bin" / "serve"
    program.write_text(f"#!{other}/bin/sh\n")
    program.chmod(0o700)
    assert not [
        each for each in find_needed_files(str(program), "", "", (str(kept),)) if str(other) in each
    ]


@pytest.mark.attack
def test_a_program_reached_through_its_own_folder_is_not_followed_out_of_it(tmp_path: Path):
    """The links from outside are the operator's; those behind them it could lead anywhere, also to
    a folder of programs."""
    kept = tmp_path / "kept"
    other = tmp_path / "other"
    for folder in (kept, other / "bin", other / "lib"):
        folder.mkdir(parents=True)
    program = other / "bin" / "serve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    (kept / "serve").symlink_to(program)
    (tmp_path / "serve").symlink_to(kept / "serve")
    (kept / "bin").symlink_to(other / "bin")
    (tmp_path / "bin").symlink_to(kept / "bin")
    sandbox = Sandbox(home=str(tmp_path / "home"), write=(str(kept),))
    for command in (tmp_path / "serve", tmp_path / "bin" / "serve"):
        target = stdio_target("probe", argv=(str(command),), sandbox=sandbox)
        lines = build_policy(target, sandbox, "").split("\n")
        assert f"w{kept}" in lines
        assert not [each for each in lines if str(other) in each]


@pytest.mark.attack
async def test_a_path_that_becomes_a_link_after_it_was_checked_opens_nothing(
    bench: Make, tmp_path: Path
):
    other = tmp_path / "other"
    (other / "docs").mkdir(parents=True)
    (other / "docs" / "file").write_text("secret")
    (tmp_path / "link").symlink_to(other)
    links = (str(tmp_path / "link"), str(tmp_path / "link" / "docs"))
    outside = {"other": str(other / "docs" / "file")}
    here = bench(confined(tmp_path, read=links, write=links))
    if await not_started(here):
        return
    found = await tries(here, {"read": outside, "write": outside})
    assert {found["read other"], found["write other"]} == {"EACCES"}
    assert found["empty other"] == "EACCES" or TOLD["empty other"] in said()


@pytest.mark.fault
@pytest.mark.parametrize(
    "fails",
    ["raise RuntimeError('half way')", "import nothing_of_that_name", "none_of_that_name()"],
)
def test_a_launcher_that_fails_half_way_starts_nothing_and_says_why(tmp_path: Path, fails: str):
    for file in LAUNCHED:
        shutil.copy(file, tmp_path)
    with (tmp_path / "confinement.py").open("a") as copied:
        copied.write(f"\n\ndef _restrict(*_):\n    {fails}\n")
        copied.write("\n\nabi = lambda: 6\n")  # also where there is none
    done = tmp_path / "done"
    (ours, theirs) = socket.socketpair()
    with ours, theirs:
        program = [
            sys.executable,
            "-I",
            "-S",
            str(tmp_path / "launcher.py"),
            str(theirs.fileno()),
            "r/",
        ]
        ended = subprocess.run(
            [*program, "/usr/bin/touch", str(done)],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            check=False,
            timeout=HANG_LIMIT,
        )
        assert b"exit 126" in ours.recv(100)
    assert b"the sandbox cannot be applied" in ended.stderr
    assert not done.exists()


@pytest.mark.attack
def test_a_launcher_that_finds_no_landlock_starts_nothing(tmp_path: Path):
    """Though who started it believed there was one."""
    done = tmp_path / "done"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = [
            *WITHOUT_LANDLOCK,
            LAUNCHER,
            str(theirs.fileno()),
            "r/",
            "/usr/bin/touch",
            str(done),
        ]
        ended = subprocess.run(
            program,
            pass_fds=[theirs.fileno()],
            capture_output=True,
            check=False,
            timeout=HANG_LIMIT,
        )
    assert b"the sandbox cannot be applied" in ended.stderr
    assert not done.exists()
