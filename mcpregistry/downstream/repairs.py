"""Make answers of servers readable for every host, where what they say can mean one thing only.

Hosts on the official clients check each answer against the schema of the protocol and throw away
all of it for one member of the wrong type. So an answer that does not follow the schema is
rewritten: members of the wrong type that are optional are left out, and a part that is no content
of any known type becomes text with its JSON. Nothing is left out of what the server said. An answer
that does follow the schema is passed on as the very same object.

Source: MCP 2025-11-25 and 2026-07-28, ContentBlock, PromptMessage, ResourceContents.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcpregistry.domain.definition_members import drop_misfits
from mcpregistry.domain.errors import ProtocolError
from mcpregistry.domain.offer_kinds import PROMPT, TOOL

MAGIC_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF....WEBP", "image/webp"),
)
MAGIC_CHARACTERS = 24  # of Base64: the first 18 bytes
UNKNOWN_TYPE = "application/octet-stream"
_TO_STANDARD = str.maketrans("-_", "+/")
Part = dict[str, Any]


def repair_answer(result: Part, kind: str, name: str) -> Part:
    """Return the result of a call of this kind as hosts can read it; ``name`` is the URI of what
    was read.

    Raises ProtocolError for an answer to a prompt or a read that holds nothing that a host could
    read.
    """
    if result.get("resultType", "complete") != "complete":
        return result
    if kind == TOOL:
        return repair_result(result)
    return _repair_prompt(result) if kind == PROMPT else _repair_read(result, name)


def repair_result(result: Part) -> Part:
    """Return the result of a tool with a list of content, as every reader expects it."""
    if "content" not in result:  # servers older than 2024-11-05
        old = result.get("toolResult", result.get("structuredContent", result))
        result = {**result, "content": [_convert_to_text(old)]}
    elif type(result["content"]) is not list or not all(map(_is_plain_text, result["content"])):
        content = _repair_content(result)
        result = result if content == result["content"] else {**result, "content": content}
    if result.get("structuredContent", result) is None:
        result = _drop_keys(result, "structuredContent")
    failed = result.get("isError", False)
    return result if type(failed) is bool else {**result, "isError": failed in (1, "true", "True")}


def repair_part(part: object) -> Part:
    """Return one part of a tool's content or of a prompt's message as a content block of the
    protocol."""
    if not isinstance(part, dict):
        return _convert_to_text(part)
    kind = part.get("type")
    repair = _PARTS.get(kind) if isinstance(kind, str) else None
    if repair is None:
        only_text = "type" not in part and isinstance(part.get("text"), str)
        return repair_part({"type": "text", **part}) if only_text else _convert_to_text(part)
    return drop_misfits(repair(part))


def _repair_content(result: Part) -> list[Part]:
    content = result["content"]
    if content is None:
        structured = result.get("structuredContent")
        return [] if structured is None else [_convert_to_text(structured)]
    parts = content if type(content) is list else [content]
    return [repair_part(part) for part in parts if part is not None]


def _repair_prompt(result: Part) -> Part:
    messages = result.get("messages")
    if (
        all(map(_is_plain_message, messages if type(messages) is list else [messages]))
        and type(messages) is list
    ):
        return result
    listed = messages if type(messages) is list else [messages]
    return {**result, "messages": [each for message in listed for each in _repair_message(message)]}


def _repair_message(message: object) -> list[Part]:
    """Return the message, or one for each part where a server has put several into one. Raises
    ProtocolError."""
    role = message.get("role", "user") if isinstance(message, dict) else "user"
    if role not in ("user", "assistant"):
        raise _make_unreadable_error(
            f"one of its messages has the role {role!r} instead of 'user' or 'assistant'"
        )
    content = message.get("content") if isinstance(message, dict) else message
    if content is None:
        raise _make_unreadable_error("one of its messages has no content")
    parts = content if isinstance(content, list) else [content]
    return [{"role": role, "content": repair_part(part)} for part in parts if part is not None]


def _repair_read(result: Part, uri: str) -> Part:
    contents = result.get("contents", result.get("content"))
    if contents is None:
        raise _make_unreadable_error("it has no contents")
    listed = contents if type(contents) is list else [contents]
    if listed is result.get("contents") and all(map(_is_plain_resource, listed)):
        return result
    repaired = [_repair_resource(each, uri) for each in listed if each is not None]
    return {**_drop_keys(result, "content"), "contents": repaired}


def _repair_resource(content: object, uri: str) -> Part:
    """Return what was read as one text or one blob with the URI it was asked by where it names
    none."""
    if not isinstance(content, dict):
        return {"uri": uri, "text": _convert_to_text(content)["text"]}
    if isinstance(content.get("resource"), dict):
        return _repair_resource(content["resource"], uri)
    found = {key: value for key, value in content.items() if value is not None and key != "type"}
    if content.get("type") in ("image", "audio") and isinstance(content.get("data"), str):
        found["blob"] = found.pop("data")
    if not isinstance(found.get("blob"), str):
        found.pop("blob", None)
        said = found.get("text", _drop_keys(found, "uri") if "text" not in found else "")
        found = {key: found[key] for key in ("uri", "mimeType", "_meta") if key in found} | {
            "text": _convert_to_text(said)["text"]
        }
    if not isinstance(found.get("uri"), str):
        found["uri"] = uri
    return drop_misfits(found)


def _repair_text(part: Part) -> Part:
    text = part.get("text")
    if isinstance(text, str):
        return part
    return {**part, "text": "" if text is None else _convert_to_text(text)["text"]}


def _repair_media(part: Part) -> Part:
    """Give an image or a sound plain Base64 and its type, whatever else the server has put into its
    place."""
    data = part.get("data")
    mime = part.get("mimeType", part.get("mediaType", part.get("mime_type")))
    if not isinstance(data, str):
        return _convert_to_text(part)
    if data.startswith("data:") and "," in data:
        head, data = data.split(",", 1)
        mime = head.removeprefix("data:").split(";")[0] or mime
    elif data.startswith(("http://", "https://")):
        return _repair_link({"type": "resource_link", "uri": data, "mimeType": mime})
    if "-" in data or "_" in data:
        data = data.translate(_TO_STANDARD)
    mime = (part.get("type") == "image" and _sniff(data)) or (
        mime if isinstance(mime, str) and mime else UNKNOWN_TYPE
    )
    if data == part["data"] and mime == part.get("mimeType"):
        return part
    return {**_drop_keys(part, "mediaType", "mime_type"), "data": data, "mimeType": mime}


def _sniff(data: str) -> str:
    """Return the type of an image that its first bytes name; empty for one that is not known."""
    head = data[:MAGIC_CHARACTERS]
    try:
        first = base64.b64decode(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return ""
    if first.startswith(b"RIFF"):
        first = first[:4] + b"...." + first[8:]
    return next((mime for magic, mime in MAGIC_BYTES if first.startswith(magic)), "")


def _repair_link(part: Part) -> Part:
    uri = part.get("uri")
    if not isinstance(uri, str):
        return _convert_to_text(part)
    if isinstance(part.get("name"), str):
        return part
    return {**part, "name": uri.rstrip("/").rsplit("/", 1)[-1] or uri}


def _repair_embedded(part: Part) -> Part:
    resource = part.get("resource")
    if not isinstance(resource, dict) or not isinstance(resource.get("uri"), str):
        said = resource.get("text") if isinstance(resource, dict) else None
        return _convert_to_text(said if isinstance(said, str) else part)
    return (
        part
        if _is_plain_resource(resource)
        else {**part, "resource": _repair_resource(resource, resource["uri"])}
    )


_PARTS: Mapping[str, Callable[[Part], Part]] = {
    "text": _repair_text,
    "image": _repair_media,
    "audio": _repair_media,
    "resource_link": _repair_link,
    "resource": _repair_embedded,
}


def _is_plain_text(part: object) -> bool:
    return (
        type(part) is dict
        and len(part) == 2
        and part.get("type") == "text"
        and type(part.get("text")) is str
    )


def _is_plain_message(message: object) -> bool:
    return (
        type(message) is dict
        and message.get("role") in ("user", "assistant")
        and _is_plain_text(message.get("content"))
    )


def _is_plain_resource(content: object) -> bool:
    if type(content) is not dict or type(content.get("uri")) is not str:
        return False
    held = [content[key] for key in ("text", "blob") if key in content]
    return (
        bool(held) and all(type(each) is str for each in held) and drop_misfits(content) is content
    )


def _convert_to_text(value: object) -> Part:
    return {
        "type": "text",
        "text": value if isinstance(value, str) else msgspec.json.encode(value).decode(),
    }


def _drop_keys(part: Part, *keys: str) -> Part:
    return {key: value for key, value in part.items() if key not in keys}


def _make_unreadable_error(why: str) -> ProtocolError:
    return ProtocolError(f"The server's answer cannot be read: {why}.", sent=True)
