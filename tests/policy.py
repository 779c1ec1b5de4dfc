"""The content security policy of the ASGI shell, for Django's live server, which stands without
that shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from controlplane.request_guard import POLICY


@sync_and_async_middleware
def as_served(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware: what ``controlplane.request_guard`` adds to pages that set no policy themselves.

    Of both kinds: one that only knows threads would take one for each request of an asynchronous
    client.
    """
    if iscoroutinefunction(get_response):

        async def answer_later(request: Any) -> HttpResponseBase:
            return _with_policy(await get_response(request))

        return answer_later
    return lambda request: _with_policy(get_response(request))


def _with_policy(response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault("Content-Security-Policy", POLICY.decode())
    return response
