"""Pages outside the admin. The fixed words come first: a request's id is none of them."""

from __future__ import annotations

from django.urls import include, path

from mcpregistry.web import definitions
from mcpregistry.web.approvals import detail, figures, history, queue

approvals = [
    path("", queue.queue, name="queue"),
    path("live/", queue.live, name="live"),
    path("history/", history.history, name="history"),
    path("history.csv", history.as_csv, name="history-csv"),
    path("figures/", figures.figures, name="figures"),
    path("figures.csv", figures.as_csv, name="figures-csv"),
    path("figures.json", figures.as_json, name="figures-json"),
    path("<slug:pk>/", detail.detail, name="detail"),
    path("<slug:pk>/live/", detail.live, name="detail-live"),
    path("<slug:pk>/preview/", detail.preview, name="preview"),
    path("<slug:pk>/again/", detail.ask_again, name="again"),
    path("<slug:pk>/alike/", queue.alike, name="alike"),
]

inbox = [
    path("", definitions.inbox, name="inbox"),
    path("clean/<str:slug>/", definitions.approve_clean, name="clean"),
    path("<int:pk>/approve/", definitions.decide, {"verdict": "approve"}, name="approve"),
    path("<int:pk>/reject/", definitions.decide, {"verdict": "reject"}, name="reject"),
    path("<int:pk>/revert/", definitions.decide, {"verdict": "revert"}, name="revert"),
]

urlpatterns = [
    path("approvals/", include((approvals, "approvals"))),
    path("definitions/", include((inbox, "definitions"))),
]
