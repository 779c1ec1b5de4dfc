"""What happens once, on a site that nobody has used yet, and what `up` then tells its owner.

``create_admin`` runs before the site opens; ``fill`` once the worker runs, because it needs one.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections, transaction

from mcpregistry.domain import error_texts
from mcpregistry.services.demo import ACTOR, DemoResult, set_up_demo
from subagents.services import demo as experts

log = structlog.get_logger(__name__)

ADMIN = "admin"


class NoAdministrator(RuntimeError):
    """There is no administrator of the name that this module knows; the text says what to do."""


class Unshown:
    """What a first start makes and has not yet shown to anybody: the password, and the demo with
    its token.

    Kept in ``var/first-run``, one word a line, written before they are made. So a start that was
    stopped, in whatever moment, is followed by one that makes them anew (``up`` is the only user).
    """

    def __init__(self, var: Path) -> None:
        self._path = var / "first-run"

    @property
    def password(self) -> bool:
        return "password" in self._words()

    @property
    def demo(self) -> bool:
        return "demo" in self._words()

    def begin(self) -> None:
        """Nobody has used this site: whatever is made from now on is unshown."""
        self._write({"password", "demo"})

    def mark_shown(self, *, demo: bool) -> None:
        """The password was printed; ``demo``: so was the end of the demo. Without it the next start
        tries again."""
        self._write(self._words() - {"password"} - ({"demo"} if demo else set()))

    def _words(self) -> set[str]:
        return set(self._path.read_text().split()) if self._path.exists() else set()

    def _write(self, words: set[str]) -> None:
        """All or nothing: a reader sees the old words or the new ones."""
        if not words:
            self._path.unlink(missing_ok=True)
            return
        draft = self._path.with_suffix(".new")
        draft.write_text("\n".join(sorted(words)))
        draft.replace(self._path)


@dataclass(frozen=True, slots=True)
class Filled:
    """The demo is finished. ``token``: of the agent "local", to be shown once; None where nothing
    was added."""

    token: str | None


def create_admin(unshown: Unshown) -> str | None:
    """The password of a new administrator, or a new one where the first was shown to nobody; else
    None.

    It is stored nowhere in clear.
    """
    if not User.objects.filter(is_superuser=True).exists():
        unshown.begin()
        password = secrets.token_urlsafe(15)
        User.objects.create_superuser(ADMIN, "", password)
        return password
    # Who has signed in knows the password: it was set with `changepassword` since.
    never_used = User.objects.filter(username=ADMIN, last_login=None).exists()
    return reset_password() if unshown.password and never_used else None


def reset_password() -> str:
    """Give the administrator a new password and return it. Raises NoAdministrator when there is
    none of that name."""
    admin = User.objects.filter(username=ADMIN, is_superuser=True).first()
    if admin is None:
        others = ", ".join(
            User.objects.filter(is_superuser=True).values_list("username", flat=True)
        )
        raise NoAdministrator(
            f"{error_texts.say_not_found('administrator', ADMIN)} Administrators: {others}. "
            "Set a new password for one of them with `manage.py changepassword NAME`."
        )
    password = secrets.token_urlsafe(15)
    admin.set_password(password)
    with transaction.atomic():  # with the end of the tokens
        admin.save(update_fields=["password"])
    return password


def fill(say: Callable[[str], None]) -> Filled | None:
    """Finish the demo: two real servers, tested by the worker and approved, and an agent with a
    token.

    Waits for the worker; ``say`` shows one line of progress. None after a failure, which costs the
    demo, never the site: it is logged, and the next start tries again.
    """
    try:
        made = demo(say, resume=True)
    except Exception:
        log.exception("The demo could not be set up")
        say(
            "the demo servers could not be set up; the site works without them, and the next start of the site will set them up again"
        )
        return None
    finally:
        connections.close_all()  # this thread's own
    return Filled(made.token if made else None)


def demo(say: Callable[[str], None], *, resume: bool = False) -> DemoResult | None:
    """Set up the demo servers, and an expert tool over them; `up` and ``manage.py demo`` call it.

    None, with nothing changed, unless the registry is empty. ``say`` is given one line of progress
    at a time. ``resume``: go on with what an interrupted start has left, whatever is there already.
    """
    result = set_up_demo(say=say, resume=resume)
    if result is not None and experts.set_up(actor=ACTOR) is not None:
        say(f"expert tool {experts.NAME}: ready (its model follows a script and needs no key)")
    return result


def next_steps(url: str, token: str | None) -> str:
    """The block that `up` prints when the site answers. ``token``: of the agent that was just made,
    else None."""
    endpoint = f"   claude mcp add --transport http slipsnisse-http {url}/mcp/default"
    lines = [
        "Three things to do next:",
        f"1. Open the admin:  {url}/admin/",
        "2. Connect Claude Code over stdio (other hosts use the command after the two dashes):",
        f"   {stdio_command()}",
        f"3. Or connect over HTTP:  {url}/mcp/default",
    ]
    if token:
        lines += [
            f"   Bearer token, shown only once:  {token}",
            f'{endpoint} --header "Authorization: Bearer {token}"',
        ]
    else:
        lines += [f"   Create a token for an agent in the admin:  {url}/admin/mcpregistry/agent/"]
    return "\n".join(lines)


def stdio_command() -> str:
    """The exact line for Claude Code; a host starts it from anywhere, hence absolute paths."""
    program = [
        sys.executable,
        str(settings.BASE_DIR / "manage.py"),
        "runmcp",
        "--endpoint",
        "default",
        "--agent",
        "local",
    ]
    elsewhere = [] if _default_folder() else ["-e", f"SLIPSNISSE_VAR={settings.VAR_DIR}"]
    return shlex.join(["claude", "mcp", "add", "slipsnisse", *elsewhere, "--", *program])


def _default_folder() -> bool:
    return "SLIPSNISSE_VAR" not in os.environ or Path(settings.VAR_DIR) == settings.BASE_DIR / "var"
