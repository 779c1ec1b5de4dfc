"""The way in with a password: Django's own page, behind the count of ``services.access.logins``.

A person with a second factor is asked for its code next (``web.second_factor``), and is logged in
only then.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import logout
from django.core.exceptions import ValidationError
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from unfold.forms import AuthenticationForm

from mcpregistry.services.access import second_factor
from mcpregistry.web.second_factor import (
    ask_later,
    attempt_of,
    describe_lockout,
    remember,
    seconds_until,
)


class LoginForm(AuthenticationForm):
    """The form of name and password; says when to try again where too many were wrong."""

    locked_for = 0  # seconds
    code_is_next = False

    def clean(self) -> dict[str, Any]:
        """Count, then look at the password, then forget or remember the attempt."""
        account = self.cleaned_data.get("username")
        password = self.cleaned_data.get("password")
        if not account or not password or self.request is None:
            return dict(super().clean())
        attempt = attempt_of(self.request, account)
        self._refuse(attempt.begin())
        try:
            cleaned = super().clean()
        except ValidationError:
            self._refuse(attempt.record_failure())
            raise
        # what was wrong before is forgotten when the code is right
        if ask_later(self.request, self.get_user()):
            self.code_is_next = True
            raise ValidationError(_("Enter the code of your second factor."), code="second_step")
        attempt.record_success()
        return dict(cleaned)

    def _refuse(self, until: Any) -> None:
        if until is not None:
            self.locked_for = seconds_until(until)
            raise ValidationError(describe_lockout(until), code="locked")


def login(request: Any) -> HttpResponse:
    """The admin's log-in. A lock is 429; a browser that got in is known from then on."""
    if (
        request.method == "GET"
        and request.half.is_authenticated
        and not request.user.is_authenticated
    ):
        if not second_factor.load_factor_standing(request.half.pk).uid:
            return HttpResponseRedirect(reverse("second-factor"))
        logout(request)  # a session of before the second factor was set up
    response: Any = admin.site.login(request)
    form = (getattr(response, "context_data", None) or {}).get("form")
    if getattr(form, "code_is_next", False):
        return HttpResponseRedirect(f"{reverse('login-code')}?{request.GET.urlencode()}")
    if locked_for := getattr(form, "locked_for", 0):
        response.status_code = 429
        response["Retry-After"] = str(locked_for)
    if request.method == "POST" and request.user.is_authenticated:
        remember(response, request.user)
    return response
