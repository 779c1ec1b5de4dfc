"""The sandbox of a stdio server on this machine: its folder, what its program needs to run, and the
launcher's policy.

Every program may read the system's libraries and the few files of ``/etc`` that name hosts, users,
time and certificates; its own file and the ``lib`` folders beside it (a virtual environment, Node's
prefix); nothing of ``/home``, ``/var``, ``/run``, ``/tmp``, ``/srv`` or ``/opt`` besides. What else
it needs, its policy names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import PurePath

from mcpregistry.domain.errors import ConfigInvalid, ConnectionFailed
from mcpregistry.domain.servers.target import Sandbox, ServerTarget
from mcpregistry.downstream.transports import bubblewrap, confinement
from mcpregistry.downstream.transports.script_interpreters import find_interpreters

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/sys/devices/system/cpu",
    "/dev/random",
    "/dev/urandom",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/java",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
SYSTEM_PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin", "/sbin")
_BESIDE = ("lib", "lib64", "pyvenv.cfg")
MOST_FILE_MB = 4096  # in a sandbox, where nobody has said otherwise
MOST_STEPS = 400  # from folder to folder and along links, that of a ring included


def build_sandbox_environment(sandbox: Sandbox) -> dict[str, str]:
    """The environment by which a program finds its own folder instead of ours, and names where
    there is no UDP."""
    names = (
        {"RES_OPTIONS": "use-vc"}
        if sandbox.network and sandbox.ports and 53 in sandbox.ports.connect
        else {}
    )
    return {"HOME": sandbox.home, "TMPDIR": os.path.join(sandbox.home, "tmp"), **names}


def prepare(target: ServerTarget, path: str) -> tuple[str, str]:
    """The launcher's policy (empty: neither sandbox nor limits) and the directory to start in.
    Makes the server's folder.

    Raises ConnectionFailed (nothing sent) where nothing would confine it, or its folder cannot be
    made.
    """
    sandbox = target.sandbox
    if sandbox is None:
        return "\n".join(_build_limit_lines(target)), target.cwd
    if not sandbox.strict and not confinement.get_landlock_version():
        raise ConnectionFailed(
            "The server cannot be started in its sandbox: this machine's kernel does not support Landlock.",
            remedy="Use Linux 5.13 or newer with Landlock enabled, or set “Sandbox” to “Off” on the page of the server.",
        )
    try:
        for folder in (sandbox.home, build_sandbox_environment(sandbox)["TMPDIR"]):
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConnectionFailed(
            f"The server's folder {sandbox.home} cannot be created: {error.strerror}.",
            remedy="Check the owner and the permissions of the folder above it.",
        ) from error
    try:
        return build_policy(target, sandbox, path), target.cwd or sandbox.home
    except ConfigInvalid as error:
        raise ConnectionFailed(error.message, remedy=error.remedy) from error


def _build_limit_lines(target: ServerTarget) -> list[str]:
    """The lines that ``bounds`` takes."""
    most = target.bounds
    file_mb = most.file_mb or (MOST_FILE_MB if target.sandbox else 0)
    named = {
        "M": most.memory_mb,
        "P": most.processes,
        "C": most.cpu_seconds,
        "F": file_mb,
        "O": most.open_files,
    }
    return [f"{letter}{value}" for letter, value in named.items() if value]


def build_policy(target: ServerTarget, sandbox: Sandbox, path: str) -> str:
    """The lines that ``confinement.apply`` takes: places without links, for it follows none; and
    those for ``bounds``.

    The policy's own paths are as they were checked; a link that one has become since opens nothing.
    Raises ConfigInvalid for a program that needs this site's data, or whose interpreter cannot be
    told.
    """
    home = os.path.realpath(sandbox.home)
    folders = (home, *sandbox.write)
    writable = (*folders, *sandbox.written_by_others)
    links: dict[str, str] = {}
    copied = [each for each in SYSTEM if sandbox.strict and each.startswith("/etc/")]
    needed = [each for each in SYSTEM if each not in copied] + find_needed_files(
        target.argv[0], target.cwd, path, writable
    )

    def resolve_own(wanted: list[str]) -> Iterator[str]:
        for each in wanted:
            place = resolve_path(each, writable, links)
            if place and not _is_within(place, (*folders, *sandbox.read)):
                refuse_hidden(place, sandbox.hidden)
                yield from split_around_hidden(place, sandbox.hidden)

    read = dict.fromkeys((*resolve_own(needed), *sandbox.read))
    write = dict.fromkeys((*DEVICES, home, *sandbox.write))
    lines = [
        *(f"r{each}" for each in read),
        *(f"w{each}" for each in write),
        *_build_network_lines(sandbox),
        *_build_limit_lines(target),
    ]
    lines += [f"e{each}" for each in dict.fromkeys(resolve_own(copied)) if each not in read]
    return "\n".join([*lines, *(_build_strict_lines(sandbox, links) if sandbox.strict else ())])


def refuse_hidden(place: str, hidden: tuple[str, ...]) -> None:
    """Raises ConfigInvalid for a place without links that is, or lies in, something ``hidden``."""
    if _is_within(place, hidden):
        raise ConfigInvalid(
            f"The program needs '{place[:200]}', which belongs to this site or to another server.",
            remedy="Use a program outside of the site's folder.",
        )


def split_around_hidden(place: str, hidden: tuple[str, ...]) -> Iterator[str]:
    """The place, or where something ``hidden`` lies in it, what lies beside that."""
    if not any(each != place and _is_within(each, (place,)) for each in hidden):
        yield place
        return
    try:
        entries = [*os.scandir(place)]
    except OSError:  # whoever cannot list it does not know what to leave out
        return
    for entry in entries:
        if entry.path not in hidden and not entry.is_symlink():
            yield from split_around_hidden(entry.path, hidden)


def _build_network_lines(sandbox: Sandbox) -> list[str]:
    if not sandbox.network:
        return []
    if sandbox.ports is None:
        return ["n"]
    return [
        "t",
        *(f"c{port}" for port in sandbox.ports.connect),
        *(f"b{port}" for port in sandbox.ports.listen),
    ]


def _build_strict_lines(sandbox: Sandbox, links: dict[str, str]) -> Iterator[str]:
    """The lines for ``namespaces``: there a link that leads to a place of its own must be made as
    well."""
    program = bubblewrap.find_bubblewrap()
    if program is None:
        raise ConnectionFailed(
            "bubblewrap is not installed, so the server is not started.", remedy=bubblewrap.REMEDY
        )
    yield f"x{program}"
    for each in (sandbox.home, *sandbox.named):
        resolve_path(each, (), links)
    for link, says in links.items():
        if not any(sign < " " for sign in link + says):
            yield f"s{link}\t{says}"


def resolve_path(
    path: str, writable: tuple[str, ...] = (), links: dict[str, str] | None = None
) -> str | None:
    """Where a path leads; None where a link on its way lies in a ``writable`` folder (itself named
    without links):

    the server could put one there, and be let in behind it at its next start. Policies are resolved
    with it too. Into ``links`` goes what each link on the way says.
    """
    place = "/"
    parts = path.split("/")[::-1]
    for _ in range(MOST_STEPS):
        if not parts:
            return None if any(sign < " " for sign in place) else place
        step = os.path.normpath(os.path.join(place, parts.pop()))
        if not os.path.islink(step):
            place = step
        elif _is_within(place, writable):
            return None
        else:
            try:
                says = os.readlink(step)
            except OSError:  # a link of another process's in /proc
                return None
            if links is not None:
                links[step] = says
            parts += os.path.join(place, says).split("/")[::-1]
            place = "/"
    return None


def _is_within(path: str, folders: tuple[str, ...]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)


def find_needed_files(
    command: str, cwd: str, path: str, writable: tuple[str, ...] = ()
) -> list[str]:
    """Where a program's code lies: its file, its interpreters, and the libraries beside each.

    A file in a ``writable`` folder is not followed, for the server could make it lead elsewhere.
    Raises ConfigInvalid for a script whose first line does not name its interpreter plainly.
    """
    where = os.path.join(cwd, command) if os.sep in command else command
    found = shutil.which(where, path=path)
    needed: dict[str, None] = {}
    waiting = [found] if found else []
    while waiting:
        file = waiting.pop()
        if file not in needed:
            needed |= dict.fromkeys([file, *_list_libraries(file)])
            folder = resolve_path(os.path.dirname(file), writable)
            waiting += (
                _list_targets(file, path, writable)
                if folder and not _is_within(folder, writable)
                else []
            )
    return list(needed)


def _list_libraries(file: str) -> Iterator[str]:
    folder = os.path.dirname(file)
    if os.path.basename(folder) == "bin":
        yield from (os.path.join(os.path.dirname(folder), name) for name in _BESIDE)


def _list_targets(file: str, path: str, writable: tuple[str, ...]) -> list[str]:
    """The next file of a link, and the last; the interpreters of a script."""
    if os.path.islink(file):
        last = resolve_path(file, writable)
        return [os.path.join(os.path.dirname(file), os.readlink(file)), *([last] if last else [])]
    return find_interpreters(file, path, SYSTEM_PROGRAMS)
