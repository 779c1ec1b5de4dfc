"""The page that says what a serious action will do and asks, before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise


def question(
    request: HttpRequest,
    *,
    title: str | Promise,
    label: str | Promise,
    icon: str,
    sentences: Sequence[str],
    sure: str,
    back: str,
    kept: Iterable[tuple[str, str]] = (),
    **more: Any,
) -> HttpResponse:
    """What will happen, with a form that sends ``kept`` once more, and ``sure`` as the yes to
    exactly that; ``back`` leads away from it. 409 where the person has said yes to something else,
    which the page says. ``more``: for Django's own head.
    """
    said = bool(request.POST.get("sure"))
    context = (
        admin.site.each_context(request)
        | more
        | {
            "title": title,
            "verb": {"label": label, "icon": icon},
            "sentences": sentences,
            "sure": sure,
            "changed": said,
            "back": back,
            "kept": list(kept),
        }
    )
    return TemplateResponse(
        request, "admin/mcpregistry/ask.html", context, status=409 if said else 200
    )
