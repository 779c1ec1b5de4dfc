"""Where a provider's key and its requests go, and the fingerprint of exactly that: what people
confirm.

A provider is like a server: whoever changes its destination enters its key again, or somebody who
may confirm launches confirms it. Pure: values in, values out. The migration that brought it uses it
too, so what it makes of values stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from subagents.domain.model_options import OptionProblem


def fingerprint(
    kind: str,
    base_url: str,
    networks: Sequence[str],
    headers: Mapping[str, str],
    options: Mapping[str, Any],
) -> str:
    """SHA-256 over everything that says where requests go, the values of headers included (they
    never leave)."""
    whole = [kind, base_url, list(networks), dict(headers), dict(options)]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()


def proves_the_key(key: str | None, headers: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether a save shows that whoever saves has every secret that would be sent: all of them were
    entered now.

    ``key``: what was entered, None for nothing; ``before``: the headers that were stored. A
    reference (``${…}``) can be written by people who do not know what it stands for, and so can a
    header that is left as it was.
    """
    kept = set(before.values()) & set(headers.values())
    return bool(key) and not kept and not _refers([key or "", *headers.values()])


def _refers(texts: Iterable[str]) -> bool:
    return any("${" in text for text in texts)


def describe_unconfirmed(slug: str) -> OptionProblem:
    """Why nothing is sent to a provider whose destination nobody has confirmed."""
    return OptionProblem(
        f'The provider "{slug}" is a draft: the destination of its key and its requests is not confirmed.',
        "Enter the key of the provider again. Or ask a user with the permission to confirm launches to press “Confirm provider” on the page of the provider.",
    )
