"""Whether this machine can give a server namespaces of its own (bubblewrap), found out by doing
it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.domain.text.canonical import clean_text

PROGRAM = "bwrap"
TRIED_SECONDS = 5.0
KEPT_SECONDS = 60.0
REMEDY = (
    "Install bubblewrap (apt install bubblewrap) in version 0.10 or newer, or in an older version that has the option --ro-bind-fd. Also "
    "allow this site's user to create user namespaces. Or set “Sandbox” to “Enforced” on the page of the server."
)
_TRIAL = [
    "--unshare-user-try",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-net",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--remount-ro",
    "/dev",
    "/bin/sh",
    "-c",
    ":",
]
_answer: tuple[float, str] | None = None


def find_bubblewrap() -> str | None:
    """Its file, by this site's PATH; None where it is not installed."""
    found = shutil.which(PROGRAM)
    return os.path.realpath(found) if found else None


def explain_missing() -> str:
    """Why servers have no namespaces of their own here; empty where they can. Up to some seconds,
    the first time."""
    global _answer  # noqa: PLW0603  what a machine can do, asked at every start of a server
    now = time.monotonic()
    if _answer is None or now - _answer[0] > KEPT_SECONDS:
        _answer = now, _try_namespaces()
    return _answer[1]


def check() -> None:
    """Raises ConnectionFailed (nothing sent) where a server that is to have namespaces cannot have
    them."""
    if why := explain_missing():
        raise ConnectionFailed(
            f"The server cannot be started in its own namespaces: {why}.", remedy=REMEDY
        )


def _try_namespaces() -> str:
    file = find_bubblewrap()
    if file is None:
        return "bubblewrap is not installed"
    place = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        ended = subprocess.run(  # noqa: S603  the system's own program, with words of ours
            [file, "--ro-bind-fd", str(place), "/", *_TRIAL],
            pass_fds=[place],
            stdin=subprocess.DEVNULL,
            env={},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIED_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run ({clean_text(str(error), 200)})"
    finally:
        os.close(place)
    said = clean_text(
        (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1], 200
    )
    return (
        f"bubblewrap cannot create namespaces on this machine ({said})" if ended.returncode else ""
    )
