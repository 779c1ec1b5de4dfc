#!/usr/bin/env python
"""Django's command line for this project."""

from __future__ import annotations

import gc
import os
import signal
import sys

# Commands about a site that is there. In another place they say so, and make neither keys nor a
# database.
_OF_A_SITE = {
    "audit",
    "backup",
    "confirmworkspace",
    "connect",
    "exportconfig",
    "history",
    "importconfig",
    "invariants",
    "mcprun",
    "mcptest",
    "modelprices",
    "moveto",
    "policy",
    "rekey",
    "secondfactor",
}
# with one of these they read no site
_ANYWHERE = {"-h", "--help", "--version", "--check", "--schema"}


def main() -> None:
    """Run one command; ``runmcp`` answers its host before Django is loaded."""
    os.umask(0o077)  # the database, keys and sockets under var/ are for this user alone
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    if sys.argv[1:2] == ["up"]:
        # Until it has children, a stop is simply an end; Python's own KeyboardInterrupt can be lost
        # while modules load.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    of_a_site = sys.argv[1:2] and sys.argv[1] in _OF_A_SITE and not _ANYWHERE & set(sys.argv)
    if of_a_site:
        os.environ.setdefault("SLIPSNISSE_PROCESS", "command")
    if sys.argv[1:2] == ["runmcp"]:
        _answer_the_host_first()
    else:  # a host's process does so itself, once it has answered
        _collect_seldom()
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import CommandError, execute_from_command_line

    try:
        if of_a_site:
            _must_be_a_site()
        execute_from_command_line(sys.argv)
    except (ImproperlyConfigured, CommandError) as error:
        # It says what to do; where in the code it was found helps nobody.
        sys.exit(f"CommandError: {error}")


def _must_be_a_site() -> None:
    from mcpregistry.management.site_check import must_be_a_site

    must_be_a_site()


def _collect_seldom() -> None:
    """Loading makes what stays, and `migrate` thousands of classes: to walk all of it again and
    again took a third of its time."""
    from mcpregistry.garbage_collection import THRESHOLDS

    gc.set_threshold(*THRESHOLDS)


def _answer_the_host_first() -> None:
    """A host waits about a second for `runmcp`: load only what answers it, and be at its pipe at
    once."""
    os.environ.setdefault("SLIPSNISSE_PROCESS", "runmcp")
    # structlog imports rich for tracebacks in colour, and greenlet for code that uses it: a third
    # of a second and 7 MB.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None means "not installed"
    sys.modules.setdefault("greenlet", None)  # type: ignore[arg-type]
    # What the SDK has for HTTP looks whether there is a web server, and loads it: 4 MB in each
    # host's process.
    sys.modules.setdefault("uvicorn", None)  # type: ignore[arg-type]
    if not {"-h", "--help"} & set(sys.argv):
        from pathlib import Path

        from controlplane import env
        from mcpregistry.gateway.stdio.preload import claim_pipe

        claim_pipe(Path(__file__).parent / (env.text("SLIPSNISSE_VAR") or "var"), sys.argv[2:])


if __name__ == "__main__":
    main()
