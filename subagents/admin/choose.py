"""The page on which a person takes an entry of a registry for a server that was asked for."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext

from mcpregistry.admin.add_entry import AddEntryPage, EntryFormUse, page_of
from mcpregistry.admin.base import ReadOnlyAdmin, actor
from mcpregistry.models import RegistryEntry
from mcpregistry.services.registry.add_entries import AddRequest, list_local_options
from subagents.domain.maintenance import ProposalState
from subagents.maintenance import proposals, registry_listings
from subagents.models import Proposal


class ChoosePage:
    """A view of ``ProposalAdmin``: the form of an entry that the proposal names."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin
        self._form = AddEntryPage(admin)

    def __call__(
        self, request: HttpRequest, object_id: str, entry_id: int, number: int
    ) -> HttpResponse:
        """Show the form; a POST adds what was shown and applies the proposal by it, or neither."""
        proposal = self.admin.get_object(request, object_id)
        if proposal is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        entries = {
            each.pk: each
            for each in registry_listings.find_proposed_entries(proposal.request.result)
        }
        if entry_id not in entries or proposal.state != ProposalState.WAITING:
            self.admin.message_user(
                request,
                gettext(
                    "This entry can no longer be chosen: the proposal was already decided, or does not contain the entry."
                ),
                messages.ERROR,
            )
            return HttpResponseRedirect(page_of(proposal))
        if not request.user.has_perm("subagents.decide_proposal"):
            raise PermissionDenied
        use = EntryFormUse(proposal.request.server_slug, proposal, partial(self._apply, proposal))
        return self._form.answer(request, entries[entry_id], number, use)

    def _apply(
        self, proposal: Proposal, request: HttpRequest, entry: RegistryEntry, wish: AddRequest
    ) -> tuple[Model, str]:
        choice = proposals.ChosenEntry(entry, wish)
        user = cast(User, request.user)
        done = proposals.apply(
            proposal_id=proposal.pk, user=user, actor=actor(request), choice=choice
        )
        return done, gettext(
            "The proposal is applied. If the entry has a package, the package waits for approval. Otherwise, the server is now a draft."
        )


def choices(proposal: Proposal) -> list[dict[str, Any]]:
    """The entries that a proposal names, each with its usable ways and the address of their
    forms."""
    return [
        {
            "entry": entry,
            "ways": [
                (way, _address(proposal, entry, number))
                for number, way in enumerate(list_local_options(entry))
                if not way.problem
            ],
        }
        for entry in registry_listings.find_proposed_entries(proposal.request.result)
    ]


def _address(proposal: Proposal, entry: RegistryEntry, number: int) -> str:
    return reverse("admin:subagents_proposal_choose", args=[proposal.pk, entry.pk, number])
