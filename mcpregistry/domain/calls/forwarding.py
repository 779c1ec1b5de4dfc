"""What of a host is forwarded to a server with one call: its capabilities, and its answers to the server's questions.

Sent with each request (MCP 2026-07-28) and never kept for the next one, because all hosts share a server's connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcpregistry.domain.text.display import printable

TASKS = "io.modelcontextprotocol/tasks"
# Which of a client's capabilities a server's question needs (multi round-trip requests).
QUESTIONS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


# A question of a server (its method and params) to the host that made the call. Returns the host's result; raises Unanswered.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Unanswered(Exception):
    """The host gives no answer; the text says why, for the server."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``capabilities`` as clients declare them; ``answers``: ``inputResponses`` and ``requestState``, where given.

    ``ask`` puts a question to the host while its call waits at a server of the older era; None: it cannot be asked.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = field(default=None, compare=False)
    rounds: bool = False  # it answers questions in results, by its call repeated (MCP 2026-07-28)
    log_level: str = ""  # the lowest of the server's log lines that its host wants; empty: it has asked for none

    @property
    def tasks(self) -> bool:
        return TASKS in (self.capabilities.get("extensions") or {})

    @property
    def questions(self) -> frozenset[str]:
        """The kinds of questions that the host can bear."""
        return frozenset(self.capabilities.keys() & set(QUESTIONS.values()))

    def allowing(self, kinds: frozenset[str]) -> Forwarding:
        """Of the questions that the host can bear only those that the operator lets this server ask."""
        if self.questions <= kinds:
            return self
        never = self.questions - kinds
        return replace(self, capabilities={key: said for key, said in self.capabilities.items() if key not in never})

    def without_questions(self) -> Forwarding:
        """For a call that people decided on as it stands: nothing is added to it later."""
        return Forwarding({"extensions": {TASKS: {}}} if self.tasks else {})

    def without_tasks(self) -> Forwarding:
        """For what no task can be made of."""
        return replace(self, capabilities={key: said for key, said in self.capabilities.items() if key != "extensions"})


NOTHING = Forwarding()
AS_TASK = Forwarding({"extensions": {TASKS: {}}})


def passed(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a host's declared capabilities that a server may rely on: kinds of questions, and tasks."""
    kept = {kind: declared[kind] for kind in QUESTIONS.values() if isinstance(declared.get(kind), dict)}
    extensions = declared.get("extensions")
    if isinstance(extensions, dict) and TASKS in extensions:
        kept["extensions"] = {TASKS: {}}
    return kept


def unbearable(requests: Mapping[str, Any], capabilities: Mapping[str, Any]) -> list[str]:
    """The methods among a server's questions (``inputRequests``) that this host cannot be asked like this, sorted."""
    asked = [request if isinstance(request, dict) else {} for request in requests.values()]
    missing = (each for each in asked if not bears(capabilities, str(each.get("method", "")), each.get("params")))
    return sorted({str(each.get("method", "")) for each in missing})


def bears(capabilities: Mapping[str, Any], method: str, params: object) -> bool:
    """Whether a host with these capabilities can be asked this. A form is what ``elicitation: {}`` means, too."""
    kind = QUESTIONS.get(method, "")
    declared = capabilities.get(kind)
    if not isinstance(declared, Mapping):
        return False
    if kind != "elicitation":
        return True
    mode = params.get("mode", "form") if isinstance(params, Mapping) else "form"
    if mode == "url" and not _is_of_the_web(params):
        return False
    return isinstance(mode, str) and (mode in declared or (mode == "form" and "url" not in declared))


def _is_of_the_web(params: object) -> bool:
    """Return whether the address is a web address, which opens no file and runs no script on the machine of a person."""
    url = params.get("url") if isinstance(params, Mapping) else None
    return isinstance(url, str) and url.lower().startswith(("https://", "http://")) and url.isprintable()


def attributed(request: Any, server: str) -> Any:
    """The server's question with the server's name in front, because hosts say that questions come from us.

    Anything but an ``elicitation/create`` with a message comes back unchanged.
    """
    if not isinstance(request, dict) or request.get("method") != "elicitation/create":
        return request
    params = request.get("params")
    if not isinstance(params, dict) or not isinstance(params.get("message"), str):
        return request
    return request | {"params": params | {"message": f"The server {server} asks: {printable(params['message'])}"}}
