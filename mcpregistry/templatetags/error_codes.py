"""The tag for error codes. Apart from the other tags, because it needs the docs, which the admin
does not import."""

from __future__ import annotations

from django import template
from django.urls import reverse
from django.utils.html import format_html

from mcpregistry.domain.text import display
from mcpregistry.web.docs.error_codes import error_codes

register = template.Library()


@register.simple_tag
def error_code(code: str) -> str:
    """Return an error code as a link to its page of the docs, or as plain text if it has no
    page."""
    if code not in error_codes():
        return display.show_invisible_characters(code, 40)
    address = reverse("docs:error", args=[code])
    return format_html(
        '<a class="sn-link" href="{}" title="{}">{}</a>', address, error_codes()[code].means, code
    )
