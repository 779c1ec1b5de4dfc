"""Where a page is: its area and entry of the navigation, the record that it is about, and what is
done there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import template
from django.db.models import Model
from django.urls import NoReverseMatch, reverse

from mcpregistry.domain.text.display import show_invisible_characters

register = template.Library()

_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Crumb:
    """One step of the way to a page; the last one, and an area, lead nowhere."""

    title: str
    link: str = ""


def crumbs_of(context: dict[str, Any]) -> list[Crumb]:
    """The way to the page of this context, with the page itself at its end."""
    entry = [*_find_entry(context)]
    record = _record(context)
    found = entry.copy()
    if record is not None:
        found.append(Crumb(show_invisible_characters(str(record), _LONGEST), _address(record)))
    if title := _title(context, record, bool(entry)):
        found.append(Crumb(title))
    last = found.pop() if found else Crumb("")
    return [*found, Crumb(last.title)]


@register.inclusion_tag("web/crumbs.html", takes_context=True)
def crumbs(context: dict[str, Any]) -> dict[str, Any]:
    """The way to this page as its heading."""
    return {"crumbs": crumbs_of(context)}


@register.simple_tag(takes_context=True)
def page_title(context: dict[str, Any]) -> str:
    """The same as the name of a tab or bookmark: the page first, its area left out."""
    *before, last = crumbs_of(context)
    others = [crumb.title for crumb in reversed(before) if crumb.link]
    return " - ".join([last.title, *(title for title in others if title not in last.title)])


def _find_entry(context: dict[str, Any]) -> Iterator[Crumb]:
    """The area and the entry that the page is of; only the entry where they have one name."""
    for area in context.get("sidebar_navigation") or ():
        for page in area["items"]:
            if page["active"]:
                yield from [] if page["title"] == area["title"] else [Crumb(area["title"])]
                yield Crumb(page["title"], page["link"])
                return


def _record(context: dict[str, Any]) -> Model | None:
    found = context.get("original") or context.get("object")
    return found if isinstance(found, Model) and found.pk is not None else None


def _address(record: Model) -> str:
    meta = record._meta
    try:
        return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[record.pk])
    except NoReverseMatch:
        return ""


def _title(context: dict[str, Any], record: Model | None, has_entry: bool) -> str:
    """What the page itself is called; "" where the record or the entry of the navigation says
    it."""
    request = context["request"]
    match = request.resolver_match
    name = (match.url_name or "") if match is not None else ""
    title = show_invisible_characters(str(context.get("title") or ""), _LONGEST)
    if name.endswith(("_changelist", "_change")) and name != "auth_user_password_change":
        return "" if has_entry or record is not None else title
    if name.endswith("_delete") and record is not None:
        return f"{title}: {show_invisible_characters(str(record), _LONGEST)}"
    if record is None and any(_is(page, request.path) for page in _list_pages(context)):
        return ""
    return title


def _list_pages(context: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for area in context.get("sidebar_navigation") or ():
        yield from area["items"]


def _is(page: dict[str, Any], path: str) -> bool:
    return bool(page["link"] == path)
