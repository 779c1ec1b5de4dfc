"""The person behind a call, where one is known: nobody approves what they asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asked. ``id`` is the account's key, which is what decisions go by; ``name`` outlives the
    account."""

    id: int | None = None
    name: str = ""


NOBODY = Requester()  # an agent's own token, or a host on stdio: no person is known
