"""The HTTP door of headends: finds the headend by its path, the agent by its token, and the interface's own operation.

In this order, as at the MCP door: origin, token, operation. Whoever has no valid token learns nothing of what is there. The Host
header is checked by the shell around the whole site.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import structlog
from django.conf import settings

from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.engine import Engine
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.specs import AgentSpec
from mcpregistry.domain.text.canonical import plain
from mcpregistry.gateway.http import cors
from mcpregistry.gateway.identity import bearer
from mcpregistry.services.access.tokens import token_hash
from subagents.domain.formats import ANY, Wanted
from subagents.headends import anthropic, openai, responses, rest
from subagents.headends.asking import Said, arguments_of, is_background
from subagents.headends.errors import Refused, of_error
from subagents.headends.serving import Shape, request_id, serve
from subagents.headends.session import Desk, Question, Session
from subagents.headends.wire import Exchange, Headers
from subagents.llm.tokens import estimated
from subagents.models import HeadendKind
from subagents.runs.tool_source import KIND, find_expert
from subagents.services.headends.configuring import SECTION, HeadendSpec
from subagents.services.offers import Offered

log = structlog.get_logger(__name__)

ONLY = "slipsnisse.headends"  # in a request's scope: the names of the headends that may answer it
_CREATED = 1_767_225_600  # 2026-01-01; models have no date of their own that would mean anything
_KINDS: Mapping[str, Any] = {
    HeadendKind.OPENAI: openai.error_body, HeadendKind.ANTHROPIC: anthropic.error_body, HeadendKind.REST: rest.error_body,
}  # fmt: skip
_FOREIGN = "Requests from this web page are not allowed. Add its origin to SLIPSNISSE_ORIGINS."
_CRASHED = (
    "The site failed to answer; its log has the details. Look at the runs before you ask again: one may have begun."
)
Operation = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One request that has found its headend, and whose agent is known."""

    def __init__(self, doors: Headends, exchange: Exchange, headend: HeadendSpec, rest_of_path: str) -> None:
        self.doors, self.exchange, self.headend, self.below = doors, exchange, headend, rest_of_path
        self.agent: AgentSpec | None = None

    @property
    def catalogue(self) -> Catalogue:
        """What the agent sees at the headend's endpoint."""
        assert self.agent is not None
        return self.doors.engine.catalogue(self.headend.endpoint, self.agent.slug)

    def names(self) -> list[str]:
        """The ids of all models that this agent may call, aliases included."""
        own = [name for name, entry in self.catalogue.entries.items() if entry.offer.kind == KIND]
        return sorted({*own, *(alias for alias, name in self.headend.aliases.items() if name in own)})

    def expert(self, model: object) -> Offered:
        """The expert tool that a model id means. Raises Refused (404), the same for what is absent and what is not granted."""
        name = self.headend.aliases.get(str(model), str(model))
        entry = self.catalogue.entries.get(name)
        found = find_expert(self.doors.engine.live.current, name) if entry and entry.offer.kind == KIND else None
        if found is None:
            known = ", ".join(self.names()[:20]) or "none"
            raise Refused(
                404,
                "NOT_FOUND",
                f"The model '{plain(str(model), 200)}' does not exist. There are: {known}.",
                param="model",
            )
        return found

    async def ask(self, body: Mapping[str, Any], said: list[Said], shape: Shape, wanted: Wanted, most: object) -> None:
        """Answer the messages of a chat."""
        expert = self.expert(body.get("model"))
        if is_background(said) and not self.headend.background_prompts:
            raise Refused(
                400, "background_prompt", "Chat clients ask by themselves for titles, tags and the like. Each would be a run, so this "
                "headend refuses it: choose another model for such tasks in the client, or allow it at the headend.",
            )  # fmt: skip
        arguments = arguments_of(said, expert.input_schema)
        stream = body.get("stream") is True
        await self.serve(str(body.get("model")), expert, arguments, wanted, shape, stream=stream, most=most)

    async def serve(
        self, model: str, expert: Offered, arguments: Mapping[str, Any], wanted: Wanted, shape: Shape, *,
        stream: bool, most: object = None, headers: Headers | None = None,
    ) -> None:  # fmt: skip
        """Answer a question that is ready to be asked."""
        assert self.agent is not None
        question = Question(
            model=model, expert=expert.name, arguments=arguments, wanted=wanted, token_hash=token_of(self.exchange),
            client=plain(self.exchange.header(b"user-agent"), 100), key=self._key(),
            most=most if type(most) is int and most > 0 else None,
        )  # fmt: skip
        session = Session(self.doors.desk, self.headend, self.agent.slug, question)
        await serve(session, self.exchange, shape, stream=stream, headers=headers)

    def _key(self) -> str:
        key = self.exchange.header(b"idempotency-key")
        if len(key) > 200:
            raise Refused(400, "invalid_request", "An Idempotency-Key has at most 200 characters.")
        return key


class Headends:
    """The ASGI application behind all paths of headends; one per process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.desk = Desk(engine)

    def answers(self, scope: Mapping[str, Any]) -> bool:
        """Whether a headend has the path of this request."""
        return any(True for _ in self._found(scope))

    async def close(self) -> None:
        """The process stops."""
        await self.desk.close()

    def begin_stop(self) -> None:
        """Open requests are told so; their runs go on."""
        self.desk.watch.stop()

    def _found(self, scope: Mapping[str, Any]) -> Iterator[tuple[HeadendSpec, str]]:
        """The headends at this path, and what of it lies below them. A process may serve only some at a port (``ONLY``)."""
        path, only = scope["path"], scope.get(ONLY)
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
        """One HTTP request."""
        try:
            origin = cors.origin_of(scope["headers"], settings.MCP_ALLOWED_ORIGINS)
        except cors.Foreign:
            await Exchange(scope, receive, send).answer(
                403, openai.error_body(Refused(403, "ORIGIN_REFUSED", _FOREIGN))
            )
            return
        if origin is not None:
            if cors.is_preflight(scope):
                await cors.answer_preflight(origin, scope, send)
                return
            send = cors.opened(origin, send)
        await self._serve(Exchange(scope, receive, send))

    async def _serve(self, exchange: Exchange) -> None:
        visit, operation = self._operation(exchange)
        try:
            if not (visit.below == "health" and visit.headend.kind == HeadendKind.REST):
                visit.agent = self._agent(exchange)
            if operation is None:
                raise Refused(
                    404, "NOT_FOUND", f"There is no {exchange.method} {plain(exchange.scope['path'], 200)} here."
                )
            await operation(visit)
        except NotFound as error:
            await self._refuse(visit, of_error(error))
        except Refused as refused:
            await self._refuse(visit, refused)
        except Exception:
            if exchange.streaming:
                raise  # only cutting the connection can tell the client
            log.exception("headend.crashed", path=exchange.scope["path"])
            await self._refuse(visit, Refused(500, "INTERNAL_ERROR", _CRASHED, started=True))

    async def _refuse(self, visit: Visit, refused: Refused) -> None:
        exchange, request = visit.exchange, request_id(visit.exchange)
        body = _KINDS[visit.headend.kind](refused, request)
        headers = [*refused.headers, (b"request-id", f"req_{request}".encode())]
        if refused.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="Slipsnisse"'))
        await exchange.answer(refused.status, body, headers)

    def _operation(self, exchange: Exchange) -> tuple[Visit, Operation | None]:
        """What is asked for. Two headends may share a path: whose the request is shows by its operation and its headers."""
        found = list(self._found(exchange.scope))
        if exchange.header(b"anthropic-version"):  # both APIs have models
            found.sort(key=lambda each: each[0].kind != HeadendKind.ANTHROPIC)
        else:
            found.sort(key=lambda each: each[0].kind != HeadendKind.OPENAI)
        for headend, below in found:
            if operation := _operation_of(headend.kind, exchange.method, below):
                return Visit(self, exchange, headend, below), operation
        return Visit(self, exchange, *found[0]), None

    def _agent(self, exchange: Exchange) -> AgentSpec:
        """Whose token it is. Anthropic's clients send it as ``x-api-key``, all others as a bearer token."""
        token = token_of(exchange)
        agent = self.engine.agent_of(token) if token else None
        if agent is None:
            problem = "The token is unknown, expired or revoked." if token else "A token is needed."
            raise Refused(401, "UNAUTHENTICATED", f"{problem} Issue one in the admin: Agents, Issue token.")
        return agent


def token_of(exchange: Exchange) -> str:
    """The hash of the request's token; "" without one."""
    token = bearer(exchange.scope["headers"]) or exchange.header(b"x-api-key")
    return token_hash(token) if token else ""


def _operation_of(kind: str, method: str, below: str) -> Operation | None:
    exact = _OPERATIONS.get((kind, method, below))
    if exact is not None:
        return exact
    if kind in (HeadendKind.OPENAI, HeadendKind.ANTHROPIC):
        return _model if method == "GET" and below.startswith("models/") else None
    return _rest if method in ("GET", "POST") and below and "/" not in below else None


async def _models(visit: Visit) -> None:
    dialect = anthropic if visit.headend.kind == HeadendKind.ANTHROPIC else openai
    await visit.exchange.answer(200, dialect.models(visit.names(), _CREATED))


async def _model(visit: Visit) -> None:
    name = visit.below.removeprefix("models/")
    visit.expert(name)
    dialect = anthropic if visit.headend.kind == HeadendKind.ANTHROPIC else openai
    await visit.exchange.answer(200, dialect.model(name, _CREATED))


async def _completions(visit: Visit) -> None:
    body = await visit.exchange.json()
    visit.expert(body.get("model"))
    said, wanted, shape = openai.read(body)
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    await visit.ask(body, said, shape, wanted, most)


async def _responses(visit: Visit) -> None:
    body = await visit.exchange.json()
    visit.expert(body.get("model"))
    said, wanted, shape = responses.read(body)
    await visit.ask(body, said, shape, wanted, body.get("max_output_tokens"))


async def _messages(visit: Visit) -> None:
    body = await visit.exchange.json()
    visit.expert(body.get("model"))
    said, shape = anthropic.read(body)
    await visit.ask(body, said, shape, ANY, shape.most)


async def _count(visit: Visit) -> None:
    """What the client sends; what its run reads beside that is not known before."""
    body = await visit.exchange.json()
    visit.expert(body.get("model"))
    count = sum(estimated(said.text) for said in anthropic.asked(body))
    await visit.exchange.answer(200, {"input_tokens": count})


async def _rest(visit: Visit) -> None:
    expert = visit.expert(visit.below)
    given, wanted, shape = await rest.read(visit.exchange, expert.name, expert.input_schema)
    await visit.serve(visit.below, expert, given, wanted, shape, stream=False, headers=shape.headers)


async def _health(visit: Visit) -> None:
    """Whether the interface works; which servers have failed is told to agents alone."""
    facts: dict[str, Any] = {"status": "ok"}
    if token_of(visit.exchange):
        agent = visit.doors._agent(visit.exchange)
        facts["failed_servers"] = sorted(_failed(visit.doors.engine, agent))
    await visit.exchange.answer(200, facts)


def _failed(engine: Engine, agent: AgentSpec) -> set[str]:
    """Servers granted to the agents of the expert tools that it may call, which do not work now."""
    now = engine.live.current
    experts = [each for each in now.sections.get("experts", ()) if agent.slug in each.users]
    granted = {grant.server_id for each in experts if (own := now.agents.get(each.agent)) for grant in own.grants}
    return {server.slug for server in now.servers.values() if server.id in granted and not server.available}


_OPERATIONS: Mapping[tuple[str, str, str], Operation] = {
    (HeadendKind.OPENAI, "GET", "models"): _models,
    (HeadendKind.OPENAI, "POST", "chat/completions"): _completions,
    (HeadendKind.OPENAI, "POST", "responses"): _responses,
    (HeadendKind.ANTHROPIC, "GET", "models"): _models,
    (HeadendKind.ANTHROPIC, "POST", "messages"): _messages,
    (HeadendKind.ANTHROPIC, "POST", "messages/count_tokens"): _count,
    (HeadendKind.REST, "GET", "health"): _health,
}
