"""The HTTP entry point of headends: finds the headend by its path, the agent by its token, and the
operation.

The checks come in this order, as for MCP: origin, token, operation. A client without a valid token
cannot find out which models exist. The shell around the whole site checks the Host header.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import structlog
from django.conf import settings

from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.engine import Engine
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.snapshot_specs import AgentSpec
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.gateway.caller_identity import read_bearer_token
from mcpregistry.gateway.http import cors
from mcpregistry.services.access.tokens import hash_token
from subagents.domain.formats import AnswerFormat, takes_formats
from subagents.headends import anthropic, openai, responses, rest
from subagents.headends.answer_streams import Renderer, get_request_id, serve
from subagents.headends.chat_arguments import (
    ChatMessage,
    build_arguments,
    invalid_request,
    is_background_prompt,
)
from subagents.headends.errors import HeadendError, from_error
from subagents.headends.http_exchange import Headers, HttpExchange
from subagents.headends.queued_request import HeadendQuestion, QueuedRequest, SharedState
from subagents.llm.tokens import estimate_tokens
from subagents.models import HeadendKind
from subagents.runs.tool_source import KIND, find_expert
from subagents.services.headends.configuring import SECTION, HeadendSpec
from subagents.services.offers import Offered

log = structlog.get_logger(__name__)

# in the scope of a request: the names of the headends that may answer it
ONLY = "slipsnisse.headends"
# of the clients of OpenAI and Anthropic: how often the request was sent before
_RETRIES = b"x-stainless-retry-count"
_CREATED = 1_767_225_600  # 2026-01-01, for all models
_KINDS: Mapping[str, Any] = {
    HeadendKind.OPENAI: openai.error_body,
    HeadendKind.ANTHROPIC: anthropic.error_body,
    HeadendKind.REST: rest.error_body,
}
_FOREIGN = (
    "Requests from this web page are not allowed. Add the origin of the page to SLIPSNISSE_ORIGINS."
)
_CRASHED = "Internal error. See the log of the site for details. A run may have started: check the list under Expert tools, Runs before you try again."
Operation = Callable[["RoutedRequest"], Awaitable[None]]


class RoutedRequest:
    """A request with its headend and its agent."""

    def __init__(
        self, doors: Headends, exchange: HttpExchange, headend: HeadendSpec, rest_of_path: str
    ) -> None:
        self.doors = doors
        self.exchange = exchange
        self.headend = headend
        self.subpath = rest_of_path
        self.agent: AgentSpec | None = None

    @property
    def catalogue(self) -> Catalogue:
        """The agent's catalogue at the headend's endpoint."""
        assert self.agent is not None
        return self.doors.engine.get_catalogue(self.headend.endpoint, self.agent.slug)

    def list_models(self) -> list[str]:
        """Return the ids of all models that this agent may call, including aliases."""
        own = [name for name, entry in self.catalogue.entries.items() if entry.offer.kind == KIND]
        return sorted(
            {*own, *(alias for alias, name in self.headend.aliases.items() if name in own)}
        )

    def find_expert(self, model: object) -> Offered:
        """Return the expert tool with this model id.

        Raises HeadendError (404). The error is the same if the tool does not exist and if the agent
        may not call it.
        """
        if model is None:
            raise invalid_request("model is required.", "model")
        name = self.headend.aliases.get(str(model), str(model))
        entry = self.catalogue.entries.get(name)
        found = (
            find_expert(self.doors.engine.live.current, name)
            if entry and entry.offer.kind == KIND
            else None
        )
        if found is None:
            known = ", ".join(self.list_models()[:20]) or "none"
            raise HeadendError(
                404,
                "NOT_FOUND",
                f"{error_texts.say_not_found('model', clean_text(str(model), 200))} Available models: {known}.",
                param="model",
            )
        return found

    async def ask(
        self,
        body: Mapping[str, Any],
        chat: list[ChatMessage],
        renderer: Renderer,
        answer_format: AnswerFormat,
        max_tokens: object,
    ) -> None:
        """Answer a chat."""
        expert = self.find_expert(body.get("model"))
        if is_background_prompt(chat) and not self.headend.background_prompts:
            raise HeadendError(
                400,
                "background_prompt",
                "This headend refuses requests for titles, tags and follow-up questions, because each of them would "
                "start a run. Choose another model for these tasks in the client, or enable Background prompts on the page of the headend.",
            )
        if answer_format.format and not takes_formats(expert.input_schema):
            raise invalid_request(
                "A JSON schema cannot be required from this expert tool, because it has an argument named format or schema. Send the request without a response format."
            )
        arguments = build_arguments(chat, expert.input_schema)
        stream = body.get("stream") is True
        await self.serve(
            str(body.get("model")),
            expert,
            arguments,
            answer_format,
            renderer,
            stream=stream,
            max_tokens=max_tokens,
        )

    async def serve(
        self,
        model: str,
        expert: Offered,
        arguments: Mapping[str, Any],
        answer_format: AnswerFormat,
        renderer: Renderer,
        *,
        stream: bool,
        max_tokens: object = None,
        headers: Headers | None = None,
    ) -> None:
        """Start the run and send its answer."""
        assert self.agent is not None
        question = HeadendQuestion(
            model=model,
            expert=expert.name,
            arguments=arguments,
            answer_format=answer_format,
            token_hash=get_token_hash(self.exchange),
            client=clean_text(self.exchange.header(b"user-agent"), 100),
            key=self._key(),
            is_retry=self.exchange.header(_RETRIES) not in ("", "0"),
            max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        )
        session = QueuedRequest(self.doors.shared, self.headend, self.agent.slug, question)
        await serve(session, self.exchange, renderer, stream=stream, headers=headers)

    def _key(self) -> str:
        key = self.exchange.header(b"idempotency-key")
        if len(key) > 200:
            raise HeadendError(
                400, "invalid_request", "Idempotency-Key must have at most 200 characters."
            )
        return key


class Headends:
    """The ASGI application for the paths of all headends. There is one per process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shared = SharedState(engine)
        self._pages = cors.AllowedPages(self._serve_request)

    def answers(self, scope: Mapping[str, Any]) -> bool:
        """Return whether a headend has the path of this request."""
        return any(True for _ in self._match(scope))

    async def close(self) -> None:
        """Stop: end what the process still does for clients that have left."""
        await self.shared.close()

    def begin_stop(self) -> None:
        """End open requests with an error. Their runs continue."""
        self.shared.begin_stop()

    def _match(self, scope: Mapping[str, Any]) -> Iterator[tuple[HeadendSpec, str]]:
        """Yield the headends with this path, and the rest of the path. ``ONLY`` in the scope
        restricts them by name."""
        path = scope["path"]
        only = scope.get(ONLY)
        for headend in self.engine.live.current.sections.get(SECTION, ()):
            if headend.kind == HeadendKind.MCP or (only is not None and headend.slug not in only):
                continue
            before, _, _ = headend.path.rpartition("/")
            health = f"/{before}/health" if before else "/health"
            if path.startswith(f"/{headend.path}/"):
                yield headend, path.removeprefix(f"/{headend.path}/").rstrip("/")
            elif headend.kind == HeadendKind.REST and path == health:
                yield headend, "health"

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve one HTTP request."""
        try:
            origin = cors.read_origin(scope["headers"], settings.MCP_ALLOWED_ORIGINS)
        except cors.ForeignOriginError:
            await HttpExchange(scope, receive, send).answer(
                403, openai.error_body(HeadendError(403, "ORIGIN_REFUSED", _FOREIGN))
            )
            return
        await (self._serve_request if origin is None else self._pages)(scope, receive, send)

    async def _serve_request(self, scope: Any, receive: Any, send: Any) -> None:
        """A request of a program, or of a page that may ask."""
        exchange = HttpExchange(scope, receive, send)
        request, operation = self._find_operation(exchange)
        try:
            if not (request.subpath == "health" and request.headend.kind == HeadendKind.REST):
                request.agent = self._authenticate(exchange)
            if operation is None:
                raise HeadendError(
                    404,
                    "UNKNOWN_OPERATION",
                    f"{exchange.method} {clean_text(exchange.scope['path'], 200)} is not an operation of this headend.",
                )
            await operation(request)
        except NotFound as error:
            await self._refuse(request, from_error(error))
        except HeadendError as error:
            await self._refuse(request, error)
        except Exception:
            if exchange.streaming:
                raise  # only cutting the connection can tell the client
            log.exception("headend.crashed", path=exchange.scope["path"])
            await self._refuse(request, HeadendError(500, "INTERNAL_ERROR", _CRASHED, started=True))

    async def _refuse(self, request: RoutedRequest, error: HeadendError) -> None:
        exchange = request.exchange
        name = get_request_id(request.exchange)
        body = _KINDS[request.headend.kind](error, name)
        headers = [*error.headers, (b"request-id", f"req_{name}".encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="Slipsnisse"'))
        await exchange.answer(error.status, body, headers)

    def _find_operation(self, exchange: HttpExchange) -> tuple[RoutedRequest, Operation | None]:
        """Find the operation. If several headends share the path, the operation and the headers
        decide between them."""
        found = list(self._match(exchange.scope))
        if exchange.header(b"anthropic-version"):  # both APIs have models
            found.sort(key=lambda each: each[0].kind != HeadendKind.ANTHROPIC)
        else:
            found.sort(key=lambda each: each[0].kind != HeadendKind.OPENAI)
        for headend, below in found:
            if operation := _get_operation(headend.kind, exchange.method, below):
                return RoutedRequest(self, exchange, headend, below), operation
        return RoutedRequest(self, exchange, *found[0]), None

    def _authenticate(self, exchange: HttpExchange) -> AgentSpec:
        """Return the agent that the token belongs to. Raises HeadendError (401)."""
        token = get_token_hash(exchange)
        agent = self.engine.find_agent(token) if token else None
        if agent is None:
            problem = (
                "The token is unknown, expired or revoked." if token else "A token is required."
            )
            raise HeadendError(
                401, "UNAUTHENTICATED", f"{problem} Create one in the admin: Agents, Issue token."
            )
        self.engine.token_uses.add(token)
        return agent


def get_token_hash(exchange: HttpExchange) -> str:
    """Return the hash of the request's token, or "". Anthropic's clients may send the token as
    ``x-api-key``."""
    token = read_bearer_token(exchange.scope["headers"]) or exchange.header(b"x-api-key")
    return hash_token(token) if token else ""


def _get_operation(kind: str, method: str, below: str) -> Operation | None:
    exact = _OPERATIONS.get((kind, method, below))
    if exact is not None:
        return exact
    if kind in (HeadendKind.OPENAI, HeadendKind.ANTHROPIC):
        return _answer_model if method == "GET" and below.startswith("models/") else None
    return _answer_rest if method in ("GET", "POST") and below and "/" not in below else None


async def _answer_models(request: RoutedRequest) -> None:
    dialect = anthropic if request.headend.kind == HeadendKind.ANTHROPIC else openai
    await request.exchange.answer(200, dialect.models(request.list_models(), _CREATED))


async def _answer_model(request: RoutedRequest) -> None:
    name = request.subpath.removeprefix("models/")
    request.find_expert(name)
    dialect = anthropic if request.headend.kind == HeadendKind.ANTHROPIC else openai
    await request.exchange.answer(200, dialect.model(name, _CREATED))


async def _answer_completions(request: RoutedRequest) -> None:
    body = await request.exchange.read_json()
    request.find_expert(body.get("model"))
    chat, answer_format, renderer = openai.read_request(body)
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    await request.ask(body, chat, renderer, answer_format, most)


async def _answer_responses(request: RoutedRequest) -> None:
    body = await request.exchange.read_json()
    request.find_expert(body.get("model"))
    chat, answer_format, renderer = responses.read_request(body)
    await request.ask(body, chat, renderer, answer_format, body.get("max_output_tokens"))


async def _answer_messages(request: RoutedRequest) -> None:
    body = await request.exchange.read_json()
    request.find_expert(body.get("model"))
    chat, answer_format, renderer = anthropic.read_request(body)
    await request.ask(body, chat, renderer, answer_format, renderer.max_tokens)


async def _count(request: RoutedRequest) -> None:
    """Estimate the tokens of the messages. The tokens that the run reads in addition are not known
    in advance."""
    body = await request.exchange.read_json()
    request.find_expert(body.get("model"))
    count = sum(estimate_tokens(chat.text) for chat in anthropic.read_chat(body))
    await request.exchange.answer(200, {"input_tokens": count})


async def _answer_rest(request: RoutedRequest) -> None:
    expert = request.find_expert(request.subpath)
    given, answer_format, renderer = await rest.read_request(
        request.exchange, expert.name, expert.input_schema
    )
    await request.serve(
        request.subpath,
        expert,
        given,
        answer_format,
        renderer,
        stream=False,
        headers=renderer.headers,
    )


async def _answer_health(request: RoutedRequest) -> None:
    """Report that the interface works and, to agents, which servers have failed."""
    facts: dict[str, Any] = {"status": "ok"}
    if get_token_hash(request.exchange):
        agent = request.doors._authenticate(request.exchange)
        facts["failed_servers"] = sorted(_list_failed_servers(request.doors.engine, agent))
    await request.exchange.answer(200, facts)


def _list_failed_servers(engine: Engine, agent: AgentSpec) -> set[str]:
    """Return the unavailable servers among those that the agent's expert tools may use."""
    now = engine.live.current
    experts = [each for each in now.sections.get("experts", ()) if agent.slug in each.users]
    agents = [now.agents[each.agent] for each in experts if each.agent in now.agents]
    granted = {grant.server_id for each in agents for grant in each.grants}
    return {
        server.slug
        for server in now.servers.values()
        if server.id in granted and not server.available
    }


_OPERATIONS: Mapping[tuple[str, str, str], Operation] = {
    (HeadendKind.OPENAI, "GET", "models"): _answer_models,
    (HeadendKind.OPENAI, "POST", "chat/completions"): _answer_completions,
    (HeadendKind.OPENAI, "POST", "responses"): _answer_responses,
    (HeadendKind.ANTHROPIC, "GET", "models"): _answer_models,
    (HeadendKind.ANTHROPIC, "POST", "messages"): _answer_messages,
    (HeadendKind.ANTHROPIC, "POST", "messages/count_tokens"): _count,
    (HeadendKind.REST, "GET", "health"): _answer_health,
}
