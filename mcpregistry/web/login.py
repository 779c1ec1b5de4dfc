"""The way in with a password: Django's own page, behind the count of ``services.access.logins``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from unfold.forms import AuthenticationForm

from mcpregistry.db import database_now
from mcpregistry.domain.addresses import place
from mcpregistry.services.access import logins


class LoginForm(AuthenticationForm):
    """The form of name and password; says when to try again where too many were wrong."""

    locked_for = 0  # seconds

    def clean(self) -> dict[str, Any]:
        """Count, then look at the password, then forget or remember the attempt."""
        account, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not account or not password or self.request is None:
            return dict(super().clean())
        attempt = _attempt(self.request, account)
        self._refuse(attempt.begin())
        try:
            cleaned = super().clean()
        except ValidationError:
            self._refuse(attempt.failed())
            raise
        attempt.succeeded()
        return dict(cleaned)

    def _refuse(self, until: Any) -> None:
        if until is None:
            return
        self.locked_for = max(1, round((until - database_now()).total_seconds()))
        minutes = -(-self.locked_for // 60)
        raise ValidationError(
            f"Too many wrong passwords came from here. Try again in {minutes} minute{'' if minutes == 1 else 's'}, at "
            f"{until:%H:%M} UTC; until then no password is looked at. Other addresses, and browsers in which you have "
            "logged in before, are not concerned.",
            code="locked",
        )


def _attempt(request: HttpRequest, account: str) -> logins.Attempt:
    where = place(request.META.get("REMOTE_ADDR", ""))
    return logins.Attempt(account, where, request.COOKIES.get(logins.MARK, ""))


def login(request: HttpRequest) -> HttpResponse:
    """The admin's log-in. A lock is 429; a browser that got in is known from then on."""
    response: Any = admin.site.login(request)
    form = (getattr(response, "context_data", None) or {}).get("form")
    if locked_for := getattr(form, "locked_for", 0):
        response.status_code, response["Retry-After"] = 429, str(locked_for)
    if request.method == "POST" and request.user.is_authenticated:
        response.set_cookie(
            logins.MARK, logins.mark_for(request.user.get_username()), max_age=logins.MARK_AGE,
            httponly=True, samesite="Lax", secure=settings.HTTPS, path="/admin/login/",
        )  # fmt: skip
    return response
