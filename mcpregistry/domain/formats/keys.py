"""How one format spells a server entry: the table that the entry reader and writer follow.

One ``FormatKeys`` per format replaces a reader and a writer per format; what differs between hosts
stands side by side.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from mcpregistry.domain.formats.placeholders import OURS, Dialect
from mcpregistry.domain.servers.target import TransportKind

# By their letters alone: "Streamable-HTTP", "streamable_http" and "streamableHttp" are one word.
_TRANSPORTS: Mapping[str, TransportKind] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "https": "http",
    "streamable": "http",
    "streamablehttp": "http",
    "httpstream": "http",
    "sse": "sse",
    "httpsse": "sse",
    "websocket": "websocket",
    "ws": "websocket",
}

ALL_BY_NAME: Mapping[TransportKind, str] = {
    "stdio": "stdio",
    "http": "http",
    "sse": "sse",
    "websocket": "websocket",
}
NO_WEBSOCKET: Mapping[TransportKind, str] = {"stdio": "stdio", "http": "http", "sse": "sse"}
LOCAL_OR_REMOTE: Mapping[TransportKind, str] = {"stdio": "local", "http": "remote", "sse": "remote"}
ONLY_STDIO: Mapping[TransportKind, str] = {"stdio": "stdio"}


@dataclass(frozen=True, slots=True)
class OauthKeys:
    """``names`` maps fields of ``Oauth`` to the file's keys; ``scopes_as_text``: one string with
    spaces."""

    key: str
    names: Mapping[str, str]
    scopes_as_text: bool = False
    may_be_off: bool = False


@dataclass(frozen=True, slots=True)
class FormatKeys:
    """Empty means that the format has no place for it. Of several names the first is the one we
    write.

    ``transports``: how each transport is written; one that is absent cannot be written.
    ``unofficial``: columns that are read and written, though the host that owns the format may pay
    no attention to them.
    """

    family: str
    transports: Mapping[TransportKind, str]
    dialect: Dialect = OURS
    transport: tuple[str, ...] = ()
    says_stdio: bool = False
    command_as_array: bool = False
    args_required: bool = False
    name: str = ""
    env: tuple[str, ...] = ("env",)
    env_file: str = ""
    cwd: str = ""
    remote: bool = True
    enabled: tuple[str, ...] = ()
    enabled_required: bool = False
    auto_approve: tuple[str, ...] = ()
    tools: str = ""
    oauth: OauthKeys | None = None
    timeout: Literal["", "one", "two"] = ""
    unofficial: frozenset[str] = field(default_factory=frozenset)


def make_slug(key: str) -> str:
    """The key by which we know a server: 1 to 63 of ``[A-Za-z0-9._-]``, no ``__`` (it parts server
    and tool).

    A name in another script becomes ``server-`` and a digest. Returns an empty text for a name
    without letters and digits.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", key)
    made = re.sub(r"_{2,}", "_", plain).lstrip("._-")[:63]
    if made or not any(char.isalnum() for char in key):
        return made
    return f"server-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def parse_transport(name: str, url: str) -> TransportKind | None:
    """The transport that a file's word means, in any spelling; ``remote`` depends on the URL. None
    if unknown."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return infer_transport(url) if letters == "remote" else _TRANSPORTS.get(letters)


def infer_transport(url: str) -> TransportKind:
    """The transport of an entry that does not say: stdio without a URL; a path ending ``/sse``
    means SSE."""
    if not url:
        return "stdio"
    if url.startswith(("ws://", "wss://")):
        return "websocket"
    return "sse" if _strip_query(url).rstrip("/").endswith("/sse") else "http"


def _strip_query(url: str) -> str:
    return url.split("?", 1)[0].split("#", 1)[0]


def find_url_problem(url: str, transport: TransportKind) -> tuple[str, str] | None:
    """Why a URL cannot be used and what to do, or None. A URL that starts with a placeholder is
    looked at later."""
    if url.startswith("${"):
        return None
    schemes = ("ws", "wss") if transport == "websocket" else ("http", "https")
    try:
        parts = urlsplit(url)
    except ValueError:
        return "The URL is not valid.", "Write it as https://host/path."
    if parts.scheme not in schemes:
        return (
            f"The URL must start with {' or '.join(f'{scheme}://' for scheme in schemes)}.",
            "Correct the URL.",
        )
    if "@" in parts.netloc:
        return (
            "The URL contains a user name or password.",
            "Send the secret in a header, and write ${VAR} instead of the secret.",
        )
    return None if parts.netloc else ("The URL has no host name.", "Correct the URL.")
