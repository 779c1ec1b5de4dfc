"""The page of a request that failed: where the database fails for a while, it says so and what to
do."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views import defaults

from mcpregistry.database_errors import is_passing, make_unavailable_error
from mcpregistry.web.pages import add_security_headers


def server_error(request: HttpRequest) -> HttpResponse:
    """Django calls it while it handles the error. Asks the database for nothing, so it has no
    navigation."""
    error = sys.exc_info()[1]
    if error is None or not is_passing(error):
        return defaults.server_error(request)
    page = render_to_string("web/unavailable.html", {"error": make_unavailable_error(error)})
    return add_security_headers(HttpResponse(page, status=503, headers={"Retry-After": "1"}))
