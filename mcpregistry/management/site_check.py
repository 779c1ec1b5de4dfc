"""Whether there is a site where a command was told that there is one."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.management.base import CommandError


def must_be_a_site() -> None:
    """For commands that hosts and people start from anywhere. Raises CommandError: SQLite would
    make an empty file of whatever name it is given."""
    name = str(settings.DATABASES["default"]["NAME"])
    embedded = settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
    if embedded and name.startswith("/") and not os.path.exists(name):
        raise CommandError(
            f"There is no site in {settings.VAR_DIR}: {name} does not exist. Start the site once with `manage.py up`, or set "
            "SLIPSNISSE_VAR to the folder of a site. To correct the entries in the files of hosts, run `manage.py connect --repair`."
        )
