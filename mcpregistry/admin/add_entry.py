"""The page behind "Add" of a registry's entry: what its server asks for, entered by a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import escape
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from mcpregistry.admin.base import ReadOnlyAdmin, actor
from mcpregistry.admin.fields import lines_widget
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.registry import containers
from mcpregistry.domain.registry.install_options import InstallInput, InstallOption
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Install, RegistryEntry, Server
from mcpregistry.services.access import credentials
from mcpregistry.services.registry import add_entries, images


@dataclass(frozen=True, slots=True)
class EntryFormUse:
    """What the form is for. ``slug``: the short name it proposes; ``record``: to whose page Cancel
    leads.

    ``add`` does it, and returns where the person goes on and what they are told. It raises
    SlipsnisseError.
    """

    slug: str
    record: Model
    add: Callable[[HttpRequest, RegistryEntry, add_entries.AddRequest], tuple[Model, str]]


class WayForm(forms.Form):
    """A field for each of the way's inputs."""

    def __init__(self, way: InstallOption, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.way = way
        self.digest = ""
        self.no_digest = ""
        self.asked = {f"input-{number}": each for number, each in enumerate(way.inputs)}
        self.fields |= {name: _field(each) for name, each in self.asked.items()}

    def values(self) -> dict[str, str]:
        """What was entered, by ``Input.key``."""
        return {
            each.key: value
            for name, each in self.asked.items()
            if (value := self.cleaned_data[name])
        }


class AddForm(WayForm):
    """The server's short name, and what the way asks for."""

    slug = forms.CharField(
        label=_("Short name"),
        max_length=63,
        widget=UnfoldAdminTextInputWidget,
        help_text=_(
            "Name of the server on this site. It is the first part of the names of its tools."
        ),
    )

    def find_digest(self, entry: RegistryEntry) -> None:
        """Enter what the image's registry says that its tag is now, or note why it could not be
        found out."""
        name = next(
            (name for name, each in self.asked.items() if each.key == containers.DIGEST_KEY), ""
        )
        if not name:
            return
        try:
            self.digest = images.fetch_current_digest(entry, self.way)
            self.initial[name] = self.digest
        except SlipsnisseError as error:
            self.no_digest = str(error)


def _field(asked: InstallInput) -> forms.Field:
    kind = (
        gettext("({place}, secret)").format(place=asked.place)
        if asked.secret
        else f"({asked.place})"
    )
    # forms show help as HTML, and this is a stranger's
    about = escape(show_invisible_characters(asked.description, 500))
    facts: dict[str, Any] = {
        "label": show_invisible_characters(asked.name, 100),
        "required": asked.required,
        "help_text": f"{about} {kind}".strip(),
        "initial": show_invisible_characters(asked.default, 500),
    }
    if asked.many:
        facts |= {
            "help_text": f"{gettext('One value per line.')} {about} {kind}".strip(),
            "initial": asked.default,
        }
        return forms.CharField(max_length=20_000, widget=lines_widget(3, ""), **facts)
    if asked.choices:
        given = [(each, show_invisible_characters(each, 200)) for each in asked.choices]
        empty = [] if asked.required and asked.default else [("", gettext("not set"))]
        return forms.ChoiceField(choices=[*empty, *given], widget=UnfoldAdminSelectWidget, **facts)
    if asked.secret:
        widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})
        return forms.CharField(max_length=20_000, strip=True, widget=widget, **facts)
    return forms.CharField(max_length=2_000, widget=UnfoldAdminTextInputWidget, **facts)


class AddEntryPage:
    """A view of ``RegistryEntryAdmin``, which gives it entries; other pages use its form for an end
    of their own."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Show the form; a POST adds exactly the document that was shown."""
        entry = self.admin.get_object(request, object_id)
        if entry is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        return self.answer(
            request, entry, number, EntryFormUse(add_entries.propose_slug(entry), entry, self.add)
        )

    def add(
        self, request: HttpRequest, entry: RegistryEntry, wish: add_entries.AddRequest
    ) -> tuple[Model, str]:
        """Do it. Returns where the person goes on, and what they are told. Raises
        SlipsnisseError."""
        made = add_entries.add_from_entry(
            entry=entry, wish=wish, user=cast(User, request.user), actor=actor(request)
        )
        return made, describe_next_step(made)

    def answer(
        self, request: HttpRequest, entry: RegistryEntry, number: int, use: EntryFormUse
    ) -> HttpResponse:
        """The form of one way of the entry, and what becomes of it when it is sent."""
        try:
            way = add_entries.get_install_option(entry, number)
        except SlipsnisseError as error:
            self.admin.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(page_of(use.record))
        if not request.user.has_perm(add_entries.find_required_permission(way)):
            raise PermissionDenied
        form = AddForm(
            way, request.POST if request.method == "POST" else None, initial={"slug": use.slug}
        )
        if not form.is_bound:
            form.find_digest(entry)
        if form.is_valid():
            wish = add_entries.AddRequest(
                number, form.cleaned_data["slug"], form.values(), request.POST.get("shown", "")
            )
            try:
                made, told = use.add(request, entry, wish)
            except SlipsnisseError as error:
                form.add_error(None, str(error))
            else:
                self.admin.message_user(request, told, messages.SUCCESS)
                return HttpResponseRedirect(page_of(made))
        return self._show_form(request, entry, form, use.record)

    def _show_form(
        self, request: HttpRequest, entry: RegistryEntry, form: AddForm, record: Model
    ) -> HttpResponse:
        way = form.way
        context = self.admin.admin_site.each_context(request) | {
            "title": gettext("Add {name}").format(name=show_invisible_characters(entry.name, 200)),
            "opts": self.admin.opts,
            "original": record,
            "entry": entry,
            "way": way,
            "form": form,
            "back": page_of(record),
            "secrets": any(each.secret for each in way.inputs)
            and not request.user.has_perms(credentials.MAY_KEEP),
        }
        return TemplateResponse(request, "admin/mcpregistry/add_entry.html", context)


def describe_next_step(made: Server | Install) -> str:
    """What has to be done next with what was added."""
    if isinstance(made, Install):
        return gettext(
            "A worker determines the exact versions of the package. Check them, then approve the installation."
        )
    return gettext("The server is a draft. Confirm its launch before you test it.")


def page_of(row: Model) -> str:
    """The address of a row's own page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
