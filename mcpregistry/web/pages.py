"""What every page outside the admin shares: who may see it, its headers, its frame and navigation.

Pages are plain HTML that htmx keeps fresh. No inline script, no ``eval``: the policy below holds
even where the ASGI shell (``controlplane/request_guard.py``) does not stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.utils.translation import gettext as _

from mcpregistry.domain.errors import NotFound, SlipsnisseError

_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
View = Callable[..., HttpResponse]


def page(permission: str | None, *methods: str) -> Callable[[View], View]:
    """A page for people with this permission (app ``mcpregistry``), for all who are logged in where
    it is None; ``methods`` besides GET and HEAD."""
    allowed = ("GET", "HEAD", *methods)

    def guard(view: View) -> View:
        @wraps(view)
        def answer_guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            answer = _turn_away(request, permission, allowed) or _answer(
                request, lambda: view(request, *args, **kwargs)
            )
            return add_security_headers(answer)

        return answer_guarded

    return guard


def _turn_away(
    request: HttpRequest, permission: str | None, allowed: tuple[str, ...]
) -> HttpResponse | None:
    if request.method not in allowed:
        return HttpResponseNotAllowed(allowed)
    if not request.user.is_authenticated:
        return _to_login(request)
    if permission and not request.user.has_perm(f"mcpregistry.{permission}"):
        remedy = _("Ask an administrator for the viewer, operator or approver role.")
        return refusal(request, 403, _("You do not have permission for this page"), remedy)
    return None


def _answer(request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
    try:
        return view()
    except NotFound as error:
        return refusal(request, 404, error.message, error.remedy)
    except SlipsnisseError as error:
        return refusal(request, 400, error.message, error.remedy)


def _to_login(request: HttpRequest) -> HttpResponse:
    """To the login and back to this very page. What a script asks for sends the whole page
    there."""
    if "HX-Request" not in request.headers:
        return redirect_to_login(request.get_full_path())
    response = HttpResponse(status=401)
    response["HX-Refresh"] = "true"
    return response


def add_security_headers(response: HttpResponse) -> HttpResponse:
    """The same with the headers of every page here."""
    response.headers.setdefault("Content-Security-Policy", _POLICY)
    response.headers.setdefault("Cache-Control", "no-store")
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "same-origin"
    return response


def person(request: HttpRequest) -> User:
    """Who is logged in; only behind ``page``."""
    return cast(User, request.user)


def show(
    request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    """A whole page in the site's frame."""
    return render(
        request, template, admin.site.each_context(request) | dict(context), status=status
    )


def refusal(request: HttpRequest, status: int, what: str, remedy: str = "") -> HttpResponse:
    """A page that says what was refused and what to do next."""
    return show(request, "web/refusal.html", {"title": what, "remedy": remedy}, status)
