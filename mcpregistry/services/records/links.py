"""Resources that results have linked to: who may read them for a while though no list has them.

Kept with the answers for callers that repeat a request, whose life is as long (``KEPT_FOR``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from django.utils import timezone

from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import KeptAnswer
from mcpregistry.services.records.idempotency import KEPT_FOR

MOST = 1_000  # of one agent on one endpoint; of more the newest are kept


def expose_links(*, agent: str, endpoint: str, server: str, tool: str, uris: Iterable[str]) -> None:
    """A result of ``tool`` (its key) linked to these: the agent may read them there from now on."""
    now = timezone.now()
    caller = _make_caller_key(agent, endpoint)
    body = json.dumps({"server": server, "tool": tool})
    rows = [
        KeptAnswer(
            caller=caller,
            key=hash_parts(server, uri),
            fingerprint=hash_parts(uri),
            status=200,
            body=body,
            created_at=now,
        )
        for uri in uris
    ]
    KeptAnswer.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["caller", "key"],
        update_fields=["body", "created_at"],
    )
    mine = KeptAnswer.objects.filter(caller=caller)
    mine.filter(created_at__lt=now - KEPT_FOR).delete()
    if surplus := list(mine.order_by("-created_at", "-id").values_list("id", flat=True)[MOST:]):
        mine.filter(id__in=surplus).delete()


def find_linking_tools(*, agent: str, endpoint: str, uri: str) -> list[tuple[str, str]]:
    """The servers' slugs, and the keys of the tools, whose results have linked to it; one of each
    server."""
    live = KeptAnswer.objects.filter(created_at__gte=timezone.now() - KEPT_FOR)
    found = live.filter(
        caller=_make_caller_key(agent, endpoint), fingerprint=hash_parts(uri)
    ).values_list("body", flat=True)
    return sorted((said["server"], said["tool"]) for said in map(json.loads, found))


def _make_caller_key(agent: str, endpoint: str) -> str:
    return f"links:{hash_parts(agent, endpoint)}"
