"""What a page shows of one held call: the stored bytes first, all foreign text with invisible
characters named.

Nothing here comes from what the agent says about its call; that text is shown last, by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from mcpregistry.domain.calls.arguments import (
    Argument,
    format_for_editor,
    hash_stored_text,
    list_arguments,
)
from mcpregistry.domain.host_definitions import repair_definition
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import build_arguments_schema
from mcpregistry.domain.servers.redacted_env import mask_record_secrets
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ApprovalRequest, Definition, Server
from mcpregistry.models.server import Transport
from mcpregistry.queries import approvals as queries
from mcpregistry.services.energy import estimates
from mcpregistry.services.energy.estimates import Estimate

# Characters of arguments that are shown at once; of longer ones the beginning, until somebody asks
# for all.
FOLD = 20_000
# A browser lays out ten megabytes in one piece for forty seconds, in blocks of this many characters
# in half a one.
BLOCK = 20_000
# Longer arguments cannot be edited on the page.
EDITABLE = 200_000
SAID = 4_000


@dataclass(frozen=True, slots=True)
class RenderedArguments:
    """The arguments that would run. ``parts`` is None where the text is too long to be taken apart,
    or cannot be.

    ``blocks`` are the stored text with the place in it where each begins, from 1.
    """

    blocks: list[tuple[int, str]]
    parts: list[Argument] | None
    whole: bool
    length: int
    bytes: int
    sha256: str


def arguments(
    request: ApprovalRequest, before: ApprovalRequest | None, *, whole: bool
) -> RenderedArguments:
    """The arguments that would run, compared with those of ``before``; ``whole``: however long they
    are."""
    text = effective(request)
    folded = len(text) > FOLD and not whole
    parts = None
    if len(text) <= FOLD:
        parts = list_arguments(text, effective(before) if before else None)
    size = len(text.encode("utf-8", "surrogatepass"))
    blocks = [(1, show_invisible_characters(text, FOLD))] if folded else _blocks(text)
    return RenderedArguments(blocks, parts, not folded, len(text), size, hash_stored_text(text))


def _blocks(text: str) -> list[tuple[int, str]]:
    starts = range(0, len(text), BLOCK)
    return [
        (start + 1, show_invisible_characters(text[start : start + BLOCK], BLOCK))
        for start in starts
    ]


def effective(request: ApprovalRequest) -> str:
    """The arguments that would run, or did: the edited ones, else those asked for."""
    return request.edited or request.call.arguments


def energy(request: ApprovalRequest, around: queries.Around) -> Estimate | None:
    """What the call will cost of its agent's energy; None: its tool is not there any more."""
    if around.tool is None:
        return None
    agent = request.call.agent_slug
    size = len(effective(request).encode())
    return estimates.estimate_tool(
        around.tool, estimates.load_rates_by_agent([agent]).get(agent), argument_bytes=size
    )


def editor(request: ApprovalRequest) -> str:
    """The text for the editor; empty when it is too long to be edited on a page."""
    text = effective(request)
    return format_for_editor(text) if len(text) <= EDITABLE else ""


def schema(definition: Definition) -> dict[str, Any]:
    """What the arguments must fit; empty when nothing is said of them."""
    kind = definition.tool.kind
    found = build_arguments_schema(kind, repair_definition(kind, definition.data).definition)
    return dict(found) if isinstance(found, dict) else {}


def warnings(request: ApprovalRequest, around: queries.Around) -> list[str]:
    """Sentences on what has changed since the call was asked for; each of them ends the call before
    it runs."""
    call = request.call
    found = []
    if around.server is None:
        found.append(_("The server is no longer registered."))
    elif around.server.revision != call.server_revision:
        found.append(_("The server's settings were changed after this call was requested."))
    if around.server is not None and (
        around.tool is None
        or around.tool.pinned is None
        or around.tool.pinned.hash != call.definition_hash
    ):
        found.append(_("The definition of the tool that this call uses is no longer approved."))
    return found


def where(server: Server | None) -> tuple[list[str], str]:
    """(command word by word, address) of the server, without what is secret in them; one of them is
    empty."""
    if server is None:
        return [], ""
    shown = mask_record_secrets({"command": server.command, "url": server.url})
    return (shown["command"], "") if server.transport == Transport.STDIO else ([], shown["url"])


def state_words(request: ApprovalRequest) -> str:
    """One sentence on how it stands, with who decided."""
    state = InvocationState(request.call.state)
    names = {"names": _deciders(request)}
    expired = _("Not decided in time.")
    if request.execute_by is not None:
        expired = _("Approved%(names)s, but not run in time.") % names
    sentences = {
        InvocationState.PENDING: _("Waiting for a decision."),
        InvocationState.READY: f"{_('Approved%(names)s.') % names} {queries.when_it_runs(request) if state is InvocationState.READY else ''}",
        InvocationState.DISPATCHED: _("Approved%(names)s. The call is running.") % names,
        InvocationState.SUCCEEDED: _("Approved%(names)s. The call ran and succeeded.") % names,
        InvocationState.TOOL_ERROR: _(
            "Approved%(names)s. The call ran, and the tool answered with an error."
        )
        % names,
        InvocationState.NOT_SENT: _("Approved%(names)s, but the call could not be sent.") % names,
        InvocationState.UNKNOWN: _("Approved%(names)s. The call was sent; its outcome is unknown.")
        % names,
        InvocationState.REJECTED: _("Rejected%(names)s.") % names,
        InvocationState.EXPIRED: expired,
        InvocationState.CANCELLED: _("Cancelled by the caller."),
        InvocationState.VOID: _(
            "Void: the server, the tool or the rule was changed after the request."
        ),
    }
    return sentences.get(state, state.value)


def _deciders(request: ApprovalRequest) -> str:
    approve = request.call.state != InvocationState.REJECTED
    names = [
        show_invisible_characters(vote.name, 60)
        for vote in request.votes.all()
        if vote.approve == approve
    ]
    return _(" by %(names)s") % {"names": _(" and ").join(names)} if names else ""


def version(request: ApprovalRequest) -> str:
    """A text that changes whenever what people decided on this request, or what would run, has
    changed."""
    votes = [int(vote.at.timestamp() * 1_000_000) for vote in request.votes.all()]
    return f"{request.call.state}.{len(votes)}-{max(votes, default=0)}.{hash_stored_text(request.edited)[:12] if request.edited else 0}"
