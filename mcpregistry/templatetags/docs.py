"""The way from a page of the site to the page of the docs that explains it."""

from __future__ import annotations

from typing import Any

from django import template

from mcpregistry.web.docs.page_documents import find_document_url

register = template.Library()


@register.simple_tag(takes_context=True)
def docs_address(context: dict[str, Any]) -> str:
    """Where the docs explain the page that is shown; "" where nothing is known of the request."""
    request = context.get("request")
    return find_document_url(request) if request is not None else ""
