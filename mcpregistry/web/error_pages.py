"""What people see of an address that is not there or not theirs: a page of the site that says what
to do next.

Programs get what they got before: an answer under ``/api/`` or ``/mcp/`` is never a page.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views import defaults

from mcpregistry.web.pages import add_security_headers, refusal

_FOR_PROGRAMS = ("/api/", "/mcp/", "/hooks/", "/static/")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: the address is wrong, or what was there is deleted."""
    if not _for_people(request):
        return defaults.page_not_found(request, exception)
    remedy = _(
        "The address is wrong, or the record was deleted. Search the site with Ctrl K, or go to the overview."
    )
    return add_security_headers(refusal(request, 404, _("This page does not exist"), remedy))


def show_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403: the person's role does not allow it."""
    if not _for_people(request):
        return defaults.permission_denied(request, exception)
    remedy = _(
        "Ask an administrator for a role that includes this page. Your own page under Users shows your role."
    )
    return add_security_headers(
        refusal(request, 403, _("You do not have permission for this page"), remedy)
    )


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403: a form whose secret does not fit, most often one that was open while its session
    ended."""
    remedy = _(
        "Nothing was changed. Go back, reload the page and send the form again. Your browser must allow "
        "cookies from this site."
    )
    return add_security_headers(refusal(request, 403, _("This form is out of date"), remedy))


def _for_people(request: HttpRequest) -> bool:
    return hasattr(request, "user") and not request.path.startswith(_FOR_PROGRAMS)
