"""The tag by which every list says that there is nothing in it."""

from __future__ import annotations

from typing import Any

from django import template

from controlplane.empty_lists import LISTS, may_open

register = template.Library()


@register.inclusion_tag("web/nothing.html", takes_context=True)
def nothing(
    context: dict[str, Any], page: str, narrowed: object = None, everything: str = "?"
) -> dict[str, Any]:
    """An own page (by the name of its address) with nothing to show. ``narrowed``: whether somebody
    has searched or chosen; ``everything``: the query without that."""
    return _describe_list(context, page) | {"narrowed": narrowed, "everything": everything}


@register.inclusion_tag("web/nothing.html", takes_context=True)
def nothing_of(context: dict[str, Any], changelist: Any) -> dict[str, Any]:
    """A list of the admin with nothing to show; in the place of the theme's words
    (``templates/admin/change_list.html``)."""
    opts = changelist.opts
    kept = {"p", "o", "all", "_popup", "_to_field", "_facets", "e"}  # these narrow nothing
    narrowed = bool(changelist.query or set(changelist.params) - kept)
    said = _describe_list(context, opts.label_lower)
    return said | {
        "narrowed": narrowed,
        "everything": "?_popup=1" if changelist.is_popup else "?",
        "names": opts.verbose_name_plural,
        "add": f"admin:{opts.app_label}_{opts.model_name}_add"
        if context.get("has_add_permission") and not said["link"]
        else "",
        "name": opts.verbose_name,
    }


def _describe_list(context: dict[str, Any], key: str) -> dict[str, Any]:
    empty = LISTS.get(key)
    link = may_open(empty.url, context["request"]) if empty else ""
    return {"empty": empty, "link": link, "popup": context.get("is_popup")}
