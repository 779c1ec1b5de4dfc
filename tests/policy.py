"""The content security policy of the ASGI shell, for Django's live server, which stands without that shell."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from controlplane.requests import POLICY


class AsServed:
    """Middleware: what ``controlplane.requests`` adds to pages that set no policy themselves."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY.decode())
        return response
