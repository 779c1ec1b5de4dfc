"""``manage.py rekey``: seal all secrets with the newest key."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand

from mcpregistry.domain.text.display import number_of
from mcpregistry.services.upkeep.resealing import count_key_uses, reseal_all


class Command(BaseCommand):
    """Seals what older keys have sealed; says which keys are still needed. Exit code 1 if a secret
    does not open."""

    help = (
        "Encrypts every secret again with the newest key of SLIPSNISSE_KEYS (or var/keys.json), while the site runs. "
        "If the command is interrupted, run it again to continue. Exit code 1 if a secret cannot be decrypted."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        done, closed = reseal_all(actor=f"shell:{getpass.getuser()}", say=self.stderr.write)
        for problem in closed:
            self.stderr.write(problem)
        used = (
            ", ".join(f"{key}: {count:,}" for key, count in sorted(count_key_uses().items()))
            or "none"
        )
        self.stdout.write(
            f"{number_of(done, 'secret was', 'secrets were')} encrypted again. Number of secrets for each key: {used}."
        )
        if closed:
            raise SystemExit(1)
