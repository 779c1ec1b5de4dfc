"""Addresses of this room: the versioned API with its documentation page, what others read as a registry, and the metrics."""

from __future__ import annotations

from django.urls import path

from mcpregistry.api import published
from mcpregistry.api.metrics import metrics
from mcpregistry.api.v1 import api

urlpatterns = [
    path("api/v1/", api.urls),
    path("registry/v0.1/servers", published.servers, name="published-servers"),
    # A name has one slash, which clients write as %2F; what reaches us is decoded, or not encoded at all.
    path("registry/v0.1/servers/<path:name>/versions/<str:wanted>", published.version, name="published-version"),
    path("registry/v0.1/servers/<path:name>/versions", published.versions, name="published-versions"),
    path("metrics", metrics, name="metrics"),
]
