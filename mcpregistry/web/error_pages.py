"""What people see of an address that is not there or not theirs: a page of the site that says what to do next.

Programs get what they got before: an answer under ``/api/`` or ``/mcp/`` is never a page.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from mcpregistry.web.pages import refusal, sealed

_FOR_PROGRAMS = ("/api/", "/mcp/", "/hooks/", "/static/")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: the address is wrong, or what was there is deleted."""
    if not _for_people(request):
        return defaults.page_not_found(request, exception)
    remedy = "The address is wrong, or the record was deleted. Search everything with Ctrl K, or go to the overview."
    return sealed(refusal(request, 404, "There is no such page", remedy))


def denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403: the person's role does not allow it."""
    if not _for_people(request):
        return defaults.permission_denied(request, exception)
    remedy = "Ask an administrator for a role that includes it. Your role is on your page under People."
    return sealed(refusal(request, 403, "You do not have permission for this page", remedy))


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403: a form whose secret does not fit, most often one that was open while its session ended."""
    remedy = (
        "Nothing was changed. Go back, reload the page and send the form again. Cookies must be allowed for this site."
    )
    return sealed(refusal(request, 403, "This form is out of date", remedy))


def _for_people(request: HttpRequest) -> bool:
    return hasattr(request, "user") and not request.path.startswith(_FOR_PROGRAMS)
