"""What people do with proposals: apply them, or decline. Until then a proposal changes nothing.

Applying one saves the server as a person's own change would: a new or changed launch is a draft
that waits for its confirmation. What somebody has changed since always wins: an outdated proposal
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.caller_rights import Rights
from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied, NotFound
from mcpregistry.models import RegistryEntry, Server
from mcpregistry.services.records import audit
from mcpregistry.services.registry import add_entries, newer_images
from mcpregistry.services.registry.add_entries import AddRequest
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.sandbox import find_default_mode
from subagents.domain.maintenance import SWITCH, Kind, ProposalState, RequestMessageKind
from subagents.maintenance import queue, registry_listings, whitelist
from subagents.models import Proposal

# What the one who applies it needs besides the right to decide: that to do it by hand.
_RIGHTS = {
    Kind.ADD: "mcpregistry.add_server",
    Kind.MODIFY: "mcpregistry.change_server",
    Kind.TRY: "mcpregistry.change_server",
    Kind.REMOVE: "mcpregistry.delete_server",
}


@dataclass(frozen=True, slots=True)
class ChosenEntry:
    """The entry of a registry that a person takes for a new server, and what they entered for
    it."""

    entry: RegistryEntry
    wish: AddRequest


@transaction.atomic
def apply(
    *, proposal_id: int, user: User, actor: str, choice: ChosenEntry | None = None
) -> Proposal:
    """Do it, as this person's own change. ``choice``: for a new server that is proposed from
    registries.

    Raises NotFound, Denied (they may not do that by hand), Conflict (decided already, or the server
    was changed since) and ConfigInvalid.
    """
    proposal = _load_waiting_proposal(proposal_id)
    _check_choice(proposal, choice)
    for right in (_RIGHTS[Kind(proposal.request.kind)], *whitelist.list_needed_rights(proposal)):
        if not user.has_perm(right):
            raise Denied(
                f'You cannot apply this proposal without the permission "{right}".',
                remedy="Ask a user with this permission to apply it.",
            )
    match Kind(proposal.request.kind):
        case Kind.ADD:
            _add(proposal, actor) if choice is None else _add_chosen(proposal, choice, user, actor)
        case Kind.MODIFY:
            _apply_modification(_load_original_server(proposal), proposal, actor, user.has_perm)
        case Kind.TRY:
            server = _load_original_server(proposal)
            whitelist.apply(proposal, server, actor=actor, user=user)
            _change(server, proposal, actor, user.has_perm)
        case Kind.REMOVE:
            lifecycle.delete_server(
                server=_load_original_server(proposal), actor=actor, rights=user.has_perm
            )
            proposal.server = None
    return _record_decision(proposal, ProposalState.APPLIED, actor)


@transaction.atomic
def decline(*, proposal_id: int, actor: str) -> Proposal:
    """Leave everything as it is. Raises NotFound and Conflict (decided already)."""
    return _record_decision(_load_waiting_proposal(proposal_id), ProposalState.DECLINED, actor)


def _apply_modification(server: Server, proposal: Proposal, actor: str, rights: Rights) -> None:
    key = proposal.request.params.get("entry")  # a newer image of a registry's
    entry = (
        None
        if key is None
        else newer_images.lock_entry_for(key, proposal.fields.get("command") or ())
    )
    _change(server, proposal, actor, rights)
    if entry is not None:
        newer_images.move_server_to_entry(server, entry)


def _change(server: Server, proposal: Proposal, actor: str, rights: Rights) -> None:
    fields = dict(proposal.fields)
    on = fields.pop(SWITCH, None)
    for name, value in fields.items():
        setattr(server, name, value)
    if fields:
        lifecycle.save_server(server=server, actor=actor, rights=rights)
    if on is not None:
        switch = lifecycle.enable_server if on else lifecycle.disable_server
        switch(server=server, actor=actor)


def _add(proposal: Proposal, actor: str) -> None:
    if not proposal.fields:
        raise ConfigInvalid(
            "The proposal does not contain a command or an address for the server.",
            remedy=f'Choose an entry of a registry, or decline the proposal and add the server "{proposal.request.server_slug}" '
            "yourself.",
        )
    usual = {
        "slug": proposal.request.server_slug,
        "source": "sub-agent",
        "sandbox": find_default_mode(),
    }
    values: dict[str, Any] = usual | proposal.fields
    proposal.server = lifecycle.save_server(server=Server(**values), actor=actor)


def _check_choice(proposal: Proposal, choice: ChosenEntry | None) -> None:
    if choice is not None and choice.entry not in registry_listings.find_proposed_entries(
        proposal.request.result
    ):
        raise Conflict(
            "The proposal does not contain this registry entry, or the registry no longer lists the entry.",
            remedy="Choose another entry of the proposal, or decline the proposal and add the server yourself.",
        )


def _add_chosen(proposal: Proposal, choice: ChosenEntry, user: User, actor: str) -> None:
    """A server, or a package whose lock a person approves before a server is made of it."""
    wish = choice.wish
    if not wish.slug:
        wish = replace(wish, slug=proposal.request.server_slug)  # as the server was asked for
    made = add_entries.add_from_entry(entry=choice.entry, wish=wish, user=user, actor=actor)
    if isinstance(made, Server):
        proposal.server = made
    else:
        proposal.install = made


def _load_original_server(proposal: Proposal) -> Server:
    server = Server.objects.select_for_update().filter(pk=proposal.server_id or 0).first()
    if server is None or not proposal.fits(server):
        raise Conflict(
            "The server was changed or deleted after this change was proposed.",
            remedy="Decline the proposal, and request a new one.",
        )
    return server


def _load_waiting_proposal(proposal_id: int) -> Proposal:
    rows = Proposal.objects.select_for_update(of=("self",)).select_related("request")
    proposal = rows.filter(pk=proposal_id).first()
    if proposal is None:
        raise NotFound(
            error_texts.say_no_such_number("proposal", proposal_id),
            remedy=error_texts.advise_list("Approvals, Proposals of the sub-agent"),
        )
    if proposal.state != ProposalState.WAITING:
        raise Conflict(
            f"The proposal was already {proposal.state} by {proposal.decided_by}.",
            remedy="Nothing needs to be changed.",
        )
    return proposal


def _record_decision(proposal: Proposal, state: ProposalState, actor: str) -> Proposal:
    proposal.state = state
    proposal.decided_by = actor
    proposal.decided_at = timezone.now()
    proposal.save()
    request = proposal.request
    audit.record_entry(
        kind=f"maintenance.proposal_{state}",
        actor=actor,
        subject=f"maintenance:{request.pk}",
        what=request.kind,
        server=request.server_slug,
    )
    queue.tell(
        request,
        RequestMessageKind.STATUS,
        proposal=state,
        message=f"The proposal was {state} by a user.",
    )
    return proposal
