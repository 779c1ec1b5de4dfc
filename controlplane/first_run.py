"""What happens once, on a site that nobody has used yet, and what `up` then tells its owner.

``create_admin`` runs before the site opens; ``fill`` once the worker runs, because it needs one.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connections

from mcpregistry.services.demo import ACTOR, DemoResult, set_up_demo
from subagents.services import demo as experts

log = structlog.get_logger(__name__)

ADMIN = "admin"


def create_admin() -> str | None:
    """The new administrator's password, or None when the site has one already. It is stored nowhere in clear."""
    users = get_user_model()._default_manager
    if users.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(15)
    users.create_superuser(ADMIN, "", password)
    return password


def fill(say: Callable[[str], None]) -> str | None:
    """Two real servers, tested by the worker and approved; returns the bearer token of the agent made for them.

    Waits for the worker; ``say`` shows one line of progress. A failure costs the demo, never the site.
    """
    try:
        result = demo(say)
    except Exception:
        log.exception("The demo could not be set up")
        say("the demo servers could not be set up; the site works without them")
        return None
    finally:
        connections.close_all()  # this thread's own
    return result.token if result else None


def demo(say: Callable[[str], None]) -> DemoResult | None:
    """The servers, and an expert tool over them. None, with nothing changed, unless the registry is empty."""
    result = set_up_demo(say=say)
    if result is not None and experts.set_up(actor=ACTOR) is not None:
        say(f"expert tool {experts.NAME}: ready (its model is scripted, no key needed)")
    return result


def next_steps(url: str, token: str | None) -> str:
    """The block that `up` prints when the site answers. ``token``: of the agent that was just made, else None."""
    endpoint = f"   claude mcp add --transport http slipsnisse-http {url}/mcp/default"
    lines = [
        "Three things to do next:",
        f"1. Look around in the admin:  {url}/admin/",
        "2. Let Claude Code use the gateway over stdio (other hosts: the same command after the two dashes):",
        f"   {stdio_command()}",
        f"3. Or over HTTP:  {url}/mcp/default",
    ]
    if token:
        lines += [f"   Bearer token, shown this once:  {token}", f'{endpoint} --header "Authorization: Bearer {token}"']
    else:
        lines += [f"   Make a token for an agent in the admin:  {url}/admin/mcpregistry/agent/"]
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
