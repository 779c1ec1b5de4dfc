"""What of a host is forwarded to a server with one call: its capabilities, and its answers to the
server's questions.

Sent with each request (MCP 2026-07-28) and never kept for the next one, because all hosts share a
server's connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mcpregistry.domain.calls.own_site import is_own_site_url
from mcpregistry.domain.text.display import show_invisible_characters

TASKS = "io.modelcontextprotocol/tasks"
APPS = "io.modelcontextprotocol/ui"  # MCP Apps
_MOST_TYPES = 10
_LONGEST_TYPE = 100
# Which of a client's capabilities a server's question needs (multi round-trip requests).
QUESTIONS = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


# A question of a server (its method and params) to the host that made the call. Returns the host's
# result; raises Unanswered.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class HostUnansweredError(Exception):
    """The host gives no answer; the text says why, for the server."""


class HostChannel(Protocol):
    """Reaches a host of the older era while none of its calls is out. Only ``ask`` waits; the
    others never raise."""

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The host's answer to a question. Raises Unanswered."""

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        """Send a log line of this server."""

    def complete(self, elicitation_id: str) -> None:
        """Send ``notifications/elicitation/complete``."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``capabilities`` as clients declare them; ``answers``: ``inputResponses`` and
    ``requestState``, where given.

    ``ask`` puts a question to the host while its call waits at a server of the older era; None: it
    cannot be asked. ``channel`` reaches the host at other times; None: nothing does.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = field(default=None, compare=False)
    channel: HostChannel | None = field(default=None, compare=False)
    rounds: bool = False  # it answers questions in results, by its call repeated (MCP 2026-07-28)
    # the lowest of the server's log lines that its host wants; empty: it has asked for none
    log_level: str = ""

    @property
    def tasks(self) -> bool:
        return TASKS in (self.capabilities.get("extensions") or {})

    @property
    def apps(self) -> Mapping[str, Any] | None:
        """What the host says of the pages that it can show; None if it shows none."""
        found: Mapping[str, Any] | None = (self.capabilities.get("extensions") or {}).get(APPS)
        return found

    @property
    def questions(self) -> frozenset[str]:
        """The kinds of questions that the host can bear."""
        return frozenset(self.capabilities.keys() & set(QUESTIONS.values()))

    def allow_questions(self, kinds: frozenset[str]) -> Forwarding:
        """Of the questions that the host can bear only those that the operator lets this server
        ask."""
        if self.questions <= kinds:
            return self
        never = self.questions - kinds
        return replace(
            self,
            capabilities={key: said for key, said in self.capabilities.items() if key not in never},
        )

    def drop_questions(self) -> Forwarding:
        """For a call that people decided on as it stands: nothing is added to it later."""
        extensions = self.capabilities.get("extensions")
        return Forwarding({"extensions": extensions} if extensions else {})

    def drop_tasks(self) -> Forwarding:
        """For what no task can be made of."""
        return self._drop_extension(TASKS)

    def drop_apps(self) -> Forwarding:
        """For a server whose pages no host is to show."""
        return self._drop_extension(APPS)

    def _drop_extension(self, name: str) -> Forwarding:
        extensions = dict(self.capabilities.get("extensions") or {})
        if name not in extensions:
            return self
        del extensions[name]
        capabilities = {**self.capabilities, "extensions": extensions}
        if not extensions:
            del capabilities["extensions"]
        return replace(self, capabilities=capabilities)


NOTHING = Forwarding()


def make_channel_ask(host: Forwarding) -> Ask:
    """How a host is asked when none of its calls opens the connection: over its channel, or not at
    all."""

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if host.channel is None:
            raise HostUnansweredError("No call of the host is in progress.")
        return await host.channel.ask(method, params)

    return ask


AS_TASK = Forwarding({"extensions": {TASKS: {}}})


def select_forwardable_capabilities(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a host's declared capabilities that a server may rely on: kinds of questions,
    tasks, and pages."""
    kept = {
        kind: declared[kind] for kind in QUESTIONS.values() if isinstance(declared.get(kind), dict)
    }
    extensions = declared.get("extensions")
    extensions = extensions if isinstance(extensions, dict) else {}
    known: dict[str, Any] = {TASKS: {}} if TASKS in extensions else {}
    if isinstance(apps := extensions.get(APPS), dict):
        known[APPS] = _select_app_capability(apps)
    return kept | ({"extensions": known} if known else {})


def _select_app_capability(said: Mapping[str, Any]) -> dict[str, Any]:
    types = said.get("mimeTypes")
    listed = [each for each in types if isinstance(each, str)] if isinstance(types, list) else []
    return {"mimeTypes": [each[:_LONGEST_TYPE] for each in listed[:_MOST_TYPES]]} if listed else {}


def list_unsupported_questions(
    requests: Mapping[str, Any], capabilities: Mapping[str, Any]
) -> list[str]:
    """The methods among a server's questions (``inputRequests``) that this host cannot be asked
    like this, sorted."""
    asked = [request if isinstance(request, dict) else {} for request in requests.values()]
    missing = (
        each
        for each in asked
        if not can_ask_host(capabilities, str(each.get("method", "")), each.get("params"))
    )
    return sorted({str(each.get("method", "")) for each in missing})


def can_ask_host(capabilities: Mapping[str, Any], method: str, params: object) -> bool:
    """Whether a host with these capabilities can be asked this. A form is what ``elicitation: {}``
    means, too."""
    kind = QUESTIONS.get(method, "")
    declared = capabilities.get(kind)
    if not isinstance(declared, Mapping):
        return False
    if kind != "elicitation":
        return True
    mode = params.get("mode", "form") if isinstance(params, Mapping) else "form"
    if mode == "url" and not is_web_url(params):
        return False
    return isinstance(mode, str) and (
        mode in declared or (mode == "form" and "url" not in declared)
    )


def is_web_url(params: object) -> bool:
    """Return whether the address is a web address, which opens no file and runs no script on the
    machine of a person.

    An address of this site itself does not count: a server must not send people to pages that look
    like a request of ours.
    """
    url = params.get("url") if isinstance(params, Mapping) else None
    if not isinstance(url, str) or not url.isprintable():
        return False
    return url.lower().startswith(("https://", "http://")) and not is_own_site_url(url)


def attribute_question(request: Any, server: str) -> Any:
    """The server's question with its name before the message and each field's title: hosts say that
    we ask.

    Anything but an ``elicitation/create`` with a message comes back unchanged.
    """
    if not isinstance(request, dict) or request.get("method") != "elicitation/create":
        return request
    params = request.get("params")
    if not isinstance(params, dict) or not isinstance(params.get("message"), str):
        return request
    message = f"The server {server} asks: {show_invisible_characters(params['message'])}"
    return request | {
        "params": params
        | {"message": message}
        | _title_fields(params.get("requestedSchema"), server)
    }


def _title_fields(schema: Any, server: str) -> dict[str, Any]:
    """The form's schema with the server's name in each title; empty if it has no fields."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict):
        return {}
    titled = {
        name: field | _make_field_title(name, field, server) if isinstance(field, dict) else field
        for name, field in fields.items()
    }
    return {"requestedSchema": schema | {"properties": titled}}


def _make_field_title(name: str, field: Mapping[str, Any], server: str) -> dict[str, str]:
    own = field.get("title")
    return {
        "title": f"{server}: {show_invisible_characters(own if isinstance(own, str) else name)}"
    }
