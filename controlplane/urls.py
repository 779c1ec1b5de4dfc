"""Routes of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

import subagents.api  # noqa: F401 - adds its operations before the API's addresses are made
from controlplane import site_search
from controlplane.history import api as history_api  # noqa: F401 - adds its operations as well
from controlplane.history import pages as history
from mcpregistry.admin import access_table, analyzer, connect, context_bill, name_filters
from mcpregistry.web.invitation_page import join
from mcpregistry.web.login import login
from mcpregistry.web.second_factor import account, code
from mcpregistry.web.slack import interact

handler500 = "mcpregistry.web.failure_page.server_error"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/login/", login),
    path("admin/login/code/", code, name="login-code"),
    path("account/second-factor/", account, name="second-factor"),
    path("admin/connect/", admin.site.admin_view(connect.connect), name="connect"),
    path("admin/connect/live/", admin.site.admin_view(connect.live), name="connect-live"),
    path("admin/who/", admin.site.admin_view(access_table.show_access_table), name="who"),
    path("admin/who/grant/", admin.site.admin_view(access_table.give), name="who-grant"),
    path("admin/analyzer/", admin.site.admin_view(analyzer.show_analyzer), name="analyzer"),
    path(
        "admin/analyzer/<int:grant_id>/",
        admin.site.admin_view(analyzer.narrow),
        name="analyzer-apply",
    ),
    path("admin/context-bill/", admin.site.admin_view(context_bill.page), name="context-bill"),
    path(
        "admin/context-bill/hide/",
        admin.site.admin_view(context_bill.hide),
        name="context-bill-hide",
    ),
    path("admin/names/<slug:kind>/", admin.site.admin_view(name_filters.names), name="names"),
    path("admin/undo/", admin.site.admin_view(history.undo), name="history-undo"),
    path("admin/history/", admin.site.admin_view(history.site), name="history-site"),
    path(
        "admin/history/<str:label>/<int:number>/",
        admin.site.admin_view(history.version),
        name="history-version",
    ),
    path("search/", site_search.whole, name="find"),
    path("search/hits/", site_search.part, name="find-part"),
    path("join/", join, name="join"),
    re_path(
        r"^admin/(?:auth|mcpregistry|subagents)/$", RedirectView.as_view(pattern_name="admin:index")
    ),
    path("admin/", admin.site.urls),
    path("", include("mcpregistry.api.urls")),
    path("hooks/slack/<uuid:uid>/", interact, name="slack"),
    path("", include("mcpregistry.web.urls")),
]

handler403 = "mcpregistry.web.error_pages.show_denied"
handler404 = "mcpregistry.web.error_pages.not_found"
