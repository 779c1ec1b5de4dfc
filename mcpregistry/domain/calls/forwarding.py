"""What of a host goes on to a server with one call: what it can bear, and its answers to the server's questions.

Said with each request (MCP 2026-07-28) and never kept for the next: connections are shared by all hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpregistry.domain.reveal import reveal

TASKS = "io.modelcontextprotocol/tasks"
# Which of a client's capabilities a server's question needs (multi round-trip requests).
QUESTIONS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


@dataclass(frozen=True, slots=True)
class Onward:
    """``capabilities`` as clients declare them; ``answers``: ``inputResponses`` and ``requestState``, where given."""

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> bool:
        return TASKS in (self.capabilities.get("extensions") or {})

    def without_questions(self) -> Onward:
        """For a call that people decided on as it stands: nothing is added to it later."""
        return Onward({"extensions": {TASKS: {}}} if self.tasks else {})


NOTHING = Onward()
AS_TASK = Onward({"extensions": {TASKS: {}}})


def passed(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a host's capabilities that a server may rely on."""
    kept = {kind: declared[kind] for kind in QUESTIONS.values() if isinstance(declared.get(kind), dict)}
    extensions = declared.get("extensions")
    if isinstance(extensions, dict) and TASKS in extensions:
        kept["extensions"] = {TASKS: {}}
    return kept


def unbearable(requests: Mapping[str, Any], capabilities: Mapping[str, Any]) -> list[str]:
    """The methods among a server's questions that this host has not declared."""
    methods = {str(request.get("method")) if isinstance(request, dict) else "" for request in requests.values()}
    return sorted(method for method in methods if QUESTIONS.get(method, "") not in capabilities)


def attributed(request: Any, server: str) -> Any:
    """A server's question as the host shows it: hosts would say that it comes from us."""
    if not isinstance(request, dict) or request.get("method") != "elicitation/create":
        return request
    params = request.get("params")
    if not isinstance(params, dict) or not isinstance(params.get("message"), str):
        return request
    return request | {"params": params | {"message": f"The server {server} asks: {reveal(params['message'])}"}}
