"""The pages of history: one version of a record, the whole site at a time, and the button that
undoes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, Resolver404, resolve, reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.widgets import UnfoldAdminSplitDateTimeWidget

from controlplane.history import past_versions, undo_changes, version_lists
from controlplane.history.proposals import Items, carry_out, propose, reason_at, reason_of
from controlplane.history.restore_rights import may_change, may_see
from controlplane.history.version_recording import LATEST
from mcpregistry.admin.base import actor
from mcpregistry.domain.errors import Conflict, Denied, NotFound, SlipsnisseError
from mcpregistry.domain.text.display import name_with_kind, show_invisible_characters

_SITE = "mcpregistry.change_configuration"


def version(request: HttpRequest, label: str, number: int) -> HttpResponse:
    """What putting one version back would change; a POST does exactly that."""
    try:
        found = past_versions.find(label, number)
    except NotFound as error:
        return _redirect_with_error(request, error, reverse("admin:index"))
    if not may_change(request.user, found.instance_type):
        raise PermissionDenied
    name = show_invisible_characters(past_versions.name_version(found), 200)
    at = f"{timezone.localtime(found.history_date):%-d %b %Y %H:%M:%S}"
    return _show_proposal(
        request,
        lambda: [past_versions.item_of(found)],
        title=_("%(record)s, as of %(time)s") % {"record": name, "time": at},
        reason=reason_of(found),
        back=_page_of(found),
        more={"version": found},
    )


class _MomentWidget(UnfoldAdminSplitDateTimeWidget):
    """Date and time with the browser's own choosers."""

    def __init__(self) -> None:
        super().__init__()
        for part, kind in zip(self.widgets, ("date", "time"), strict=True):
            part.input_type = kind
            part.attrs["step"] = 1


class MomentForm(forms.Form):
    """The time that the site shall be as of."""

    at = forms.SplitDateTimeField(
        label=_lazy("Restore the state at"),
        help_text=_lazy("Date and time in UTC."),
        widget=_MomentWidget,
    )


def site(request: HttpRequest) -> HttpResponse:
    """The newest changes of everything, and the whole configuration as of a time: first what would
    change."""
    if not request.user.has_perm("mcpregistry.view_configuration"):
        raise PermissionDenied
    moment = _moment(request.GET.get("at", ""))
    form = MomentForm(request.GET if "at_0" in request.GET else None)
    if "at_0" in request.GET and form.is_valid():
        return HttpResponseRedirect(f"{request.path}?at={int(form.cleaned_data['at'].timestamp())}")
    more: dict[str, Any] = {"form": form, "may": request.user.has_perm(_SITE)}
    if moment is None:
        return _render_page(request, _("History of the site"), more | {"newest": newest(request)})
    if not request.user.has_perm(_SITE):
        raise PermissionDenied
    title = _("The site, as of %(time)s") % {
        "time": f"{timezone.localtime(moment):%-d %b %Y %H:%M:%S}"
    }
    more["moment"] = moment
    more["since"] = [
        f"{kind.section}: {show_invisible_characters(name, 100)}"
        for kind, name in past_versions.since(moment)
    ]
    return _show_proposal(
        request,
        lambda: past_versions.list_items_at(moment),
        title=title,
        reason=reason_at(moment),
        back=reverse("history-site"),
        more=more,
    )


def undo(request: HttpRequest) -> HttpResponse:
    """Take back what this person did last, within its minute."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    kept = request.session.get(LATEST)
    back = _back(request)
    try:
        if not kept:
            raise NotFound(
                "There is nothing to undo.",
                remedy="Restore an earlier version from the history of a record.",
            )
        if request.POST.get("at") != undo_changes.identity(kept):
            raise Conflict(
                "You have made another change after this one.",
                remedy="Reload the page to see what can be undone now.",
            )
        request.session.pop(LATEST)
        report = undo_changes.undo(
            made=kept["made"],
            at=datetime.fromtimestamp(kept["at"], UTC),
            user=request.user,  # type: ignore[arg-type]
            actor=actor(request),
            now=timezone.now(),
        )
    except SlipsnisseError as error:
        return _redirect_with_error(request, error, back)
    request.session.pop(LATEST, None)
    _tell(request, _("The change was undone."), report.notes)
    return HttpResponseRedirect(_page_or_list(request, back))


def latest(request: HttpRequest) -> dict[str, Any]:
    """For every page: what may be undone now, looked for where a page shows it. A context
    processor."""
    if (
        not hasattr(request, "session")
        or LATEST not in request.session
        or not request.user.is_authenticated
    ):
        return {}
    return {
        "undoable": SimpleLazyObject(lambda: undo_changes.latest(request.session, timezone.now()))
    }


def newest(request: HttpRequest) -> list[Any]:
    """The newest versions of what the person may see, and whether they may put each of them
    back."""
    rows = version_lists.newest(lambda model: may_see(request.user, model))
    metas = [(row, row.instance_type._meta) for row in rows]
    return [
        (
            row,
            meta.label_lower,
            name_with_kind(meta.verbose_name, past_versions.name_version(row)),
            _can_be_put_back(request, row),
        )
        for row, meta in metas
    ]


def _can_be_put_back(request: HttpRequest, row: Any) -> bool:
    return row.history_type != "-" and may_change(request.user, row.instance_type)


# Parts of a page


def _show_proposal(
    request: HttpRequest,
    items: Items,
    *,
    title: str,
    reason: str,
    back: str,
    more: dict[str, Any],
) -> HttpResponse:
    problem = ""
    status = 409 if request.method == "POST" else 200
    try:
        if request.method == "POST":
            shown = request.POST.get("shown", "")
            done = carry_out(
                items, actor=actor(request), user=request.user, shown=shown, reason=reason
            )
            _tell(request, _summarize_report(done.report), done.report.notes)
            return HttpResponseRedirect(
                back if not done.report.removed else reverse("history-site")
            )
    except SlipsnisseError as error:
        problem = show_invisible_characters(str(error), 2_000)
    try:
        more["proposal"] = propose(items, actor=actor(request), user=request.user)
    except Denied as error:
        problem = show_invisible_characters(str(error), 2_000)
        status = 403
    except SlipsnisseError as error:
        problem = problem or show_invisible_characters(str(error), 2_000)
    return _render_page(request, title, more | {"problem": problem, "back": back}, status=status)


def _render_page(
    request: HttpRequest, title: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    whole = admin.site.each_context(request) | {"title": title} | context
    return TemplateResponse(request, "history/page.html", whole, status=status)


def _summarize_report(report: Any) -> str:
    parts = [
        (report.changed, _("changed")),
        (report.made, _("added again")),
        (report.removed, _("deleted")),
    ]
    told = ", ".join(f"{len(rows)} {word}" for rows, word in parts if rows)
    return (
        _("Restored: %(changes)s.") % {"changes": told}
        if told
        else _("There was nothing to change.")
    )


def _tell(request: HttpRequest, told: str, notes: Sequence[str]) -> None:
    messages.success(request, told)
    for note in notes[:20]:
        messages.warning(request, show_invisible_characters(note, 500))


def _redirect_with_error(request: HttpRequest, error: SlipsnisseError, where: str) -> HttpResponse:
    messages.error(request, show_invisible_characters(str(error), 1_000))
    return HttpResponseRedirect(where)


def _page_of(found: Any) -> str:
    meta = found.instance_type._meta
    live = past_versions.live_row(found)
    try:
        if live is None:
            return reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
        return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[live.pk])
    except NoReverseMatch:
        return reverse("history-site")


def _back(request: HttpRequest) -> str:
    """The page that the button stood on, if it is one of ours."""
    where = request.headers.get("Referer", "")
    safe = url_has_allowed_host_and_scheme(
        where, {request.get_host()}, require_https=request.is_secure()
    )
    return where if safe else reverse("admin:index")


def _page_or_list(request: HttpRequest, where: str) -> str:
    """The page ``where``, or the list of its records if the record that it shows no longer
    exists."""
    try:
        found = resolve(urlsplit(where).path)
    except Resolver404:
        return where
    key = found.kwargs.get("object_id", found.kwargs.get("pk"))
    for model, pages in admin.site._registry.items() if key is not None else ():
        prefix = f"{model._meta.app_label}_{model._meta.model_name}"
        if (found.url_name or "").startswith(f"{prefix}_") and pages.get_object(
            request, unquote(str(key))
        ) is None:
            return reverse(f"admin:{prefix}_changelist")
    return where


def _moment(text: str) -> datetime | None:
    if not text.isdecimal() or len(text) > 11:
        return None
    moment = datetime.fromtimestamp(int(text), UTC)
    return min(moment, timezone.now())
