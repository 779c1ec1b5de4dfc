"""What all our admin pages share: the services change records, refusals become messages, histories.

* A record is saved and deleted by a verb of ``mcpregistry.services``, so every face has the same rules
  and the same audit. What a service refuses is shown to the person, never a server error.
* Buttons of one record (``verbs``) are POST forms with a permission each: nothing changes by a GET.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import models
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from mcpregistry.admin.fields import MASK, JsonField, masked
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.text.display import LIMIT, printable
from mcpregistry.models.sealing import sealed
from mcpregistry.models.visibility import VisibleQuerySet

_VERSIONS_SHOWN = 100


def actor(request: HttpRequest) -> str:
    """The person as the audit log names them; the prefix keeps an agent's slug from looking like one."""
    return f"user:{request.user.get_username()}"


@dataclass(frozen=True, slots=True)
class Verb:
    """One button on a record's page. ``run`` returns what to tell the person afterwards.

    A verb with a ``page`` (the name of an admin URL that takes the record's id) opens that page instead.
    """

    name: str
    label: str
    permission: str
    icon: str
    hint: str
    run: Callable[[HttpRequest, Any], str] | None = None
    page: str = ""
    applies: Callable[[Any], bool] = lambda _: True
    style: str = "plain"

    def allowed(self, request: HttpRequest) -> bool:
        """Whether the person has the verb's permission (of the app ``mcpregistry`` unless it names another)."""
        whole = self.permission if "." in self.permission else f"mcpregistry.{self.permission}"
        return bool(request.user.has_perm(whole))


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # not to be subscripted at run time
    """Counts at most 10,000 rows: nobody pages further, and counting millions is slow."""

    most = 10_000

    @cached_property
    def count(self) -> int:
        return cast(models.QuerySet[Any], self.object_list)[: self.most].count()


class RecordAdmin(ModelAdmin):
    """A record that people edit, through the services."""

    verbs: tuple[Verb, ...] = ()
    change_form_outer_before_template = "admin/mcpregistry/record.html"
    formfield_overrides: dict[Any, Any] = {
        models.TextField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 3})},
        models.JSONField: {"form_class": JsonField},
    }
    list_per_page = 50
    list_filter_sheet = True

    def __init__(self, model: type[models.Model], admin_site: Any) -> None:
        super().__init__(model, admin_site)
        for name in sealed(model).values():  # Django asks us before the record: so nobody reads what is sealed
            setattr(self, name, _told(name))

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Who may see which records is said in one place for all faces: ``models.visibility``."""
        rows = super().get_queryset(request)
        return rows.visible_to(request.user) if isinstance(rows, VisibleQuerySet) else rows

    def save(self, request: HttpRequest, row: Any, form: ModelForm[Any]) -> None:
        """Call the service that saves this kind of record."""
        raise NotImplementedError

    def remove(self, request: HttpRequest, row: Any) -> None:
        """Call the service that deletes this kind of record."""
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        self.save(request, obj, form)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.remove(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        for row in queryset:
            self.remove(request, row)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """The right to delete a record covers what hangs on it, such as the tokens of an agent."""
        listed, counts, _, protected = super().get_deleted_objects(objs, request)
        return listed, counts, set(), protected

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id) if object_id else None
        extra = {"verbs": self.verbs_for(request, row)} | (self.overview(request, row) if row else {})
        extra |= extra_context or {}
        try:
            return super().changeform_view(request, object_id, form_url, extra)
        except SlipsnisseError as error:  # nothing was saved: the same form once more, with what it holds
            request.refusal = error  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> type[ModelForm[Any]]:
        form = super().get_form(request, obj, change, **kwargs)
        refusal = getattr(request, "refusal", None)
        return form if refusal is None else _refused_form(form, refusal)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except SlipsnisseError as error:
            return self._refused(request, error, request.path)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> HttpResponse:
        if obj is not None and not self.has_change_permission(request, obj):
            show_unseen(obj)  # a form must hold what is stored, a page that is only read need not
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        for row in page.result_list:
            self.prepare(row)
            show_unseen(row, 200)
        return page

    def prepare(self, row: Any) -> None:
        """Work out what a list shows of this row from what is stored."""

    def overview(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the record's page shows besides the form."""
        return {}

    def _refused(self, request: HttpRequest, error: SlipsnisseError, where: str) -> HttpResponseRedirect:
        self.message_user(request, printable(str(error), 1_000), messages.ERROR)
        return HttpResponseRedirect(where)

    # Verbs

    def verbs_for(self, request: HttpRequest, row: Any) -> list[tuple[Verb, str]]:
        """The buttons that this person may press on this record now, with their addresses."""
        if row is None:
            return []
        fitting = [verb for verb in self.verbs if verb.allowed(request) and verb.applies(row)]
        return [(verb, self._verb_url(verb, row)) for verb in fitting]

    def _verb_url(self, verb: Verb, row: Any) -> str:
        if verb.page:
            return reverse(f"admin:{verb.page}", args=[row.pk])
        return reverse(f"admin:{self._name('verb')}", args=[row.pk, verb.name])

    def _name(self, what: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{what}"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        return [path("<path:object_id>/do/<slug:name>/", view, name=self._name("verb")), *super().get_urls()]

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """Run one verb: POST only, with the verb's own permission; a refusal is shown as a message."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb = next((verb for verb in self.verbs if verb.name == name and verb.run), None)
        row = self.get_object(request, object_id)
        if verb is None or verb.run is None or row is None:
            raise Http404
        if not verb.allowed(request) or not self.has_view_permission(request, row):
            raise PermissionDenied
        back = reverse(f"admin:{self._name('change')}", args=[row.pk])
        try:
            told = verb.run(request, row)
        except SlipsnisseError as error:
            return self._refused(request, error, back)
        self.message_user(request, told, messages.SUCCESS)
        return HttpResponseRedirect(back)

    # History

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Who changed which field when. Older versions cannot be put back: that would pass by the services."""
        row = self.get_object(request, object_id)
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not self.has_view_or_change_permission(request, row):
            raise PermissionDenied
        context = self.admin_site.each_context(request) | {
            "title": f"History of {printable(str(row), 200)}",
            "opts": self.opts,
            "object": row,
            "versions": versions(row),
            "back": reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[quote(row.pk)]),
        }
        return TemplateResponse(request, "admin/mcpregistry/history.html", context)


def _told(name: str) -> Callable[[Any], str]:
    """How a sealed column looks to whoever may only look: the names in it, or whether it is set."""

    @display(description=name.replace("_", " "))
    def told(row: Any) -> str:
        try:
            held = getattr(row, name)
        except ConfigInvalid:
            return "stored, but it no longer opens"
        if isinstance(held, dict):
            return masked(held)
        return MASK if held else ""

    return cast(Callable[[Any], str], told)


def _refused_form(form: type[ModelForm[Any]], refusal: SlipsnisseError) -> type[ModelForm[Any]]:
    """The form that finds wrong what the service has refused, so the person goes on with what was typed."""

    class Refused(form):  # type: ignore[misc, valid-type]
        def clean(self) -> None:
            super().clean()
            raise ValidationError(printable(str(refusal), 1_000))

    return Refused


class ReadOnlyAdmin(RecordAdmin):
    """An operational row: looked at, never edited by hand."""

    paginator = CappedPaginator
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def show_unseen(row: models.Model, limit: int = LIMIT) -> None:
    """Name the invisible characters in the loaded texts of a record that is about to be shown, not saved."""
    for field in row._meta.concrete_fields:
        text = row.__dict__.get(field.attname)
        if isinstance(text, str) and not field.primary_key:
            setattr(row, field.attname, printable(text, limit))


def versions(row: Any) -> list[dict[str, Any]]:
    """The newest versions of a record with the fields that each changed; secrets by name only."""
    history = getattr(row, "history", None)
    if history is None:
        return []
    found = list(history.select_related("history_user")[: _VERSIONS_SHOWN + 1])
    pairs = zip(found, [*found[1:], None], strict=True)
    return [
        {"at": new.history_date, "by": new.history_user, "what": new.get_history_type_display(), "changes": changes}
        for new, old in list(pairs)[:_VERSIONS_SHOWN]
        if (changes := _changes(old, new)) is not None
    ]


def _changes(old: Any, new: Any) -> list[tuple[str, str, str]] | None:
    """(field, before, after) of two versions; None when nothing that a person sets has changed."""
    if old is None:
        return []
    # Not ``diff_against``: it leaves out what no form edits, such as the lifecycle and sealed secrets.
    differ = [f for f in new.tracked_fields if getattr(old, f.attname) != getattr(new, f.attname)]
    secrets = sealed(new.instance_type)
    return [_change(f, getattr(old, f.attname), getattr(new, f.attname), secrets) for f in differ] or None


def _change(field: models.Field[Any, Any], before: Any, after: Any, secrets: dict[str, str]) -> tuple[str, str, str]:
    """That a secret changed is told, what it held is not."""
    if field.name in secrets:
        return secrets[field.name].replace("_", " "), "•••", "•••"
    return str(field.verbose_name), "" if before is None else str(before), "" if after is None else str(after)
