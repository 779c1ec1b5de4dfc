"""Uses of permits in the life of one process: taken for a call before people are asked, given back
when nothing ran."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from django.db import Error

from mcpregistry.calls.approvals.background_writes import BackgroundWrites
from mcpregistry.calls.call import Call
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.db import db_call
from mcpregistry.domain.policy.decision import DEFAULT_TERMS
from mcpregistry.models import Permit
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import Used


class PermitUses:
    """Those of one process; one per engine."""

    def __init__(self, live: LiveConfiguration, kept: BackgroundWrites) -> None:
        self._live = live
        self._kept = kept

    async def take_use(self, call: Call) -> Used | None:
        """The permit that covers the call, one use of it taken; None: people are to be asked.

        A caller that comes back for what was decided gets that, though a permit was given with it.
        """
        offer = call.entry.offer
        agent = call.request.catalogue.agent
        if not self._live.current.permits.get((agent.id, offer.tool.id)):
            return None
        using = asyncio.ensure_future(db_call(_find_and_use_permit, call, datetime.now(UTC)))
        try:
            return await asyncio.shield(using)
        except (asyncio.CancelledError, Error):  # the use may be taken all the same
            self._kept.start_write(lambda: _return_uncertain_use(using, call))
            raise

    def give_back(self, call: Call) -> None:
        """The call did not run: the use that it has taken is for another one. Does not wait."""
        self._kept.start_write(lambda: db_call(_return_use, call))


async def _return_uncertain_use(using: asyncio.Future[Used | None], call: Call) -> None:
    await asyncio.wait({using})
    using.exception()  # whatever it was
    await db_call(_return_use, call)


def _return_use(call: Call) -> None:
    """Whichever permit it was: only the log is sure to know, for the answer may have been lost on
    the way."""
    agent = call.request.catalogue.agent
    tool = call.entry.offer.tool
    for permit_id in Permit.objects.filter(agent_id=agent.id, tool_id=tool.id).values_list(
        "pk", flat=True
    ):
        permits.give_back(permit_id=permit_id, call_id=call.id, agent_slug=agent.slug)


def _find_and_use_permit(call: Call, now: datetime) -> Used | None:
    offer = call.entry.offer
    agent = call.request.catalogue.agent
    terms = call.decision.terms or DEFAULT_TERMS
    found = permits.find_covering_permits(
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
    if found and held_calls.is_caller_expected(binding=call.binding, now=now):
        return None
    return permits.use_permit(call_id=call.id, permits=found, agent_slug=agent.slug, now=now)
