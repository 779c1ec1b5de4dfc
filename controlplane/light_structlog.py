"""structlog without rich.

structlog imports rich if it is installed, for coloured tracebacks that this site does not show.
Without it, each process uses 70 ms of CPU less at its start. Whoever else uses rich imports it as
usual.
"""

from __future__ import annotations

import sys

_is_first = "structlog" not in sys.modules and "rich" not in sys.modules
if _is_first:
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of rich fails now
import structlog  # noqa: E402 - while rich cannot be imported

if _is_first:
    del sys.modules["rich"]

__all__ = ["structlog"]
