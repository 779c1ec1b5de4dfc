"""The sandbox of a server: checked, resolved to real places at the moment of starting, and said in
words.

Invariants:
* No path of a policy opens this site's own data, neither as it is written nor behind a link: what
  is checked is a place without links, and the launcher follows none.
* None lets a server write what is started without a sandbox, or the kernel's own files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from urllib.parse import urlsplit

from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.servers.sandbox import (
    Machine,
    Protection,
    SandboxPolicy,
    check_paths,
    check_ports,
    describe_protection,
)
from mcpregistry.domain.servers.target import Sandbox
from mcpregistry.downstream.transports import bubblewrap, confinement
from mcpregistry.downstream.transports.sandbox import (
    SYSTEM,
    find_needed_files,
    refuse_hidden,
    resolve_path,
)
from mcpregistry.models import Install, Server, ServerTest
from mcpregistry.models.confinement import SandboxMode
from mcpregistry.models.install import find_install_ids
from mcpregistry.models.server import Transport


def find_default_mode() -> SandboxMode:
    """Of a server that is made here and about which nobody says otherwise: its sandbox is on, where
    this machine has one."""
    return SandboxMode.ENFORCE if confinement.get_landlock_version() else SandboxMode.OFF


def check_sandbox(server: Server) -> None:
    """Raises ConfigInvalid for paths and ports that are none, paths that hold this site's data, and
    a program that needs it."""
    for ports in (server.sandbox_connect, server.sandbox_listen):
        check_ports(ports)
    for paths, private in (
        (server.sandbox_read, _list_unreadable_paths()),
        (server.sandbox_write, _list_unwritable_paths()),
    ):
        check_paths(paths, private)
        check_paths([os.path.realpath(path) for path in paths], private)
    _check_program(server)


def _check_program(server: Server) -> None:
    """Neither the program nor what it needs is this site's own data or another server's; its own
    package is."""
    try:
        needed = _list_needed_paths(server)
    except ConfigInvalid:
        if server.sandbox_policy().enforced:
            raise
        return  # without a sandbox nothing is opened for it
    own = tuple(map(os.path.realpath, _list_install_folders(server)))
    private = _list_unreadable_paths()
    # also where nothing can be started there yet
    written = os.path.join(server.cwd, server.command[0])
    for place in map(os.path.realpath, [*needed, *([written] if os.path.isabs(written) else [])]):
        if not any(PurePath(place).is_relative_to(folder) for folder in own):
            refuse_hidden(place, private)


def _list_needed_paths(server: Server) -> list[str]:
    return find_needed_files(server.command[0], server.cwd, os.environ.get("PATH", os.defpath))


def list_named_paths(words: Sequence[str]) -> list[str]:
    """Folders and files of this machine that a command names by absolute paths, for a sandbox that
    shall let them be read: a program's or script's folder, for what lies beside it; a file alone
    where its folder holds other people's as well.
    """
    found = [
        os.path.dirname(word) if os.path.isfile(word) and word.count("/") > _SHALLOW else word
        for word in words[1:]
        if word.startswith("/") and os.path.exists(word)
    ]
    deep = [
        place
        for place in dict.fromkeys(found)
        if place.count("/") > 1 and not place.startswith(_KNOWN_TO_ALL)
    ]
    return [place for place in deep if _is_allowable(place)]


_SHALLOW = 3  # A file in a home lies in a folder that holds everything of theirs
# open in every sandbox, or of no use in one
_KNOWN_TO_ALL = ("/usr/", "/bin/", "/lib/", "/proc/", "/sys/", "/dev/")


def _list_unreadable_paths() -> tuple[str, ...]:
    """This site's data; ``/dev/mem`` stands for the folder of all devices, its disks among them."""
    database = str(settings.DATABASES["default"]["NAME"])
    beside = [f"{database}{end}" for end in ("", "-wal", "-shm", "-journal")]  # SQLite's own files
    socket = urlsplit(settings.CELERY_BROKER_URL)
    named = [*beside, settings.AUDIT_FILE, socket.path if "socket" in socket.scheme else ""]
    files = (str(settings.VAR_DIR), *(file for file in named if file.startswith("/")))
    return tuple({*files, *map(os.path.realpath, files), "/dev/mem"})


def _list_unwritable_paths() -> tuple[str, ...]:
    """Also the programs of this site, and with ``/proc`` and ``/sys`` how the kernel runs programs
    for every user."""
    code = (
        *(
            f"{settings.BASE_DIR}/{name}"
            for name in ("controlplane", "mcpregistry", "templates", "manage.py")
        ),
        sys.prefix,
    )
    return (
        *_list_unreadable_paths(),
        *code,
        *map(os.path.realpath, code),
        sys.base_prefix,
        "/proc",
        "/sys",
    )


def build_sandbox(server: Server, *, forced: bool = False) -> Sandbox | None:
    """As it is to be applied now; ``forced`` also where it is off, to try it. Raises ConfigInvalid
    as ``check_sandbox``."""
    policy = server.sandbox_policy()
    if server.transport != Transport.STDIO or not (policy.enforced or forced):
        return None
    check_sandbox(server)
    home = os.path.join(settings.VAR_DIR, "servers", str(server.uid))
    others = tuple({os.path.realpath(path) for path in _list_confined_write_paths()})
    folders = (*others, *(os.path.realpath(path) for path in (home, *policy.write)))
    return Sandbox(
        home=home,
        read=(
            *_resolve_places(policy.read, folders, _list_unreadable_paths()),
            *_resolve_places(_list_install_folders(server), folders, ()),
        ),
        write=_resolve_places(policy.write, folders, _list_unwritable_paths()),
        network=policy.network,
        ports=policy.ports,
        strict=policy.strict,
        named=(*policy.read, *policy.write, *filter(None, [server.cwd])),
        hidden=_list_unreadable_paths(),
        written_by_others=others,
    )


def _list_confined_write_paths() -> list[str]:
    """What servers in a sandbox may write: a link there may be theirs, and one would let another
    out of its own."""
    rows = Server.objects.filter(transport=Transport.STDIO).exclude(sandbox=SandboxMode.OFF)
    return [path for paths in rows.values_list("sandbox_write", flat=True) for path in paths]


def _list_install_folders(server: Server) -> tuple[str, ...]:
    """The folder of the package that its command starts; what else of this site's data it names
    stays shut."""
    named = find_install_ids(server.command)
    rows = Install.objects.filter(uid__in=named, state=InstallState.INSTALLED) if named else ()
    return tuple(row.folder for row in rows if row.is_started_by(server.command))


def _resolve_places(
    paths: tuple[str, ...], writable: tuple[str, ...], private: tuple[str, ...]
) -> tuple[str, ...]:
    """Without links, and without what only a link that a server may have made leads to; checked as
    they are given on."""
    found = dict.fromkeys(resolve_path(path, writable) for path in paths)
    return tuple(check_paths([place for place in found if place], private))


def is_narrower(server: Server, before: Server) -> bool:
    """Whether its sandbox lets it touch nothing more than that of ``before``: as written, and as
    links lead now."""
    policy = server.sandbox_policy()
    old = before.sandbox_policy()
    return policy.is_within(old) and _resolve_policy_links(policy).is_within(
        _resolve_policy_links(old)
    )


def _resolve_policy_links(policy: SandboxPolicy) -> SandboxPolicy:
    read, write = (tuple(map(os.path.realpath, paths)) for paths in (policy.read, policy.write))
    return replace(policy, read=read, write=write)


def find_server_protection(server: Server) -> Protection | None:
    """What is enforced of a local server on the machine of this process; None for a remote one."""
    if server.transport != Transport.STDIO:
        return None
    policy = server.sandbox_policy()
    return describe_protection(policy, _describe_machine(strict=policy.strict), server.bounds())


def find_local_protection(*, strict: bool = False) -> Protection:
    """What this machine can do for any local server whose sandbox is on, or strict; for
    ``doctor``."""
    return describe_protection(
        SandboxPolicy(enforced=True, strict=strict), _describe_machine(strict=strict)
    )


def _describe_machine(*, strict: bool) -> Machine:
    return Machine(
        confinement.get_landlock_version(),
        confinement.is_filter_supported(),
        bubblewrap.explain_missing() if strict else "",
    )


def list_hidden_from(server: Server) -> list[str]:
    """Files and folders that its command names, and that its sandbox hides from it; none if it has
    no sandbox."""
    is_local = server.transport == Transport.STDIO and bool(server.command)
    return list_unreadable_for(server) if is_local and server.sandbox_policy().enforced else []


def list_unreadable_for(server: Server) -> list[str]:
    """Files and folders that its command names, and that it could not read in its sandbox as its
    policy is now."""
    policy = server.sandbox_policy()
    try:
        programs = _list_needed_paths(server)
    except ConfigInvalid:  # told when the sandbox is switched on
        programs = []
    given = [*SYSTEM, *policy.read, *policy.write, *_list_install_folders(server), *programs]
    places = [*given, *map(os.path.realpath, given)]
    named = filter(None, (_find_named_path(server, word) for word in server.command[1:]))
    return [
        path
        for path in named
        if not any(PurePath(os.path.realpath(path)).is_relative_to(each) for each in places)
    ]


def _find_named_path(server: Server, word: str) -> str:
    """The existing path that a word of the command names; a relative one is in the working
    directory. Empty if it names none."""
    path = os.path.join(server.cwd, word)
    if "\0" in word or "/" not in word or not path.startswith("/"):
        return ""
    return path if os.path.exists(path) else ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a server that runs without its sandbox, should that be switched on."""

    unread: list[str]  # what its command names and it could not read
    test: str  # how its last one there ended; empty: none of what it is now has


def explain_sandbox_outlook(server: Server) -> Outlook | None:
    """For the server's page: what keeps its sandbox from being switched on; None where it is on, or
    there is none to it."""
    if (
        server.transport != Transport.STDIO
        or not server.command
        or server.sandbox_policy().enforced
    ):
        return None
    return Outlook(list_unreadable_for(server), _find_last_try(server))


def select_allowable(paths: Iterable[str]) -> list[str]:
    """Those of them that a policy may open for reading, in their plain spelling."""
    return [path for path in dict.fromkeys(map(os.path.normpath, paths)) if _is_allowable(path)]


def _is_allowable(path: str) -> bool:
    try:
        check_paths([path], _list_unreadable_paths())
        check_paths([os.path.realpath(path)], _list_unreadable_paths())
    except ConfigInvalid:
        return False
    return True


def list_unconfined_servers() -> list[str]:
    """Short names of local servers that run with the rights of this site."""
    rows = Server.objects.active().filter(transport=Transport.STDIO, sandbox=SandboxMode.OFF)
    return [*rows.values_list("slug", flat=True)]


def list_strict_servers() -> list[str]:
    """Short names of local servers that need namespaces of their own."""
    rows = Server.objects.active().filter(transport=Transport.STDIO, sandbox=SandboxMode.STRICT)
    return [*rows.values_list("slug", flat=True)]


def has_passed_sandbox_test(server: Server) -> bool:
    """Whether its last test in the sandbox passed, and nothing of its launch has changed since."""
    return _find_last_try(server) == ServerTest.Verdict.PASSED


def _find_last_try(server: Server) -> str:
    test = server.tests.filter(in_sandbox=True).first()
    return test.verdict if test is not None and test.server_revision == server.revision else ""
