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


def build_bwrap_command(
    policy: str, program: str, argv: list[str], env: dict[bytes, bytes]
) -> list[str]:
    """The words to execute, with an empty environment, in the process that calls this; it is
    confined afterwards.

    ``policy``: as for ``confinement.apply``; its line ``x`` names bubblewrap, lines ``s`` hold a
    link and what it says, by a tab, and lines ``e`` what may be read as it is at the start. Raises
    OSError.
    """
    lines = policy.split("\n")
    words = [
        os.fsencode(each)
        for each in [
            *ALWAYS,
            *_build_network_words(lines),
            *_build_place_words(lines),
            *_build_link_words(lines),
        ]
    ]
    for name, value in env.items():
        words += [b"--setenv", name, value]
    seen = _list_seen_places(lines)
    here = os.getcwd()
    words += [] if _is_within(here, seen, _make_prefixes(seen)) else [b"--dir", os.fsencode(here)]
    # /proc as well: what lies there belongs to root, and of a site that runs as root the server is
    # it.
    words += [word for place in (b"/proc", b"/dev", b"/") for word in (b"--remount-ro", place)]
    words += [b"--chdir", os.fsencode(here)]
    if confinement.is_filter_supported():
        words += [b"--seccomp", b"%d" % _make_inherited_file(confinement.compile_filter(policy))]
    bubblewrap = next(line[1:] for line in lines if line[:1] == "x")
    given = _make_inherited_file(b"\0".join(words) + b"\0")
    confinement.apply(policy)
    return [bubblewrap, "--args", str(given), "--", program, *argv[1:]]


def _build_network_words(lines: list[str]) -> list[str]:
    return [] if "n" in lines or "t" in lines else ["--unshare-net"]


def _build_place_words(lines: list[str]) -> list[str]:
    """Each mounted where it lies, what holds others first; what may be written stays so in what may
    be read."""
    writable = [line[1:] for line in lines if line[:1] == "w"]
    written = _make_prefixes(writable)
    own = _make_prefixes(OWN)
    read = [
        line[1:]
        for line in lines
        if line[:1] in ("r", "e") and not _is_within(line[1:], writable, written)
    ]
    readable = _make_prefixes(read)
    kinds = {path: "--ro-bind-fd" for path in read if path == "/" or not path.startswith(readable)}
    kinds |= {path: "--bind-fd" for path in writable if path == "/" or not path.startswith(written)}
    copied = {line[1:] for line in lines if line[:1] == "e"}
    libc = confinement.load_libc()
    words = []
    for path in sorted(path for path in kinds if not _is_within(path, OWN, own)):
        if (place := confinement.open_place(path, libc)) is not None:
            words += (_copy(place, path) if path in copied else []) or _hand_over_place(
                kinds[path], place, path
            )
    return words


def _hand_over_place(word: str, place: int, path: str) -> list[str]:
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
    return ["--perms", "0444", *_hand_over_place("--file", held, path)]


def _list_seen_places(lines: list[str]) -> list[str]:
    return [line[1:] for line in lines if line[:1] in ("r", "e", "w")]


def _build_link_words(lines: list[str]) -> list[str]:
    """The links that lie in none of its places, as the root's ``/bin``; they open nothing."""
    seen = [*OWN, *_list_seen_places(lines)]
    below = _make_prefixes(seen)
    words: list[str] = []
    for link, says in (line[1:].split("\t") for line in lines if line[:1] == "s"):
        words += [] if _is_within(link, seen, below) else ["--symlink", says, link]
    return words


def _make_inherited_file(data: bytes) -> int:
    """A descriptor to read this from, which the next program inherits."""
    held = os.memfd_create("slipsnisse", 0)
    os.write(held, data)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def _is_within(path: str, places: list[str] | tuple[str, ...], below: tuple[str, ...]) -> bool:
    return path in places or path.startswith(below)


def _make_prefixes(places: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """How everything begins that lies in one of them; what is asked of each place about all others
    has to be cheap."""
    return tuple(f"{place.rstrip('/')}/" for place in places)
