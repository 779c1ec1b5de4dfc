"""Suggestions for an argument that is being typed (``completion/complete``): asked of the server,
governed as its call is.

A call's stages, lighter: rate, resolve, authorise, decide. Nothing is recorded: hosts ask at every
key that is pressed, the answer is what a server suggests and no content, and three durable rows per
key would bury the calls. Nor are people asked: where they would be asked about the call, there are
no suggestions, and the server hears nothing of what is typed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import METHOD_NOT_FOUND

from mcpregistry.calls.catalog import Catalogue, CatalogueEntry
from mcpregistry.calls.rates import CallRates
from mcpregistry.calls.stages import make_unlisted_remedy
from mcpregistry.domain.errors import ArgumentsInvalid, Denied, NotFound, ToolRefused
from mcpregistry.domain.offer_kinds import (
    COMPLETIONS,
    LONGEST_URI,
    PROMPT,
    TEMPLATE,
    expand_known_prefix,
    list_template_variables,
)
from mcpregistry.domain.policy.access import find_implied_arguments, may_begin, may_call
from mcpregistry.domain.policy.decision import CallPolicy, PolicyQuestion, RuleOutcome, decide
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall

MOST = 100  # values, as MCP has it
SECONDS = 10.0
_LONGEST = 2_000  # characters of a value
NOTHING: Mapping[str, Any] = {"values": [], "hasMore": False}


@dataclass(frozen=True, slots=True)
class TypedArgument:
    """An argument of the prompt or template (``kind``) that hosts know as ``name``, as far as it is
    typed.

    ``known``: the values of others; ``host`` names the program that asks.
    """

    kind: str
    name: str
    argument: str
    value: str
    known: Mapping[str, str]
    host: str = ""
    origin: str = ""


class ArgumentCompletions:
    """Asks servers for suggestions; one per engine."""

    def __init__(self, pool: Pool, rates: CallRates, policy: CallPolicy) -> None:
        self._pool = pool
        self._rates = rates
        self._policy = policy

    async def __call__(self, catalogue: Catalogue, typed: TypedArgument) -> dict[str, Any]:
        """MCP's ``completion`` object. Raises NotFound, ArgumentsInvalid, Denied, RateLimited, or
        DownstreamError."""
        await self._rates.take(catalogue.agent)
        entry = _resolve_entry(catalogue, typed)
        arguments = _check_argument_names(entry, typed)
        known = {
            name: value
            for name, value in typed.known.items()
            if name in arguments and name != typed.argument
        }
        outcome = self._decide_typed_call(catalogue, entry, typed, known)
        if outcome is RuleOutcome.DENY:
            raise Denied(
                f"There are no suggestions for '{clean_text(typed.name, 200)}': the agent is not allowed to use it with these arguments.",
                remedy="Use other arguments.",
            )
        more = self._find_pinned_arguments(catalogue, entry, typed, known)
        if (
            outcome is RuleOutcome.ASK
            or more is None
            or COMPLETIONS not in entry.offer.server.features
        ):
            return dict(NOTHING)
        known = known | more
        said, total, more = await self._ask_server(entry, typed, known)
        found = [
            each for each in said if self._is_suggestible(catalogue, entry, typed, known, each)
        ]
        return _limit_suggestions(found, total, more, whole=len(found) == len(said))

    def _decide_typed_call(
        self,
        catalogue: Catalogue,
        entry: CatalogueEntry,
        typed: TypedArgument,
        known: Mapping[str, str],
    ) -> RuleOutcome:
        """What becomes of a call with what is typed so far. It is no whole value yet, so no grant
        is asked about it."""
        begun, _ = _build_arguments(entry, known)
        if not may_begin(catalogue.agent, catalogue.endpoint, entry.offer.tool, begun, time.time()):
            return RuleOutcome.DENY
        return self._decide_outcome(
            catalogue,
            entry,
            typed,
            _build_arguments(entry, {**known, typed.argument: typed.value})[0],
        )

    @staticmethod
    def _find_pinned_arguments(
        catalogue: Catalogue, entry: CatalogueEntry, typed: TypedArgument, known: Mapping[str, str]
    ) -> dict[str, str] | None:
        """Arguments that grants pin and nobody has given: the server suggests for what may be
        called, not for everything. None where that cannot be told, or not be sent.
        """
        if entry.offer.tool.kind == TEMPLATE:
            return {}  # its grants are about the URI, to which each suggestion is held
        agent = catalogue.agent
        endpoint = catalogue.endpoint
        tool = entry.offer.tool
        left = find_implied_arguments(
            agent, endpoint, tool, known, typed=typed.argument, now=time.time()
        )
        if left is None or not all(isinstance(value, str) for value in left.values()):
            return None
        return dict(left)

    def _is_suggestible(
        self,
        catalogue: Catalogue,
        entry: CatalogueEntry,
        typed: TypedArgument,
        known: Mapping[str, str],
        value: str,
    ) -> bool:
        """Whether a call with this value could be made, as far as that can be told already."""
        arguments, whole = _build_arguments(entry, {**known, typed.argument: value})
        granted = may_call if whole else may_begin
        if not granted(
            catalogue.agent, catalogue.endpoint, entry.offer.tool, arguments, time.time()
        ):
            return False
        return self._decide_outcome(catalogue, entry, typed, arguments) is not RuleOutcome.DENY

    def _decide_outcome(
        self,
        catalogue: Catalogue,
        entry: CatalogueEntry,
        typed: TypedArgument,
        arguments: Mapping[str, str],
    ) -> RuleOutcome:
        question = PolicyQuestion(
            catalogue.agent,
            catalogue.endpoint,
            entry.offer.server,
            entry.offer.tool,
            arguments,
            now=time.time(),
            origin=typed.origin,
            host=typed.host,
        )
        return decide(self._policy, question).outcome

    async def _ask_server(
        self, entry: CatalogueEntry, typed: TypedArgument, known: Mapping[str, str]
    ) -> tuple[list[str], Any, Any]:
        tool = entry.offer.tool
        server = entry.offer.server
        named = {"type": "ref/prompt", "name": tool.name}
        ref = named if typed.kind == PROMPT else {"type": "ref/resource", "uri": tool.name}
        params: dict[str, Any] = {
            "ref": ref,
            "argument": {"name": typed.argument, "value": typed.value},
        }
        if known:
            params["context"] = {"arguments": dict(known)}
        seconds = min(server.request_timeout or SECONDS, SECONDS)
        about = ServerCall(
            server.id,
            tool.name,
            kind=tool.kind,
            revision=server.revision,
            definition=tool.definition_hash,
        )
        try:
            result = await self._pool.ask(about, "completion/complete", params, seconds=seconds)
        except ToolRefused as error:
            if error.rpc_code == METHOD_NOT_FOUND:
                return [], None, None
            raise
        said = result.get("completion")
        said = said if isinstance(said, dict) else {}
        values = said.get("values")
        listed = values if isinstance(values, list) else []
        texts = [each for each in listed if isinstance(each, str) and len(each) <= _LONGEST]
        return texts, said.get("total"), said.get("hasMore")


def _build_arguments(
    entry: CatalogueEntry, values: Mapping[str, str]
) -> tuple[Mapping[str, str], bool]:
    """The arguments of a call with these values; and whether it is a whole URI, if it is to read
    one."""
    if entry.offer.tool.kind != TEMPLATE:
        return values, False
    uri, whole = expand_known_prefix(entry.offer.tool.name, values)
    return {"uri": uri}, whole


def _resolve_entry(catalogue: Catalogue, typed: TypedArgument) -> CatalogueEntry:
    entry = (
        catalogue.get_kind(PROMPT).find(typed.name)
        if typed.kind == PROMPT
        else catalogue.find_template(typed.name)
    )
    if entry is None:
        raise NotFound(
            f"Unknown {typed.kind}: {clean_text(typed.name, 200)}",
            remedy=make_unlisted_remedy(typed.kind),
        )
    return entry


def _check_argument_names(entry: CatalogueEntry, typed: TypedArgument) -> frozenset[str]:
    """The names of its arguments. Raises ArgumentsInvalid for one that is not among them, or much
    too long a value."""
    tool = entry.offer.tool
    names = (
        list_template_variables(tool.name)
        if typed.kind == TEMPLATE
        else tool.arguments_schema["properties"]
    )
    if typed.argument not in names:
        raise ArgumentsInvalid(
            f"'{clean_text(typed.name, 200)}' has no argument '{clean_text(typed.argument, 200)}'.",
            remedy=f"Use one of its arguments: {', '.join(map(clean_text, names))}."
            if names
            else f"This {typed.kind} has no arguments.",
        )
    if any(len(value) > LONGEST_URI for value in (typed.value, *typed.known.values())):
        raise ArgumentsInvalid(
            f"A value is longer than {LONGEST_URI:,} characters.", remedy="Use a shorter value."
        )
    return frozenset(names)


def _limit_suggestions(found: list[str], total: Any, more: Any, *, whole: bool) -> dict[str, Any]:
    """At most 100 values. How many there are in all is passed on only where none was left out."""
    cut = len(found) > MOST
    completion: dict[str, Any] = {"values": found[:MOST], "hasMore": cut or more is True}
    if whole and isinstance(total, int) and not isinstance(total, bool) and total >= 0:
        completion["total"] = total
    return completion
