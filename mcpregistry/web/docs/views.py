"""The pages of the docs. Whoever is logged in may read them; they say nothing of this site's own
data."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from mcpregistry.web.docs import document_list, error_codes
from mcpregistry.web.docs.search import LIMIT, search
from mcpregistry.web.pages import page, show


@page(None)
def index(request: HttpRequest) -> HttpResponse:
    """The contents; with ``?q=words`` the sections that hold all of them."""
    question = request.GET.get("q", "").strip()[:200]
    hits = search(question)
    context = {
        "title": _("Docs: %(search)s") % {"search": question} if question else _("Docs"),
        "question": question,
        "hits": hits,
        "more": len(hits) == LIMIT,
        "groups": document_list.contents(),
    }
    return show(request, "docs/index.html", context)


@page(None)
def document(request: HttpRequest, slug: str) -> HttpResponse:
    """One document, with its own contents beside it, and the ones before and after it."""
    entry = document_list.entry_of(slug)
    rendered = document_list.render_document(entry)
    everything = document_list.entries()
    at = everything.index(entry)
    context = {
        "title": rendered.title,
        "document": rendered,
        "sections": [section for section in rendered.sections if section.level in (2, 3)],
        "groups": document_list.contents(),
        "entry": entry,
        "parent": document_list.find_parent(entry),
        "before": everything[at - 1] if at else None,
        "after": everything[at + 1] if at + 1 < len(everything) else None,
    }
    return show(request, "docs/document.html", context)


@page(None)
def error(request: HttpRequest, code: str) -> HttpResponse:
    """The page about one error code."""
    found = error_codes.error_code_of(code)
    names = [*error_codes.error_codes()]
    rendered = error_codes.render_code(found)
    at = names.index(code)
    context = {
        "title": rendered.title,
        "document": rendered,
        "entry": document_list.entry_of(error_codes.SLUG),
        "code_before": names[at - 1] if at else None,
        "code_after": names[at + 1] if at + 1 < len(names) else None,
    }
    return show(request, "docs/document.html", context)


@page(None)
def image(request: HttpRequest, name: str) -> HttpResponse:
    """A picture of the documents."""
    response = HttpResponse(document_list.picture(name), content_type="image/png")
    response["Cache-Control"] = "private, max-age=3600"
    return response
