"""Pages outside the admin. The fixed words come first: a request's id is none of them."""

from __future__ import annotations

from django.urls import include, path

from mcpregistry.web import definitions, usage
from mcpregistry.web.approvals import detail, history, queue, statistics_page
from mcpregistry.web.docs import views as docs

approvals = [
    path("", queue.queue, name="queue"),
    path("live/", queue.live, name="live"),
    path("history/", history.history, name="history"),
    path("history.csv", history.as_csv, name="history-csv"),
    path("figures/", statistics_page.figures, name="figures"),
    path("figures.csv", statistics_page.as_csv, name="figures-csv"),
    path("figures.json", statistics_page.as_json, name="figures-json"),
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

figures_of_calls = [
    path("", usage.index, name="index"),
    path("usage.csv", usage.as_csv, name="csv"),
    path("failures/", usage.failures, name="failures"),
]

documents = [
    path("", docs.index, name="index"),
    path("images/<str:name>", docs.image, name="image"),
    path("errors/<str:code>/", docs.error, name="error"),
    path("<slug:slug>/", docs.document, name="document"),
]

urlpatterns = [
    path("approvals/", include((approvals, "approvals"))),
    path("definitions/", include((inbox, "definitions"))),
    path("usage/", include((figures_of_calls, "usage"))),
    path("docs/", include((documents, "docs"))),
]
