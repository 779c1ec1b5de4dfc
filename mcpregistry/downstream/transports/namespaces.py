"""The command that starts a stdio server in namespaces of its own, by bubblewrap; ``launcher.py``
becomes it.

Standard library only, as ``confinement.py``, on which it rests.

* The server sees the places that its policy names, at their own paths, and no others: no files,
  processes, shared memory of others, and no network unless it has one. Nothing but its own places
  can be written; ``/tmp`` and ``/dev/shm`` are its own too, small, in memory, and gone with it.
* Places are handed over open, and have been opened without following a link: none can become
  another in between.
* Its environment and the places go by descriptors: nobody reads them in ``/proc``, and bubblewrap
  does not obey them.
"""

import os

import confinement  # type: ignore[import-not-found]

ALWAYS = [
    "--unshare-user-try",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--clearenv",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--size",
    "268435456",
    "--tmpfs",
    "/dev/shm",  # noqa: S108 -- in the sandbox
    "--size",
    "268435456",
    "--tmpfs",
    "/tmp",  # noqa: S108
]
OWN = ("/proc", "/dev")  # its own, made by bubblewrap
MOST_COPIED = 131_072  # bytes


def command(policy: str, program: str, argv: list[str], env: dict[bytes, bytes]) -> list[str]:
    """The words to execute, with an empty environment, in the process that calls this; it is
    confined afterwards.

    ``policy``: as for ``confinement.apply``; its line ``x`` names bubblewrap, lines ``s`` hold a
    link and what it says, by a tab, and lines ``e`` what may be read as it is at the start. Raises
    OSError.
    """
    lines = policy.split("\n")
    words = [
        os.fsencode(each) for each in [*ALWAYS, *_network(lines), *_places(lines), *_links(lines)]
    ]
    for name, value in env.items():
        words += [b"--setenv", name, value]
    seen = _seen(lines)
    here = os.getcwd()
    words += [] if _within(here, seen, _below(seen)) else [b"--dir", os.fsencode(here)]
    # /proc as well: what lies there belongs to root, and of a site that runs as root the server is
    # it.
    words += [word for place in (b"/proc", b"/dev", b"/") for word in (b"--remount-ro", place)]
    words += [b"--chdir", os.fsencode(here)]
    if confinement.filtered():
        words += [b"--seccomp", b"%d" % _held(confinement.compiled(policy))]
    bubblewrap = next(line[1:] for line in lines if line[:1] == "x")
    given = _held(b"\0".join(words) + b"\0")
    confinement.apply(policy)
    return [bubblewrap, "--args", str(given), "--", program, *argv[1:]]


def _network(lines: list[str]) -> list[str]:
    return [] if "n" in lines or "t" in lines else ["--unshare-net"]


def _places(lines: list[str]) -> list[str]:
    """Each mounted where it lies, what holds others first; what may be written stays so in what may
    be read."""
    writable = [line[1:] for line in lines if line[:1] == "w"]
    written = _below(writable)
    own = _below(OWN)
    read = [
        line[1:]
        for line in lines
        if line[:1] in ("r", "e") and not _within(line[1:], writable, written)
    ]
    readable = _below(read)
    kinds = {path: "--ro-bind-fd" for path in read if path == "/" or not path.startswith(readable)}
    kinds |= {path: "--bind-fd" for path in writable if path == "/" or not path.startswith(written)}
    copied = {line[1:] for line in lines if line[:1] == "e"}
    libc = confinement.loaded_libc()
    words = []
    for path in sorted(path for path in kinds if not _within(path, OWN, own)):
        if (place := confinement.opened(path, libc)) is not None:
            words += (_copy(place, path) if path in copied else []) or _given(
                kinds[path], place, path
            )
    return words


def _given(word: str, place: int, path: str) -> list[str]:
    os.set_inheritable(place, True)
    return [word, str(place), path]


def _copy(place: int, path: str) -> list[str]:
    """A small file as it is now: twenty mounts less, each of which makes bubblewrap read the list
    of all. Else nothing."""
    there = os.stat(place)
    if there.st_mode & 0o170000 != 0o100000 or there.st_size > MOST_COPIED:
        return []
    try:
        held = os.open(f"/proc/self/fd/{place}", os.O_RDONLY)
    except OSError:  # the server could not read it either
        return []
    return ["--perms", "0444", *_given("--file", held, path)]


def _seen(lines: list[str]) -> list[str]:
    return [line[1:] for line in lines if line[:1] in ("r", "e", "w")]


def _links(lines: list[str]) -> list[str]:
    """The links that lie in none of its places, as the root's ``/bin``; they open nothing."""
    seen = [*OWN, *_seen(lines)]
    below = _below(seen)
    words: list[str] = []
    for link, says in (line[1:].split("\t") for line in lines if line[:1] == "s"):
        words += [] if _within(link, seen, below) else ["--symlink", says, link]
    return words


def _held(data: bytes) -> int:
    """A descriptor to read this from, which the next program inherits."""
    held = os.memfd_create("slipsnisse", 0)
    os.write(held, data)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def _within(path: str, places: list[str] | tuple[str, ...], below: tuple[str, ...]) -> bool:
    return path in places or path.startswith(below)


def _below(places: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """How everything begins that lies in one of them; what is asked of each place about all others
    has to be cheap."""
    return tuple(f"{place.rstrip('/')}/" for place in places)
