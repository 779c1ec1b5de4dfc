"""A process of its own that makes one call which people are asked about, or votes on it: for tests
that kill it."""

from __future__ import annotations

import asyncio
import sys

import django

django.setup()


async def call() -> None:
    from mcpregistry.calls.call import CallRequest
    from mcpregistry.calls.engine import Engine

    engine = Engine("web")
    await engine.start()
    outcome = await engine.call(
        CallRequest(engine.get_catalogue("default", "ann"), "echo__echo", {"n": 1}, "http")
    )
    print(outcome.state, flush=True)
    await engine.stop()


def vote() -> None:
    from django.contrib.auth.models import User

    from mcpregistry.models import ApprovalRequest
    from mcpregistry.services.approvals import votes

    request = ApprovalRequest.objects.get()
    votes.vote(request_id=request.pk, user=User.objects.get(), approve=True, via="web")


if __name__ == "__main__":
    if sys.argv[1] == "call":
        asyncio.run(call())
    else:
        vote()
