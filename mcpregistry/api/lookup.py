"""Find the record that a path or body names, or say that there is none.

Only named columns are ever compared; nothing that a caller sends becomes a field of a query.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from django.db.models import Model, QuerySet
from ninja import Path

from mcpregistry.domain import error_texts
from mcpregistry.domain.definitions.naming import map_offer_names
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.services.policy.explain import make_ambiguous_error

M = TypeVar("M", bound=Model)

Id = Annotated[int, Path(ge=1, lt=2**63)]

_TOOLS = Tool.offers.select_related("server", "pinned", "latest", "usage")


def one(rows: QuerySet[M], what: str, **exact: Any) -> M:
    """The one row, or NotFound. ``exact``: column names written in our code, values from the
    caller."""
    found = rows.filter(**exact).first()
    if found is None:
        ((column, value),) = exact.items()
        raise _missing(what, value, by_id=column == "pk")
    return found


def _missing(what: str, value: object, *, by_id: bool = False) -> NotFound:
    named = show_invisible_characters(str(value), 100)
    message = (
        f'No {what} with the id "{named}".' if by_id else error_texts.say_not_found(what, named)
    )
    return NotFound(
        message,
        remedy=f"Use the {'id' if by_id else 'name'} of an existing {what}. See /api/v1/docs for the address that lists them.",
    )


def find_server(slug: str) -> Server:
    """The server of that slug, or ``NotFound``."""
    return one(Server.objects.all(), "server", slug=slug)


def find_agent(slug: str) -> Agent:
    """The agent of that slug, or ``NotFound``."""
    return one(Agent.objects.all(), "agent", slug=slug)


def find_endpoint(slug: str) -> Endpoint:
    """The endpoint of that slug, or ``NotFound``."""
    return one(Endpoint.objects.all(), "endpoint", slug=slug)


def tool(name: str) -> Tool:
    """The tool, or ``server::prompt:name``, by any of its spellings (see
    ``ToolQuerySet.match_name``), in the styles of all endpoints; else ``NotFound``, also where it
    may mean several."""
    found = _TOOLS.match_name(name) or _find_in_styles(name)
    if len(found) > 1:
        raise make_ambiguous_error(name, found)
    if not found:
        raise _missing("tool", name)
    return found[0]


def _find_in_styles(name: str) -> list[Tool]:
    styles = Endpoint.objects.order_by().values_list("naming_style", flat=True).distinct()
    return [
        *{tool.pk: tool for style in styles for tool in _TOOLS.match_name(name, [style])}.values()
    ]


def tool_names(kind: str = TOOL) -> dict[tuple[str, str], str]:
    """Exposed names of all tools (or prompts) in the default style, by (server slug, name)."""
    offers = (
        Tool.offers.filter(kind=kind).order_by().values_list("server__slug", "name", "own_name")
    )
    return map_offer_names(kind, offers, "double")
