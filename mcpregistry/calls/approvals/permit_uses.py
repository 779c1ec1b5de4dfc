"""Uses of permits in the life of one process: taken for a call before people are asked, given back
when nothing ran."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from django.db import Error

from mcpregistry.calls.approvals.kept import Kept
from mcpregistry.calls.call import Call
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.db import db_call
from mcpregistry.domain.policy.decision import DEFAULT_TERMS
from mcpregistry.models import Permit
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import Used


class PermitUses:
    """See the module. What the pipeline needs of it is described there (``Permits``)."""

    def __init__(self, live: LiveConfiguration, kept: Kept) -> None:
        self._live = live
        self._kept = kept

    async def taken(self, call: Call) -> Used | None:
        """The permit that covers the call, one use of it taken; None: people are to be asked.

        A caller that comes back for what was decided gets that, though a permit was given with it.
        """
        offer = call.entry.offer
        agent = call.request.catalogue.agent
        if not self._live.current.permits.get((agent.id, offer.tool.id)):
            return None
        using = asyncio.ensure_future(db_call(_permitted, call, datetime.now(UTC)))
        try:
            return await asyncio.shield(using)
        except (asyncio.CancelledError, Error):  # the use may be taken all the same
            self._kept.soon(lambda: _unused(using, call))
            raise

    def give_back(self, call: Call) -> None:
        """The call did not run: the use that it has taken is for another one. Does not wait."""
        self._kept.soon(lambda: db_call(_returned, call))


async def _unused(using: asyncio.Future[Used | None], call: Call) -> None:
    await asyncio.wait({using})
    using.exception()  # whatever it was
    await db_call(_returned, call)


def _returned(call: Call) -> None:
    """Whichever permit it was: only the log is sure to know, for the answer may have been lost on
    the way."""
    agent = call.request.catalogue.agent
    tool = call.entry.offer.tool
    for permit_id in Permit.objects.filter(agent_id=agent.id, tool_id=tool.id).values_list(
        "pk", flat=True
    ):
        permits.give_back(permit_id=permit_id, call_id=call.id, agent_slug=agent.slug)


def _permitted(call: Call, now: datetime) -> Used | None:
    offer = call.entry.offer
    agent = call.request.catalogue.agent
    terms = call.decision.terms or DEFAULT_TERMS
    found = permits.covering(
        agent_slug=agent.slug,
        tool_id=offer.tool.id,
        definition_hash=offer.tool.definition_hash,
        server_revision=offer.server.revision,
        arguments=call.request.arguments,
        fingerprint=terms.fingerprint,
        now=now,
        requester=call.request.requester.id,
        conversation=call.request.conversation,
    )
    if found and held_calls.expected(binding=call.binding, now=now):
        return None
    return permits.use(call_id=call.id, permits=found, agent_slug=agent.slug, now=now)
