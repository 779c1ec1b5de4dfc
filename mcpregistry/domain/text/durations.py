"""Times in words, for people and for models."""

from __future__ import annotations


def format_exact_duration(seconds: float) -> str:
    """The two largest units, exactly: "4 min 10 s", "2 h 5 min", "3 days 4 h". For what is being
    waited for."""
    rest = max(0, round(seconds))
    days = rest // 86_400
    hours = rest // 3600 % 24
    minutes = rest // 60 % 60
    if days:
        return f"{days} {'day' if days == 1 else 'days'} {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest % 60} s" if minutes else f"{rest} s"


def format_rough_duration(seconds: float) -> str:
    """The largest unit, about: 4 s, 3 min, 2.5 h, 3 d. For tables."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
