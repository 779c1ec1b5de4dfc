"""A page for each error code, made from its row in ``docs/errors.md``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from django.conf import settings
from django.urls import reverse

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.web.docs.rendering import Rendered, render

SLUG = "errors"  # of the document with the table
_GROUP = re.compile(r"^## (?P<title>.+)$")
_ROW = re.compile(
    r"^\| `(?P<code>[A-Z_]+)` \| (?P<status>[^|]+) \| (?P<means>[^|]+) \| (?P<remedy>[^|]+) \|$"
)
_CELL = re.compile(r"<td><code>([A-Z_]+)</code></td>")
_EFFECTS = {
    "not_sent": "The call was not sent to the server, so it can be made again.",
    "unknown": (
        "The call may have taken effect. Slipsnisse does not repeat it, with two exceptions:"
        " see [Error codes](errors.md)."
    ),
    "tool_error": "The server received the call.",
    "succeeded": "The call took effect.",
    "as recorded": "The call's record contains its outcome.",
} | dict.fromkeys(("denied", "rejected", "void"), "The call was not sent to the server.")


@dataclass(frozen=True)
class ErrorCode:
    """A row of the table. ``status`` is the HTTP status of a request, or the state or states of a
    call."""

    name: str
    group: str
    status: str
    means: str
    remedy: str

    @property
    def effects(self) -> list[tuple[str, str]]:
        """The states that a call with this code can have, each with a sentence about the effect of
        the call."""
        return [
            (state, effect)
            for state, effect in _EFFECTS.items()
            if re.search(rf"\b{state}\b", self.status)
        ]


@lru_cache(maxsize=1)
def error_codes() -> dict[str, ErrorCode]:
    """Return all codes by name, in the order of the table."""
    codes = dict[str, ErrorCode]()
    group = ""
    for line in (settings.BASE_DIR / "docs" / "errors.md").read_text(encoding="utf-8").splitlines():
        if heading := _GROUP.match(line):
            group = heading["title"].lower()
        elif row := _ROW.match(line):
            code = ErrorCode(row["code"], group, row["status"], row["means"], row["remedy"])
            codes[code.name] = code
    return codes


def error_code_of(name: str) -> ErrorCode:
    """Return the code of this name. Raises ``NotFound``."""
    try:
        return error_codes()[name]
    except KeyError:
        raise NotFound(
            error_texts.say_not_found("error code", show_invisible_characters(name, 60)),
            remedy="Search the docs for the message of the error.",
        ) from None


@lru_cache(maxsize=200)
def render_code(code: ErrorCode) -> Rendered:
    """Return the page about a code."""
    status = f"HTTP status {code.status}" if code.status.isdigit() else f"state: {code.status}"
    effects = "\n".join(f"- `{state}`: {effect}" for state, effect in code.effects)
    body = json.dumps({"code": code.name, "message": "…", "remedy": "…"}, ensure_ascii=False)
    text = f"""# {code.name}

An error code for {code.group} ({status}).

**Meaning**: {code.means}.

**What to do**: {code.remedy}.

{effects}

## Where you see it

- Over REST, in the body of the answer: `{body}`. The message and the remedy are different in each case, so a program should compare only the code.
- Over MCP, at the beginning of the result's text: `{code.name}: …`.
- On the page of a call and in its record.

All codes: [Error codes](errors.md).
"""
    return render(text, base=reverse("docs:index"))


def link_codes(html: str) -> str:
    """Return the table of the document with each code as a link to its page."""
    return _CELL.sub(
        lambda cell: (
            f'<td><a href="{reverse("docs:error", args=[cell[1]])}"><code>{cell[1]}</code></a></td>'
        ),
        html,
    )
