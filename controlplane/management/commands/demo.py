"""``manage.py demo``: two real servers, an agent and a token on an empty site."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.first_run import demo


class Command(BaseCommand):
    """Sets up what a first ``up`` does, later and by itself."""

    help = "Adds two servers, an agent and a token to an empty site. Requires a running worker (`manage.py up`)."

    def handle(self, *args: Any, **options: Any) -> None:
        made = demo(self.stdout.write)
        if made is not None:
            self.stdout.write(f'Bearer token of the agent "local", shown only once:  {made.token}')
