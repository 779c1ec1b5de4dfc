"""The page behind an invitation's link: a name, a password, and one is in.

The link's secret stands behind ``#``, so no request has it in its address; a script puts it into
the form.
"""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib import admin
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_post_parameters

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services.access import invitations
from mcpregistry.web.pages import add_security_headers
from mcpregistry.web.second_factor import remember


class JoinForm(forms.Form):
    """What the invited person chooses; ``code`` is what the link holds."""

    code = forms.CharField(max_length=200, label=_("Invitation code"), strip=True)
    username = forms.CharField(max_length=150, label=_("User name"))
    password = forms.CharField(max_length=4096, strip=False, label=_("Password"))
    again = forms.CharField(max_length=4096, strip=False, label=_("Repeat the password"))

    def clean_again(self) -> str:
        """Both must be the same."""
        if self.cleaned_data["again"] != self.cleaned_data.get("password"):
            raise forms.ValidationError(_("The two passwords do not match."))
        return cast(str, self.cleaned_data["again"])


@sensitive_post_parameters("code", "password", "again")
def join(request: HttpRequest) -> HttpResponse:
    """The form; on a POST that holds, the account is made and the person logged in."""
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(("GET", "HEAD", "POST"))
    form = JoinForm(request.POST if request.method == "POST" else None)
    problem = ""
    if form.is_valid():
        given = form.cleaned_data
        try:
            user = invitations.accept(
                raw=given["code"], username=given["username"], password=given["password"]
            )
        except SlipsnisseError as error:
            problem = str(error)
        else:
            return _log_in(request, user)
    context = admin.site.each_context(request) | {
        "title": _("Join"),
        "form": form,
        "problem": problem,
    }
    status = 400 if problem or form.errors else 200
    return add_security_headers(render(request, "web/join.html", context, status=status))


def _log_in(request: HttpRequest, user: User) -> HttpResponse:
    login(request, user)
    return remember(HttpResponseRedirect(reverse("admin:index")), user)
