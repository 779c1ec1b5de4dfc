"""Filters of our pages, and a tag. Results of filters are plain text: the template engine escapes
them as ever."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.translation import gettext as _

from mcpregistry.domain.servers import progress
from mcpregistry.domain.text import display
from mcpregistry.domain.text.durations import format_rough_duration
from mcpregistry.domain.text.fact_lists import Facts
from mcpregistry.domain.text.fact_lists import list_facts as read_facts
from mcpregistry.models.server import ProtocolMode

register = template.Library()


@register.filter(is_safe=False)
def visible(text: object, limit: int = display.LIMIT) -> str:
    """Foreign text with invisible characters named; ``text|visible:200`` cuts it after 200
    characters."""
    return "" if text is None else display.show_invisible_characters(str(text), int(limit))


@register.filter(is_safe=False)
def pretty(text: Any) -> str:
    """JSON text (or a JSON value) indented; text that is no JSON, or too deep for it, as it is."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
        if isinstance(value, float) and value.is_integer():
            return f"{value:.0f}"
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        return str(text)


@register.filter(is_safe=False)
def facts(value: Any) -> Facts:
    """The entries of a JSON object, or of its text, as names and values in words; none for anything
    else."""
    return read_facts(value) if isinstance(value, str | Mapping) else []


@register.filter(is_safe=False)
def exactly(value: float | Decimal) -> str:
    """A number as a person entered it, without the zeros that its column adds: 2.5, 0.003, 100."""
    return f"{Decimal(str(value)).normalize():f}"


@register.filter(is_safe=False)
def milliseconds(value: float | None) -> str:
    """A duration people can read: 3.2 ms, 45 ms, 1.4 s; a dash for none."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


@register.filter(is_safe=False)
def took(seconds: float | None) -> str:
    """The same of seconds."""
    return milliseconds(None if seconds is None else seconds * 1000)


@register.filter(is_safe=False)
def ago(moment: datetime) -> str:
    """How long ago, in one unit: 40 s ago, 12 min ago, 3 h ago, 5 d ago."""
    seconds = max(0.0, (timezone.now() - moment).total_seconds())
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return _("%(time)s ago") % {"time": f"{seconds / length:.0f} {unit}"}
    return _("%(time)s ago") % {"time": f"{seconds:.0f} s"}


@register.filter(is_safe=False)
def percent(value: float | None) -> str:
    """A share of 0 to 1 as a percentage, small ones with one digit; a dash for none."""
    if value is None:
        return "-"
    return f"{value * 100:.1f} %" if 0 < value < 0.1 else f"{value * 100:.0f} %"


@register.filter(is_safe=False)
def duration(seconds: float | None) -> str:
    """Seconds as people say them: 4 s, 3 min, 2.5 h, 3 d; a dash for none."""
    return "-" if seconds is None else format_rough_duration(seconds)


@register.filter(is_safe=False)
def hundredths(value: float) -> str:
    """0 to 1 as a whole percentage without its sign, for the width of a bar."""
    return f"{value * 100:.0f}"


@register.filter(is_safe=False)
def dollars(value: float | Decimal | None) -> str:
    """Small sums with enough digits to see them, negative ones with their sign before: $12.40,
    -$0.0031, $0.000042."""
    if value is None:
        return "-"
    size = abs(float(value))
    if size >= 1 or size == 0:
        digits = 2
    elif size >= 0.001:
        digits = 4
    else:
        digits = 6
    whole, _point, part = f"{size:,.{digits}f}".partition(".")
    return f"{'-' if value < 0 else ''}${whole}.{part.rstrip('0').ljust(2, '0')}"


@register.filter(is_safe=False)
def counted(value: float | None) -> str:
    """A count with its thousands apart: 12,704; a dash for none."""
    return "-" if value is None else f"{value:,.0f}"


@register.filter(is_safe=False)
def short(value: float | None) -> str:
    """A large count in three digits or so: 940, 12.7k, 3.1M; a dash for none."""
    if value is None:
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return (
                f"{value / size:.0f}{letter}"
                if value >= 100 * size
                else f"{value / size:.1f}{letter}"
            )
    return f"{value:.0f}"


@register.filter(is_safe=False)
def change(value: float | None) -> str:
    """By how much something has grown or shrunk, as people say it: +12 %, -40 %, 3.5 times, the
    same; "new" for what was not there."""
    if value is None:
        return _("new")
    if value >= 1:
        return _("%(count)s times") % {
            "count": f"{value + 1:.1f}" if value < 99 else f"{value + 1:,.0f}"
        }
    return _("same") if abs(value) < 0.005 else f"{value * 100:+.0f} %"


@register.simple_tag
def options(names: Iterable[str], chosen: object = "") -> str:
    """The choices of a form's list: by a tag, since a loop over a thousand servers takes longer
    than the rest of a page."""
    rows = ((name, " selected" if name == chosen else "", visible(name, 60)) for name in names)
    return format_html_join("", '<option value="{}"{}>{}</option>', rows)


@register.filter
def protocol_version(era: str) -> str:
    """The date of the MCP specification that a server follows; empty if it is not known."""
    return str(ProtocolMode(era).label) if era in (ProtocolMode.LEGACY, ProtocolMode.MODERN) else ""


@register.filter
def steps(test: Any) -> list[progress.ServerTestStep]:
    """The steps of a test of a server, as far as it has come."""
    return progress.list_progress_steps(test.server.transport, test.call_tool, test.timings)
