"""The first step: something is pasted, read into words, read over by a person, and saved as a
draft.

Between the two pages what was pasted travels sealed, for it may hold secrets, and nothing is saved:
whoever leaves here has left nothing behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.set_up.forms import PasteForm, WordsForm
from mcpregistry.admin.set_up.page_frame import address, show_page, steps
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.formats import pasted
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.pasted.secrets import extract_secrets
from mcpregistry.models import Server
from mcpregistry.models.sealing import seal, unseal
from mcpregistry.services.access import credentials
from mcpregistry.services.servers import server_setup


class PastePage:
    """A view of ``ServerAdmin``: paste, then read over."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """A GET asks what to paste; a POST of that shows it in words; a POST of the words saves the
        draft."""
        if not request.user.has_perm("mcpregistry.add_server"):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, PasteForm())
        form = PasteForm(
            request.POST if "sealed" not in request.POST else {"paste": open_paste(request)}
        )
        if not form.is_valid():
            return self._ask(request, form)
        try:
            found = pasted.read(form.cleaned_data["paste"])
        except FileInvalid as error:
            form.add_error("paste", f"{error.note.sentence} {error.note.remedy}")
            return self._ask(request, form)
        if found.registry:
            return HttpResponseRedirect(
                f"{reverse('admin:mcpregistry_registryentry_changelist')}?q={quote(found.registry)}"
            )
        return self._read(request, form, found)

    def _ask(self, request: HttpRequest, form: PasteForm) -> HttpResponse:
        context = {
            "title": gettext("Add a server"),
            "form": form,
            "steps": steps(None, "read"),
            "recent": _list_drafts(request),
        }
        return show_page(self.admin, request, "paste", context)

    def _read(self, request: HttpRequest, form: PasteForm, found: pasted.Pasted) -> HttpResponse:
        entries = found.document.servers
        refused = found.document.refused
        chosen = request.POST.get("which") or (entries[0].key if len(entries) == 1 else "")
        entry = next((each for each in entries if each.key == chosen), None)
        sealed = seal_paste(request, form.cleaned_data["paste"])
        if entry is None and not entries:
            form.add_error(
                "paste",
                " ".join(
                    f"{note.pointer} {note.sentence} {note.remedy}".strip() for note in refused[:5]
                ),
            )
            return self._ask(request, form)
        context: dict[str, Any] = {
            "title": gettext("Add a server"),
            "what": found.what,
            "sealed": sealed,
            "steps": steps(None, "read"),
            "refused": refused,
            "entries": [(each, _line(extract_secrets(each)[0])) for each in entries],
        }
        if entry is None:
            return show_page(self.admin, request, "choose", context)
        return self._words(request, entry, context)

    def _words(
        self, request: HttpRequest, entry: ServerEntry, context: dict[str, Any]
    ) -> HttpResponse:
        # first: the names of secrets must not depend on which servers there are
        plain, secrets = extract_secrets(entry)
        plain = _choose_free_name(plain)
        data = request.POST if "slug" in request.POST else None
        form = WordsForm(
            plain, secrets, data, may_keep=request.user.has_perms(credentials.MAY_KEEP)
        )
        if form.is_valid():
            try:
                user = cast(User, request.user)
                server = server_setup.add_draft_server(
                    draft=form.draft(), user=user, actor=actor(request)
                )
            except SlipsnisseError as error:
                form.refuse(error)
            else:
                return HttpResponseRedirect(address(server))
        return show_page(
            self.admin,
            request,
            "words",
            context | {"form": form, "which": entry.key, "secrets": secrets},
        )


def _line(entry: ServerEntry) -> str:
    """What it starts or reaches, in one line."""
    return " ".join(entry.command) or entry.url


def seal_paste(request: HttpRequest, text: str) -> str:
    """What was pasted, as it stands in a page: sealed, for this person."""
    return seal(text, place=f"pasted:{request.user.pk}")


def open_paste(request: HttpRequest) -> str:
    """What the page before had sealed; empty when it does not open, so that it is asked for
    again."""
    try:
        return str(unseal(request.POST.get("sealed", ""), place=f"pasted:{request.user.pk}"))
    except ConfigInvalid:
        return ""


def _choose_free_name(entry: ServerEntry) -> ServerEntry:
    """With a short name that no server has yet."""
    taken = set(
        Server.objects.filter(slug__startswith=entry.key[:58]).values_list("slug", flat=True)
    )
    free = [entry.key, *(f"{entry.key[:58]}-{number}" for number in range(2, len(taken) + 3))]
    return replace(entry, key=next(name for name in free if name not in taken))


def _list_drafts(request: HttpRequest) -> list[Server]:
    """Drafts that wait to be gone on with, the newest first."""
    if not request.user.has_perm("mcpregistry.view_server"):
        return []
    return [*Server.objects.filter(lifecycle="draft").order_by("-created_at")[:5]]
