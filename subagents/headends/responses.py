"""OpenAI's responses, as Codex and agent SDKs use them. Source: OpenAI API reference, "Responses";
tried with the official client.

Nothing is stored for a later request: ``store`` changes nothing, and references such as
``previous_response_id`` are refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from subagents.domain.formats import AnswerFormat
from subagents.headends.chat_arguments import ChatMessage, invalid_request, read_messages, read_text
from subagents.headends.errors import HeadendError
from subagents.headends.openai import answer_text, comment, read_answer_format
from subagents.headends.queued_request import RunReply, RunUsage
from subagents.llm.scripted.stream_pieces import event, pieces


@dataclass
class ResponseRenderer:
    """The renderer of one response. Events are numbered in the order in which they are sent."""

    waiting_status: ClassVar[int] = 200
    model: str
    instructions: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: int = 0
    _call: str = ""

    def render(self, call: str, reply: RunReply) -> dict[str, Any]:
        """``response``."""
        cut = reply.finish == "length"
        done = {
            "status": "incomplete" if cut else "completed",
            "output": [self._item(call, answer_text(reply), "incomplete" if cut else "completed")],
            "usage": usage(reply.usage),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        }
        return self._response(call) | done

    def render_start(self, call: str) -> bytes:
        """Return the events of the start."""
        self._call = call
        begun = self._response(call)
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def render_keepalive(self, call: str, status: str) -> bytes:
        """Return a comment, which clients skip."""
        return comment(status)

    def render_end(self, call: str, reply: RunReply) -> Iterator[bytes]:
        """Yield one message with one text, then the whole response."""
        status = "incomplete" if reply.finish == "length" else "completed"
        text = answer_text(reply)
        place = {"item_id": f"msg_{call}", "output_index": 0, "content_index": 0}
        begun = self._item(call, None, "in_progress")
        yield self._event("response.output_item.added", output_index=0, item=begun)
        yield self._event("response.content_part.added", **place, part=_text(""))
        for piece in pieces(text):
            yield self._event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield self._event("response.output_text.done", **place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=_text(text))
        yield self._event(
            "response.output_item.done", output_index=0, item=self._item(call, text, status)
        )
        yield self._event(f"response.{status}", response=self.render(call, reply))

    def render_stream_error(self, error: HeadendError, request: str) -> bytes:
        """Return ``response.failed``."""
        problem = {"code": _error_code(error), "message": f"{error.message} ({error.code})"}
        failed = self._response(self._call) | {"status": "failed", "error": problem}
        return self._event("response.failed", response=failed)

    def _event(self, kind: str, **data: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self._sent, **data}
        self._sent += 1
        return event(numbered, kind)

    def _item(self, call: str, text: str | None, status: str) -> dict[str, Any]:
        """Return the message of the response. ``text`` is None while it is in progress."""
        content = [] if text is None else [_text(text)]
        return {
            "id": f"msg_{call}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, call: str) -> dict[str, Any]:
        return {
            "id": f"resp_{call}",
            "object": "response",
            "created_at": self.created,
            "status": "in_progress",
            "model": self.model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "metadata": {},
            "parallel_tool_calls": False,
            "temperature": None,
            "top_p": None,
            "tool_choice": "none",
            "tools": [],
            "store": False,
            "previous_response_id": None,
            "usage": None,
        }


def _error_code(error: HeadendError) -> str:
    """Return a code of this API. Codex sends the request again after all codes but a few, among
    them ``invalid_prompt``."""
    if not error.may_retry:
        return "invalid_prompt"
    return "rate_limit_exceeded" if error.status == 429 else "server_error"


def read_request(
    body: Mapping[str, Any],
) -> tuple[list[ChatMessage], AnswerFormat, ResponseRenderer]:
    """Read a request for a response. Raises HeadendError (400)."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name):
            raise _reference_refused(name)
    if body.get("background"):
        raise invalid_request(
            "background is not supported, because responses are not stored.", "background"
        )
    instructions = read_text(body.get("instructions"), "instructions")
    first = [ChatMessage("system", instructions)] if instructions.strip() else []
    form = body.get("text")
    kind = (
        read_answer_format(form.get("format"), "text.format")
        if isinstance(form, dict)
        else read_answer_format(None, "text.format")
    )
    return (
        first + _input(body.get("input")),
        kind,
        ResponseRenderer(str(body.get("model")), instructions or None),
    )


def _input(found: object) -> list[ChatMessage]:
    """Read a text, or items. Calls and results of the client's own tools are ignored."""
    if isinstance(found, str):
        return [ChatMessage("user", found)]
    items = found if isinstance(found, list) else []
    if any(isinstance(item, dict) and item.get("type") == "item_reference" for item in items):
        raise _reference_refused("item_reference")
    told = [
        {"type": "message", **item} if isinstance(item, dict) and "role" in item else item
        for item in items
    ]
    return read_messages(
        [item for item in told if not isinstance(item, dict) or item.get("type") == "message"],
        place="input",
    )


def _reference_refused(name: str) -> HeadendError:
    return invalid_request(
        f"{name} is not supported, because nothing is stored for later requests. Send the whole conversation as input.",
        name,
    )


def usage(used: RunUsage) -> dict[str, Any]:
    """Return the usage in the form of responses."""
    return {
        "input_tokens": used.input,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.output,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.input + used.output,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
