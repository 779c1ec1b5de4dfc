"""Routes of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

import subagents.api  # noqa: F401 - adds its operations before the API's addresses are made
from mcpregistry.web.login import login
from mcpregistry.web.second_factor import account, code
from mcpregistry.web.slack import interact

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/login/", login),
    path("admin/login/code/", code, name="login-code"),
    path("account/second-factor/", account, name="second-factor"),
    path("admin/", admin.site.urls),
    path("", include("mcpregistry.api.urls")),
    path("hooks/slack/<uuid:uid>/", interact, name="slack"),
    path("", include("mcpregistry.web.urls")),
]
