"""The page behind "Confirm": a person looks at exactly what would run, be reached or get a key,
then allows it.

Opening the page decides nothing; only a POST with the fingerprint of what was shown does, and the
service refuses one that is no longer the record's. Servers and providers have one each.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from mcpregistry.admin.base import actor
from mcpregistry.admin.record_page import Record, RecordPage
from mcpregistry.domain.errors import SlipsnisseError

MAY_CONFIRM = "mcpregistry.confirm_server"


class ConfirmPage(RecordPage[Record]):
    """A view of ``RecordAdmin``, which gives it records and addresses. What it shows and calls is
    its subclass's."""

    template: ClassVar[str]
    permissions: ClassVar[tuple[str, ...]] = (MAY_CONFIRM,)

    def title(self, record: Record) -> str:
        """The page's heading, fit to be shown."""
        raise NotImplementedError

    def facts(self, record: Record) -> dict[str, Any]:
        """What the template shows; ``shown`` is the fingerprint of all that, ``confirmed`` whether
        it is so already."""
        raise NotImplementedError

    def confirm(self, record: Record, *, shown: str, actor: str, user: object) -> str:
        """Confirm what was shown; returns what the person is told. Raises SlipsnisseError when it
        is refused."""
        raise NotImplementedError

    def page(self, request: HttpRequest, record: Record) -> HttpResponse:
        """Show the facts; a POST confirms exactly what was shown."""
        return (
            self._decide(request, record)
            if request.method == "POST"
            else self._show(request, record)
        )

    def _decide(self, request: HttpRequest, record: Record) -> HttpResponse:
        shown = request.POST.get("shown", "")
        try:
            told = self.confirm(record, shown=shown, actor=actor(request), user=request.user)
        except SlipsnisseError as error:
            record.refresh_from_db()
            return self._show(request, record, refusal=str(error))
        self.admin.message_user(request, told, messages.SUCCESS)
        return HttpResponseRedirect(self._change(record))

    def _show(self, request: HttpRequest, record: Record, refusal: str = "") -> HttpResponse:
        context: dict[str, Any] = self.admin.admin_site.each_context(request) | {
            "title": self.title(record),
            "opts": self.admin.opts,
            "record": record,
            "original": record,
            "refusal": refusal,
            "back": self._change(record),
        }
        try:
            context |= self.facts(record)
        except SlipsnisseError as error:
            context |= {"refusal": str(error)}
        return TemplateResponse(request, self.template, context, status=409 if refusal else 200)

    def _change(self, record: Record) -> str:
        opts = self.admin.opts
        return reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=[record.pk])
