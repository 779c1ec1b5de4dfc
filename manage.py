#!/usr/bin/env python
"""Django's command line for this project."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.umask(0o077)  # the database, keys and sockets under var/ are for this user alone
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    # A host waits about a second for `runmcp`: it loads only the apps that answer it (see settings).
    if sys.argv[1:2] == ["runmcp"]:
        os.environ.setdefault("SLIPSNISSE_PROCESS", "runmcp")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
