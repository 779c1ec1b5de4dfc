"""What ``manage.py check`` says of this part's settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from subagents.domain.maintenance import Kind


@register("slipsnisse")
def kinds_of_work_are_known(**_: Any) -> list[CheckMessage]:
    """A worker that is told to do what nobody knows would do nothing, and say nothing."""
    unknown = sorted({*settings.MAINTENANCE_KINDS} - {*Kind})
    if not unknown:
        return []
    problem = (
        f"SLIPSNISSE_MAINTENANCE contains unknown types of requests: {', '.join(unknown)[:200]}."
    )
    return [
        Error(
            problem,
            hint=f"Use one or more of {', '.join(Kind)}, separated by commas. To allow all types, unset SLIPSNISSE_MAINTENANCE.",
            id="slipsnisse.E020",
        )
    ]
