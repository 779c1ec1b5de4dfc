"""The page behind "Add" of a registry's entry: what its server asks for, entered by a person."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import ReadOnlyAdmin, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.registry.ways import Input, Way
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Install, RegistryEntry
from mcpregistry.services.registry import adding


class AddForm(forms.Form):
    """The server's short name, and a field for each of the way's inputs."""

    slug = forms.CharField(
        label="Short name", max_length=63, widget=UnfoldAdminTextInputWidget,
        help_text="Of the server on this site; it prefixes the names of its tools.",
    )  # fmt: skip

    def __init__(self, way: Way, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked = {f"input-{number}": each for number, each in enumerate(way.inputs)}
        self.fields |= {name: _field(each) for name, each in self.asked.items()}

    def values(self) -> dict[str, str]:
        """What was entered, by ``Input.key``."""
        return {each.key: value for name, each in self.asked.items() if (value := self.cleaned_data[name])}


def _field(asked: Input) -> forms.Field:
    notes = [printable(asked.description, 500), f"{asked.place}, secret" if asked.secret else asked.place]
    facts: dict[str, Any] = {
        "label": printable(asked.name, 100), "required": asked.required, "help_text": " ".join(filter(None, [notes[0], f"({notes[1]})"])),
        "initial": printable(asked.default, 500),
    }  # fmt: skip
    if asked.choices:
        given = [(each, printable(each, 200)) for each in asked.choices]
        return forms.ChoiceField(choices=[("", "not set"), *given], widget=UnfoldAdminSelectWidget, **facts)
    if asked.secret:
        widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})
        return forms.CharField(max_length=20_000, strip=True, widget=widget, **facts)
    return forms.CharField(max_length=2_000, widget=UnfoldAdminTextInputWidget, **facts)


class AddEntryPage:
    """A view of ``RegistryEntryAdmin``, which gives it entries and addresses."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Show the form; a POST adds exactly the document that was shown."""
        entry = self.admin.get_object(request, object_id)
        if entry is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        try:
            way = adding.way_of(entry, number)
        except SlipsnisseError as error:
            self.admin.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(_page_of(entry))
        if not request.user.has_perm(adding.permission(way)):
            raise PermissionDenied
        form = AddForm(
            way, request.POST if request.method == "POST" else None, initial={"slug": adding.slug_for(entry)}
        )
        if form.is_valid() and (made := self._added(request, entry, number, form)):
            return HttpResponseRedirect(_page_of(made))
        return self._shown(request, entry, way, form)

    def _added(self, request: HttpRequest, entry: RegistryEntry, number: int, form: AddForm) -> Model | None:
        assert isinstance(request.user, User)
        wish = adding.Wish(number, form.cleaned_data["slug"], form.values(), request.POST.get("shown", ""))
        try:
            made = adding.add(entry=entry, wish=wish, user=request.user, actor=actor(request))
        except SlipsnisseError as error:
            form.add_error(None, str(error))
            return None
        told = "A worker finds out what it consists of; look at that, then approve it." if isinstance(made, Install) else (
            "It is a draft: confirm its launch, and it can be tried."
        )  # fmt: skip
        self.admin.message_user(request, told, messages.SUCCESS)
        return made

    def _shown(self, request: HttpRequest, entry: RegistryEntry, way: Way, form: AddForm) -> HttpResponse:
        context = self.admin.admin_site.each_context(request) | {
            "title": f"Add {printable(entry.name, 200)}", "opts": self.admin.opts, "original": entry, "entry": entry,
            "way": way, "form": form, "back": _page_of(entry),
            "secrets": any(each.secret for each in way.inputs) and not request.user.has_perms(adding.MAY_KEEP_SECRETS),
        }  # fmt: skip
        return TemplateResponse(request, "admin/mcpregistry/add_entry.html", context)


def _page_of(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
