"""Dates as an operator needs them: to the second, in 24 hours."""

from __future__ import annotations

DATETIME_FORMAT = "j M Y H:i:s"
SHORT_DATETIME_FORMAT = "j M Y H:i"
