"""``populate``'s site without its half second."""

from __future__ import annotations

from django.conf import settings

from tests.fakes.remembered import remembered
from tests.fakes.seed import Site, populate


def populated(*, calls: int) -> Site:
    """As ``populate``."""
    return remembered(
        ("populate", calls, settings.PASSWORD_HASHERS[0]), lambda: populate(calls=calls)
    )
