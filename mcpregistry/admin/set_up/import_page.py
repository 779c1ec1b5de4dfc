"""A configuration file of any host, pasted or uploaded: what it would change is shown first, then
it is imported."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldBooleanSwitchWidget,
)

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.fields import lines_widget
from mcpregistry.admin.set_up.page_frame import show_page
from mcpregistry.admin.set_up.paste_page import open_paste, seal_paste
from mcpregistry.domain import formats
from mcpregistry.domain.formats import READABLE, pasted
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.text import MAX_BYTES, dump
from mcpregistry.models import Server
from mcpregistry.queries.setup_state import agents_of_hosts
from mcpregistry.services.access.credentials import MAY_KEEP
from mcpregistry.services.exchange import large_files
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.policy import MAY_RULE
from mcpregistry.services.exchange.sections import CONFLICT
from mcpregistry.services.exchange.workspaces import MAY_MAKE, WorkspaceChoice

_MOST_LISTED = 50  # servers whose next step is linked after an import; they stand in an address
_ON_CONFLICT = [
    ("error", _("Reject the file")),
    ("skip", _("Keep the existing server")),
    ("replace", _("Replace it (if its launch changes, the server becomes a draft)")),
    ("rename", _("Add the other server under a new name")),
]


class ImportForm(forms.Form):
    """The file, as text or uploaded, and what follows where a server of its name is here and
    differs."""

    text = forms.CharField(
        required=False,
        label=_("Text of the file"),
        max_length=MAX_BYTES,
        strip=False,
        widget=lines_widget(8, '{"mcpServers": …}'),
        help_text=_("Content of the configuration file of a host, in JSON, YAML or TOML."),
    )
    file = forms.FileField(
        required=False,
        label=_("File"),
        widget=UnfoldAdminFileFieldWidget,
        help_text=_(
            "Up to 1 MiB, or up to 50 MiB for a JSON file. Only the servers in it are read."
        ),
    )
    format = forms.ChoiceField(
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text=_("Format of the file. Keep the default to detect it automatically."),
        choices=[
            ("", _("Detect automatically")),
            *((name, each.title) for name, each in READABLE.items()),
        ],
    )
    on_conflict = forms.ChoiceField(
        choices=_ON_CONFLICT,
        initial="error",
        widget=UnfoldAdminSelectWidget,
        label=_("Existing servers that differ"),
    )
    secrets_apart = forms.BooleanField(
        required=False,
        initial=False,
        widget=UnfoldBooleanSwitchWidget,
        label=_("Store secrets as credentials"),
        help_text=_(
            "If enabled, values that look like secrets are stored as credentials. Otherwise they are stored "
            "with the server."
        ),
    )
    uploaded = b""

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        file = data.get("file")
        text = data.get("text")
        if bool(file) == bool(text) and not self.errors:
            raise forms.ValidationError(
                _("Paste the text of the file or choose a file, but not both.")
            )
        if file and file.size > large_files.MAX_BYTES:
            self.add_error(
                "file", _("The file is larger than 50 MiB. Split it into smaller files.")
            )
        elif file:
            try:
                self.uploaded = large_files.reduce_large_file(file.read(), str(file.name))
            except FileInvalid as error:
                self.add_error("file", f"{error.note.sentence} {error.note.remedy}")
        return data

    def content(self) -> tuple[str, str]:
        """The text and its name; bytes that are no UTF-8 are said to be so by whoever reads the
        text."""
        file = self.cleaned_data.get("file")
        if not file:
            return str(self.cleaned_data["text"]), gettext("pasted text")
        return self.uploaded.decode("utf-8", "replace"), str(file.name)[:200]


class ImportPage:
    """A view of ``ServerAdmin``."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """A GET asks for the file; a POST of it shows what would change; a POST of that page
        imports exactly this."""
        if not request.user.has_perms(("mcpregistry.add_server", "mcpregistry.change_server")):
            raise PermissionDenied
        if request.method != "POST":
            made = request.GET.getlist("made")
            return self._show_imported(request, made) if made else self._ask(request, ImportForm())
        sealed = open_paste(request) if "sealed" in request.POST else ""
        again = "import" in request.POST
        data = request.POST.copy()
        if sealed:
            data["text"] = sealed
        data.setdefault("on_conflict", "error")
        form = ImportForm(data, request.FILES)
        if not form.is_valid():
            return self._ask(request, form)
        text, name = form.content()
        if not request.FILES and not form.cleaned_data["format"]:
            text = _as_file(text)
        name = request.POST.get("name", "")[:200] or name
        outcome = self._import_text(request, form, text, name, save=again)
        if outcome.saved:
            return self._finish_import(request, outcome)
        context = {
            "title": gettext("Import servers"),
            "outcome": outcome,
            "again": again,
            "diff": _lines(outcome.format_diff()),
            "sealed": seal_paste(request, text),
            "given": form.cleaned_data,
            "name": name,
            **_workspaces(request, outcome),
            "conflict": _conflict_of(outcome),
            "choices": _ON_CONFLICT,
            "notes": [note for note in outcome.notes if not note.plain],
        }
        return show_page(self.admin, request, "import_diff", context, status=409 if again else 200)

    def _ask(self, request: HttpRequest, form: ImportForm) -> HttpResponse:
        return show_page(
            self.admin, request, "import", {"title": gettext("Import servers"), "form": form}
        )

    def _import_text(
        self, request: HttpRequest, form: ImportForm, text: str, name: str, *, save: bool
    ) -> ImportOutcome:
        user = request.user
        given = form.cleaned_data
        projects = frozenset(request.POST.getlist("project"))
        if projects and not user.has_perms(MAY_MAKE):
            raise PermissionDenied
        return import_file(
            raw=text.encode("utf-8", "replace"),
            path=name,
            actor=actor(request),
            format_name=given["format"],
            on_conflict=given["on_conflict"],
            save=save,
            seen=request.POST.get("seen", ""),
            may_rule=user.has_perms(MAY_RULE),
            may_grant=user.has_perms(("mcpregistry.add_grant", "subagents.add_experttool")),
            secrets_apart=given["secrets_apart"] and user.has_perms(MAY_KEEP),
            workspaces=WorkspaceChoice(projects, request.POST.get("agent", "")),
            rights=user.has_perm,
        )

    def _finish_import(self, request: HttpRequest, outcome: ImportOutcome) -> HttpResponse:
        made = [change for change in outcome.changes if change.action in ("created", "changed")]
        self.admin.message_user(
            request,
            gettext("Imported. Entries created or changed: {count}.").format(count=len(made)),
            messages.SUCCESS,
        )
        slugs = [change.slug for change in made if change.kind == "server"][:_MOST_LISTED]
        return HttpResponseRedirect(
            f"{request.path}?{urlencode({'made': slugs or ['']}, doseq=True)}"
        )

    def _show_imported(self, request: HttpRequest, slugs: list[str]) -> HttpResponse:
        rows = Server.objects.filter(slug__in=slugs[:_MOST_LISTED])
        return show_page(
            self.admin, request, "imported", {"title": gettext("Imported servers"), "servers": rows}
        )


def _as_file(text: str) -> str:
    """What was pasted, as a file: a block without its root, or a line that adds a server, becomes
    one of ``mcpServers``."""
    with suppress(FileInvalid):
        formats.read(text.encode("utf-8", "replace"), "")
        return text
    with suppress(FileInvalid):
        document = pasted.read(text).document
        if document.servers:
            return dump(formats.write(document, "mcpservers", include_secrets=True).data)
    return text  # whoever reads it says what is wrong with it


def _conflict_of(outcome: ImportOutcome) -> bool:
    """Whether nothing stands in the way but servers that are here and differ."""
    return bool(outcome.refused) and all(note.remedy == CONFLICT for note in outcome.refused)


def _workspaces(request: HttpRequest, outcome: ImportOutcome) -> dict[str, Any]:
    """What the page shows about the projects of the file, for the person to choose from."""
    agents = [*agents_of_hosts().values_list("slug", flat=True)] if outcome.projects else []
    chosen = request.POST.get("agent", "") or ("local" if "local" in agents else "")
    return {
        "projects": outcome.projects,
        "agents": agents,
        "agent": chosen,
        "may_make": bool(agents) and request.user.has_perms(MAY_MAKE),
        "chosen": request.POST.getlist("project"),
    }


def _lines(diff: str) -> list[tuple[str, str]]:
    """Each line with the class of its kind: taken away, put in, a heading, or as it was."""
    kinds = {"-": "sn-minus", "+": "sn-plus", "@": "sn-quiet", "#": "sn-quiet"}
    return [
        ("" if line.startswith(("---", "+++")) else kinds.get(line[:1], ""), line)
        for line in diff.splitlines()[:5_000]
    ]
