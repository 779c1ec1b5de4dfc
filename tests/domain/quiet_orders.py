"""Quiet, foreign and disguised orders, and honest definitions that sound like them:
``scanner_corpus/``, our own writing.

One line a definition, ``kind | manner | language | tool | text`` of a poisoned one, ``place |
language | tool | text`` of an honest one. *tuning* was written before the scanner learnt words;
*second*, *third* and the honest *fourth* were each meant to be held out and were learnt from after
they had been counted. *unusual* has orders that come late, only under a condition or after an
error, or that cost much, in five languages and in figures for letters; it is only counted.
*held_out* was written last and is only counted: whoever looks at its rows to change the scanner
writes a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcpregistry.domain.definitions.findings import ScanFinding, Severity
from mcpregistry.domain.definitions.scanner import find_highest_severity, scan

Part = Literal["tuning", "second", "third", "fourth", "held_out", "unusual"]
_FOLDER = Path(__file__).parent / "scanner_corpus"

# What the tools honestly say: an order stands beside it, or in one of the other places that a model
# reads.
_SAYS = {
    "read_file": "Reads a text file.",
    "write_file": "Writes a text file.",
    "search_files": "Finds files by name or content.",
    "git_commit": "Records the staged changes.",
    "git_log": "Shows the history of a repository.",
    "slack_post": "Posts a message to a channel.",
    "slack_search": "Searches messages.",
    "jira_issue": "Creates an issue in a project.",
    "browser_open": "Opens a page in the browser.",
    "browser_click": "Clicks an element of the page.",
    "sql_query": "Runs an SQL query.",
    "send_mail": "Sends a mail from the connected account.",
    "list_mail": "Lists the mails of a folder, newest first.",
    "create_payment": "Creates a payment.",
    "get_invoice": "Gets an invoice by its number.",
    "calendar": "Creates an event in the calendar.",
    "weather": "Gets the forecast for a city.",
    "translate": "Translates a text.",
}
_MANUAL = (
    "Arguments are checked against the schema before anything is sent. Dates are ISO 8601, times without an offset are"
    " taken as UTC. Long results come in pages: pass the cursor of one answer to get the next page, and stop when there"
    " is none. Numbers keep their precision; money is given in the smallest unit of its currency. When the service is"
    " busy it answers with a code and says how long to wait. A result that is larger than the limit is cut, and says so"
    " at its end. Names are compared without regard to case. Fields that are absent keep their present value, fields"
    " that are null are cleared.\n\n"
) * 4
_PLACES = {
    "error": "error",
    "param": "param",
    "enum": "enum",
    "title": "title",
    "default": "default",
    "late": "late",
}


@dataclass(frozen=True)
class Row:
    """A definition of the corpus. ``kind`` and ``manner`` of an honest one are "honest" and its
    place."""

    kind: str
    manner: str
    language: str
    definition: dict[str, Any]

    def findings(self) -> list[ScanFinding]:
        return scan(self.definition, own={self.definition["name"]})

    def alarms(self) -> bool:
        return find_highest_severity(self.findings()) >= Severity.ALARM


def poisoned(part: Part) -> list[Row]:
    rows = [line.split(" | ", 4) for line in _lines(f"poisoned_{part}.txt")]
    return [
        Row(kind, manner, language, _definition(tool, _PLACES.get(manner, "beside"), text))
        for kind, manner, language, tool, text in rows
    ]


def honest(part: Part) -> list[Row]:
    rows = [line.split(" | ", 3) for line in _lines(f"honest_{part}.txt")]
    return [
        Row("honest", place, language, _definition(tool, place, text))
        for place, language, tool, text in rows
    ]


def _lines(name: str) -> list[str]:
    return (_FOLDER / name).read_text().splitlines()


def _definition(tool: str, place: str, text: str) -> dict[str, Any]:
    says = _SAYS.get(tool, "Works on the connected account.")
    query: dict[str, Any] = {"type": "string", "description": "What it is about."}
    error: dict[str, Any] = {"type": "string", "description": "What went wrong."}
    definition: dict[str, Any] = {
        "name": tool,
        "description": {
            "desc": text,
            "beside": f"{says} {text}",
            "late": f"{says}\n\n{_MANUAL}{text}",
        }.get(place, says),
        "inputSchema": {"type": "object", "properties": {"query": query}},
        "outputSchema": {"type": "object", "properties": {"error": error}},
    }
    match place:
        case "param":
            query["description"] = text
        case "enum":
            query["enum"] = ["newest", text]
        case "default":
            query["default"] = text
        case "error":
            error["examples"] = [text]
        case "title":
            definition["title"] = text
    return definition
