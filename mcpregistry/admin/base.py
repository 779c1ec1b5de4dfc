"""What all our admin pages share: the services change records, refusals become messages, histories.

* A record is saved and deleted by a verb of ``mcpregistry.services``, so every face has the same
  rules and the same audit. What a service refuses is shown to the person, never a server error.
* Buttons of one record (``verbs``) are POST forms with a permission each: nothing changes by a GET.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import models, transaction
from django.forms import ModelForm
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from mcpregistry.admin.concurrent_edits import ConcurrentAdmin, ConcurrentForm
from mcpregistry.admin.deletion_preview import without_relations
from mcpregistry.admin.fields import MASK, JsonField, mask_pairs
from mcpregistry.admin.question_page import question
from mcpregistry.admin.versions import VersionsAdmin
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.servers.redacted_env import ADDRESSES, mask_record_secrets
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import LIMIT, show_invisible_characters
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.models.visibility import VisibleQuerySet
from mcpregistry.services.configuration.dependents import find_dependents, name_dependents


def actor(request: HttpRequest) -> str:
    """The person as the audit log names them; the prefix keeps an agent's slug from looking like
    one."""
    return f"user:{request.user.get_username()}"


@dataclass(frozen=True, slots=True)
class Verb:
    """One button on a record's page. ``run`` returns what to tell the person afterwards.

    A verb with a ``page`` (the name of an admin URL that takes the record's id) opens that page
    instead. A serious one ``asks``: the sentences on what will happen are shown first, and it runs
    when the person says so to exactly these.
    """

    name: str
    label: str | Promise
    permission: str
    icon: str
    hint: str | Promise
    run: Callable[[HttpRequest, Any], str] | None = None
    page: str = ""
    applies: Callable[[Any], bool] = lambda _: True
    style: str = "plain"
    asks: Callable[[Any], list[str]] | None = None

    def is_allowed(self, request: HttpRequest) -> bool:
        """Whether the person has the verb's permission (of the app ``mcpregistry`` unless it names
        another)."""
        whole = self.permission if "." in self.permission else f"mcpregistry.{self.permission}"
        return bool(request.user.has_perm(whole))


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # not to be subscripted at run time
    """Counts at most a thousand rows behind the page that is shown, for counting millions is
    slow."""

    most = 1_000
    template_name = "admin/mcpregistry/pages_capped.html"

    @cached_property
    def count(self) -> int:
        rows = cast(models.QuerySet[Any], self.object_list)
        # without what each row is shown with
        return rows.order_by().values("pk")[: self.most].count()

    @property
    def told(self) -> str:
        """The count for people; with a plus where there may be more."""
        return f"{self.count:,}{'+' if self.count >= self.most else ''}"


class RecordAdmin(ConcurrentAdmin, VersionsAdmin):
    """A record that people edit, through the services."""

    form: ClassVar[Any] = ConcurrentForm
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
        # Django asks us before the record: so nobody reads what is sealed
        for name in find_sealed_columns(model).values():
            setattr(self, name, _make_secret_display(name))

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Who may see which records is said in one place for all faces: ``models.visibility``."""
        rows = super().get_queryset(request)
        return rows.visible_to(request.user) if isinstance(rows, VisibleQuerySet) else rows

    def get_paginator(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Paginator:  # type: ignore[type-arg]
        made = super().get_paginator(request, *args, **kwargs)
        page = request.GET.get("p", "")
        if isinstance(made, CappedPaginator) and page.isdecimal() and len(page) < 7:
            made.most += int(page) * made.per_page
        return made

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
        with transaction.atomic():
            for row in queryset:
                self.remove(request, row)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """The right to delete a record covers its parts, such as the tools of a server. Records
        that need a right of their own prevent the deletion, and the page names them.
        """
        listed, counts, _, protected = without_relations(super().get_deleted_objects(objs, request))
        found = [each for row in objs for each in find_dependents(row)]
        kept = [(kind, row) for kind, row in found if not request.user.has_perm(kind.permission)]
        names = [
            gettext("{name} (you do not have permission to delete it)").format(name=name)
            for name in name_dependents(kept)
        ]
        return listed, counts, set(), [*protected, *names]

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id) if object_id else None
        extra = {
            "verbs": self.verbs_for(request, row),
            "show_history": hasattr(self.model, "history"),
        }
        extra |= self.overview(request, row) if row else {}
        extra |= extra_context or {}
        try:
            return super().changeform_view(request, object_id, form_url, extra)
        except SlipsnisseError as error:
            # nothing was saved: the same form once more, with what it holds
            request.refusal = error  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> type[ModelForm[Any]]:
        form = super().get_form(request, obj, change, **kwargs)
        refusal = getattr(request, "refusal", None)
        return form if refusal is None else _make_refused_form(form, refusal)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except SlipsnisseError as error:
            return self._redirect_with_error(request, error, request.path)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().changelist_view(request, extra_context)
        except SlipsnisseError as error:
            if request.method != "POST":
                raise
            # of an action on several records
            return self._redirect_with_error(request, error, request.get_full_path())

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        *args: Any,
        obj: Any = None,
        **kwargs: Any,
    ) -> HttpResponse:
        if obj is not None and not self.has_change_permission(request, obj):
            show_unseen(obj)  # a form must hold what is stored, a page that is only read need not
            _hide_secrets(obj)
        # the form stands below the overview, out of sight
        if obj is not None and context.get("errors"):
            messages.error(
                request, gettext("Nothing was saved. Correct the fields that are marked below.")
            )
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        for row in page.result_list:
            self.prepare(row)
            show_unseen(row, 200)
            if not self.has_change_permission(request, row):
                _hide_secrets(row)
        return page

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """Search addresses, which may hold a secret, only for people who may change the record."""
        found = super().get_search_fields(request)
        return (
            found
            if self.has_change_permission(request)
            else [name for name in found if name not in ADDRESSES]
        )

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Refuse conditions in the address about fields that can hold a secret, which lists mask:
        its letters could be guessed one by one."""
        field = next(
            (each for each in self.opts.concrete_fields if each.name == lookup.partition("__")[0]),
            None,
        )
        may_hold_secrets = isinstance(field, models.JSONField | models.TextField) or (
            field and field.name in ADDRESSES
        )
        return not may_hold_secrets and bool(super().lookup_allowed(lookup, value, request))

    def prepare(self, row: Any) -> None:
        """Work out what a list shows of this row from what is stored."""

    def overview(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the record's page shows besides the form."""
        return {}

    def _redirect_with_error(
        self, request: HttpRequest, error: SlipsnisseError, where: str
    ) -> HttpResponseRedirect:
        self.message_user(request, show_invisible_characters(str(error), 1_000), messages.ERROR)
        return HttpResponseRedirect(where)

    # Verbs

    def verbs_for(self, request: HttpRequest, row: Any) -> list[tuple[Verb, str]]:
        """The buttons that this person may press on this record now, with their addresses."""
        if row is None:
            return []
        fitting = [
            verb for verb in self.verbs if self.may(request, verb, row) and verb.applies(row)
        ]
        return [(verb, self._verb_url(verb, row)) for verb in fitting]

    def may(self, request: HttpRequest, verb: Verb, row: Any) -> bool:
        """Whether this person may press this button of this record."""
        return verb.is_allowed(request)

    def _verb_url(self, verb: Verb, row: Any) -> str:
        if verb.page:
            return reverse(f"admin:{verb.page}", args=[row.pk])
        return reverse(f"admin:{self._name('verb')}", args=[row.pk, verb.name])

    def _name(self, what: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{what}"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        return [
            path("<path:object_id>/do/<slug:name>/", view, name=self._name("verb")),
            *super().get_urls(),
        ]

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """Run one verb: POST only, with the verb's own permission; a refusal is shown as a
        message."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb = next((verb for verb in self.verbs if verb.name == name and verb.run), None)
        row = self.get_object(request, object_id)
        if verb is None or verb.run is None or row is None:
            raise Http404
        if not self.may(request, verb, row) or not self.has_view_permission(request, row):
            raise PermissionDenied
        back = reverse(f"admin:{self._name('change')}", args=[row.pk])
        if (
            verb.asks is not None
            and (question := self._question(request, verb, row, back)) is not None
        ):
            return question
        try:
            told = verb.run(request, row)
        except SlipsnisseError as error:
            return self._redirect_with_error(request, error, back)
        self.message_user(request, told, messages.SUCCESS)
        return HttpResponseRedirect(back)

    def _question(
        self, request: HttpRequest, verb: Verb, row: Any, back: str
    ) -> HttpResponse | None:
        """The page that says what a serious verb will do; None once the person has said yes to
        exactly that."""
        assert verb.asks is not None
        sentences = verb.asks(row)
        sure = hash_parts("sure", *sentences)
        if request.POST.get("sure", "") == sure:
            return None
        kept = [("shown", request.POST["shown"])] if "shown" in request.POST else []
        return question(
            request,
            title=f"{verb.label}: {show_invisible_characters(str(row), 200)}",
            label=verb.label,
            icon=verb.icon,
            sentences=sentences,
            sure=sure,
            back=back,
            kept=kept,
            opts=self.opts,
            original=row,
        )


def _make_secret_display(name: str) -> Callable[[Any], str]:
    """How a sealed column looks to whoever may only look: the names in it, or whether it is set."""

    @display(description=name.replace("_", " "))
    def told(row: Any) -> str:
        try:
            held = getattr(row, name)
        except ConfigInvalid:
            return gettext("stored, but it cannot be decrypted")
        if isinstance(held, dict):
            return mask_pairs(held)
        return MASK if held else ""

    return cast(Callable[[Any], str], told)


def _make_refused_form(
    form: type[ModelForm[Any]], refusal: SlipsnisseError
) -> type[ModelForm[Any]]:
    """The form that finds wrong what the service has refused, so the person goes on with what was
    typed."""

    class Refused(form):  # type: ignore[misc, valid-type]
        def clean(self) -> None:
            super().clean()
            raise ValidationError(show_invisible_characters(str(refusal), 1_000))

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


def _hide_secrets(row: models.Model) -> None:
    """Mask what is secret in the command and the address of a record that is about to be shown, not
    saved."""
    held = {name: value for name, value in row.__dict__.items() if name in ("command", *ADDRESSES)}
    row.__dict__.update(mask_record_secrets(held))


def show_unseen(row: models.Model, limit: int = LIMIT) -> None:
    """Name the invisible characters in the loaded texts of a record that is about to be shown, not
    saved."""
    for field in row._meta.concrete_fields:
        text = row.__dict__.get(field.attname)
        if isinstance(text, str) and not field.primary_key:
            setattr(row, field.attname, show_invisible_characters(text, limit))
