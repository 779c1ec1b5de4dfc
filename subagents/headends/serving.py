"""How every interface serves a question: in one piece, or as a stream that is kept alive while the run works.

The answer of a model is not passed on piece by piece while it comes: a stream that was cut would look like a whole answer, and a
model that takes over could not take back what was said. So the text follows in pieces once the run has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

import structlog

from subagents.headends.errors import Refused
from subagents.headends.session import Left, Reply, Session
from subagents.headends.wire import Exchange, Headers, kept_alive, stopped


class Shape(Protocol):
    """How an interface says it; made for one request. ``call`` is the id of the call, which the answer's own id is made of."""

    def whole(self, call: str, reply: Reply) -> Any:
        """The answer in one piece: a JSON value, or bytes."""

    def opening(self, call: str) -> bytes:
        """The first events of a stream."""

    def pulse(self, call: str, doing: str) -> bytes:
        """What is said while nothing is to be said; ``doing``: what the run does now, in words."""

    def closing(self, call: str, reply: Reply) -> Iterator[bytes]:
        """The text, and the last events."""

    def error(self, refused: Refused, request: str) -> Any:
        """The body of a refusal; ``request`` is the id of the request."""

    def broken(self, refused: Refused, request: str) -> bytes:
        """A refusal within a stream."""


async def serve(
    session: Session, exchange: Exchange, shape: Shape, *, stream: bool, headers: Headers | None = None
) -> None:
    """Answer the question. A client that leaves meanwhile takes its run with it. Raises Refused before anything was said."""
    watching = asyncio.ensure_future(exchange.watch())
    try:
        await session.enter()
        named = [(b"x-slipsnisse-call", session.call.encode()), *(headers or [])]
        if stream:
            await exchange.begin(named)
            await exchange.write(shape.opening(session.call))
        reply = await _answered(session, exchange, shape, stream=stream)
        await session.leave()  # before the answer: the client's next request may come at once
        if stream:
            for part in shape.closing(session.call, reply):
                await exchange.write(part)
            await exchange.end()
        else:
            run = [(b"x-slipsnisse-run", reply.run.encode())] if reply.run else []
            await exchange.answer(200, shape.whole(session.call, reply), [*named, *run])
    except Left:
        return
    except Refused as refused:
        if not exchange.streaming:
            raise
        await session.leave()
        await exchange.end(shape.broken(refused, request_id(exchange)))
    finally:
        await stopped(watching)
        await asyncio.shield(session.leave())


async def _answered(session: Session, exchange: Exchange, shape: Shape, *, stream: bool) -> Reply:
    work = asyncio.ensure_future(session.answer(exchange.left))

    async def pulse() -> None:
        await exchange.write(shape.pulse(session.call, session.doing))

    try:
        if stream:
            await kept_alive(work, pulse)
        return await work
    finally:
        await stopped(work)


def request_id(exchange: Exchange) -> str:
    """As the log has it, for errors that name it."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
