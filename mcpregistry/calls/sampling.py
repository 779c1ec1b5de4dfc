"""A server's question to a model (``sampling/createMessage``), answered by a model of this site
where the operator says so.

Who answers is another app's (``Extension.make_sampler``): ``subagents`` starts a run of
the expert tool that the server names. Calls that people decided on get nothing added, here as
elsewhere; nor do tasks of servers, whose questions are their hosts'.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from mcpregistry.calls.call import Call
from mcpregistry.domain.calls.forwarding import Forwarding, HostUnansweredError
from mcpregistry.domain.policy.decision import RuleOutcome

SAMPLING = "sampling"
METHOD = "sampling/createMessage"
MOST = 10  # questions of one call: each is paid for

# of the call, its params; raises Unanswered
Sampler = Callable[[Call, Mapping[str, Any]], Awaitable[dict[str, Any]]]


def is_answered_here(call: Call) -> bool:
    """Whether a model of ours answers what the call's server asks of one."""
    server = call.entry.offer.server
    return (
        bool(server.sampling_expert)
        and SAMPLING in server.questions
        and call.decision.outcome is RuleOutcome.ALLOW
    )


class Sampling:
    """The questions of one call. ``forwarding``: what of its host goes to the server, with a model
    of ours in place of its own; ``left``: what the host itself may be asked then.
    """

    def __init__(self, call: Call, sampler: Sampler, hosts: Forwarding) -> None:
        self._call = call
        self._sampler = sampler
        self._hosts = hosts
        self._count = 0
        self.left = hosts.allow_questions(hosts.questions - {SAMPLING})
        self.forwarding = replace(
            hosts, capabilities={**hosts.capabilities, SAMPLING: {}}, ask=self._ask
        )

    async def answer_requests(self, result: Mapping[str, Any]) -> Forwarding | None:
        """What a modern server is called with again that asked for nothing but a model; None: it
        asked for something else, or for nothing. Raises Unanswered.
        """
        requests = (
            result.get("inputRequests") if result.get("resultType") == "input_required" else None
        )
        asked = requests if isinstance(requests, dict) else {}
        if not asked or not all(
            isinstance(each, dict) and each.get("method") == METHOD for each in asked.values()
        ):
            return None
        self._check_limit(len(asked))  # before the first is paid for
        answers = {key: await self._ask_model(_read_params(each)) for key, each in asked.items()}
        state = result.get("requestState")
        given = {"inputResponses": answers} | (
            {"requestState": state} if isinstance(state, str) else {}
        )
        return replace(self.forwarding, answers=given)

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == METHOD:
            return await self._ask_model(params)
        if self._hosts.ask is None:
            raise HostUnansweredError("The host that made this call cannot answer this request.")
        return await self._hosts.ask(method, params)

    async def _ask_model(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._check_limit(1)
        self._count += 1
        return await self._sampler(self._call, params)

    def _check_limit(self, more: int) -> None:
        if self._count + more > MOST:
            raise HostUnansweredError(
                f"A call can send at most {MOST} sampling requests to this site."
            )


def _read_params(request: Mapping[str, Any]) -> Mapping[str, Any]:
    params = request.get("params")
    return params if isinstance(params, dict) else {}
