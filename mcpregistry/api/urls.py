"""Addresses of this room: the versioned API with its documentation page, what others read as a
registry, and the metrics."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from mcpregistry.api import published_registry
from mcpregistry.api.errors import no_address, refusal
from mcpregistry.api.metrics import metrics
from mcpregistry.api.v1 import api


@csrf_exempt
def unknown_address(request: HttpRequest) -> HttpResponse:
    """404 in the form of every refusal, for whatever method."""
    return refusal(no_address())


urlpatterns = [
    path("api/v1/", api.urls),
    re_path(r"^api(?:/|$)", unknown_address),
    *(
        path(f"registry/{version}/servers{rest}", view, name=f"{name}-{version}")
        # hosts of before ask for v0, whose answers have the same shape
        for version in ("v0.1", "v0")
        for rest, view, name in (
            ("", published_registry.list_servers, "published-servers"),
            # A name has one slash, which clients write as %2F; what reaches us is decoded, or not
            # encoded at all.
            ("/<path:name>/versions/<str:wanted>", published_registry.version, "published-version"),
            ("/<path:name>/versions", published_registry.versions, "published-versions"),
        )
    ),
    path("metrics", metrics, name="metrics"),
]
