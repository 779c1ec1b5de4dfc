"""Addresses of this room: the versioned API with its documentation page, and the metrics."""

from __future__ import annotations

from django.urls import path

from mcpregistry.api.metrics import metrics
from mcpregistry.api.v1 import api

urlpatterns = [
    path("api/v1/", api.urls),
    path("metrics", metrics, name="metrics"),
]
