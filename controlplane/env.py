"""Every environment variable that the site reads, in one table.

``manage.py doctor --env`` prints it, and a test holds docs/settings.md to it. A value may also be
given as a file: ``NAME_FILE=/path`` is read when ``NAME`` is unset (Docker and Kubernetes secrets).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from environ import Env


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: default as text, what it is for, and whether its value may be printed."""

    name: str
    default: str
    about: str
    secret: bool = False


TABLE: tuple[Variable, ...] = (
    Variable("SLIPSNISSE_VAR", "var", "folder for the database, keys, sockets and logs of an embedded site"),
    Variable("SLIPSNISSE_DEBUG", "0", "1 shows tracebacks in the browser; never in production"),
    Variable(
        "SLIPSNISSE_SECRET_KEY",
        "",
        "signs sessions and forms, and hashes what people confirm; made under var/ when unset. With another one, servers, "
        "providers and project files must be confirmed again",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_KEYS", "", "key ring for secrets in the database, newest first: k2:BASE64,k1:BASE64", secret=True
    ),
    Variable(
        "SLIPSNISSE_AUDIT_KEYS",
        "",
        "key ring that signs the audit log, newest first, as SLIPSNISSE_KEYS; derived from that ring when unset",
        secret=True,
    ),
    Variable("SLIPSNISSE_AUDIT_FILE", "", "file to which a worker appends each seal of the audit log (docs/audit.md)"),
    Variable("SLIPSNISSE_AUDIT_SYSLOG", "", "syslog that gets each seal: /dev/log or udp://HOST:PORT"),
    Variable("SLIPSNISSE_AUDIT_WEBHOOK", "", "address to which a worker posts each seal"),
    Variable("SLIPSNISSE_AUDIT_WEBHOOK_SECRET", "", "signs these posts (Standard Webhooks): whsec_BASE64", secret=True),
    Variable("SLIPSNISSE_AUDIT_BUCKET", "", "S3-compatible bucket that gets each seal: https://HOST/BUCKET/PREFIX"),
    Variable("SLIPSNISSE_AUDIT_BUCKET_REGION", "us-east-1", "the bucket's region"),
    Variable("SLIPSNISSE_AUDIT_BUCKET_KEY_ID", "", "who writes to the bucket: the id of an access key"),
    Variable("SLIPSNISSE_AUDIT_BUCKET_SECRET", "", "that access key's secret", secret=True),
    Variable(
        "SLIPSNISSE_AUDIT_NETWORKS", "", "private networks in which webhook and bucket lie, comma-separated: 10.0.0.0/8"
    ),
    Variable("SLIPSNISSE_HOSTS", "127.0.0.1,localhost,[::1]", "host names that the site answers to, comma-separated"),
    Variable("SLIPSNISSE_ORIGINS", "", "browser origins allowed besides the site's own, comma-separated"),
    Variable(
        "SLIPSNISSE_DOORS",
        "sse,ws",
        "doors for hosts besides streamable HTTP, comma-separated: sse (older HTTP+SSE), ws (WebSocket); none when empty",
    ),
    Variable(
        "SLIPSNISSE_URL", "", "address under which people and hosts reach the site; where it last started when unset"
    ),
    Variable("SLIPSNISSE_HTTPS", "0", "1 when a TLS proxy stands in front: secure cookies, HSTS, redirect"),
    Variable(
        "SLIPSNISSE_METRICS_LOCAL",
        "0",
        "1 lets programs of this machine read /metrics without a token, where no proxy and no tunnel ends on it",
    ),
    Variable("SLIPSNISSE_REGISTRY_PUBLIC", "0", "1 lets everybody read at /registry which endpoints there are"),
    Variable("SLIPSNISSE_FOUR_EYES", "0", "1: who made or changed a server's launch may not confirm it"),
    Variable(
        "SLIPSNISSE_MAINTENANCE",
        "",
        "kinds of requests that this process's sub-agent works on, comma-separated; all when unset",
    ),
    Variable("SLIPSNISSE_STDIO", "1", "0 forbids starting local (stdio) servers altogether"),
    Variable(
        "SLIPSNISSE_PASS_ENV", "", "variables that a server's ${NAME} may read, comma-separated; others stay unset"
    ),
    Variable(
        "SLIPSNISSE_PYPI_INDEX",
        "",
        "package index (PEP 503) from which servers' Python packages are installed; uv's own default, or what UV_DEFAULT_INDEX or PIP_INDEX_URL names, when unset",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_NPM_REGISTRY",
        "",
        "registry from which servers' npm packages are installed; npm's own default, or what npm_config_registry names, when unset",
        secret=True,
    ),
    Variable("MCP_TOOL_APPROVAL", "true", "false: a call that no policy rule speaks about runs without being approved"),
    Variable(
        "MCP_AUTO_DISCOVERY",
        "",
        "true: for agents that ask for a server the sub-agent searches registries by itself; false: never; the site's configuration says it when unset",
    ),
    Variable(
        "SLIPSNISSE_HOLD",
        "",
        "longest that a held call keeps its host waiting, in seconds; as long as the host bears when unset; agents and endpoints may have a shorter one",
    ),
    Variable("SLIPSNISSE_GRACE", "30", "seconds that a web process which is told to stop lets calls in flight end"),
    Variable("SLIPSNISSE_MAX_CONNECTIONS", "200", "live connections to servers per process; idle ones make way"),
    Variable(
        "SLIPSNISSE_CONNECTIONS_PER_ADDRESS",
        "500",
        "connections that one address may have to a web process; this machine and trusted proxies as many as they like",
    ),
    Variable(
        "SLIPSNISSE_PEER_ADDRESS",
        "",
        "address of this machine for the site's processes on other machines, with ports to choose from: 10.0.0.5:7000-7099 (docs/several-machines.md)",
    ),
    Variable("SLIPSNISSE_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR"),
    Variable("SLIPSNISSE_LOG_FORMAT", "auto", "auto (text on a terminal, JSON otherwise), text or json"),
    Variable(
        "SLIPSNISSE_DATABASE_POOL", "20", "most PostgreSQL connections that one process keeps in its pool, from 4 up"
    ),
    Variable(
        "SLIPSNISSE_BACKUP_PASSPHRASE", "", "seals the keys in backups; asked for on a terminal when unset", secret=True
    ),
    Variable("DATABASE_URL", "", "postgres://… ; SQLite under var/ when unset", secret=True),
    Variable(
        "EMAIL_URL", "", "mail server for notifications: smtp+tls://USER:PASSWORD@mail.example.org:587", secret=True
    ),
    Variable("SLIPSNISSE_MAIL_FROM", "slipsnisse@localhost", "sender of e-mail notifications"),
    Variable("CELERY_BROKER_URL", "", "redis://… or amqp://… ; the embedded Valkey under var/ when unset", secret=True),
)

_HOST_AND_PORTS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})(?:-([0-9]{1,5}))?)?")
_KNOWN = {variable.name: variable for variable in TABLE}


def text(name: str) -> str:
    """The variable's value, else the content of the file named by NAME_FILE, else its default."""
    variable = _KNOWN[name]
    if name in os.environ:
        return os.environ[name].strip()
    path = os.environ.get(f"{name}_FILE")
    return _content(name, path) if path else variable.default


def flag(name: str) -> bool:
    """A yes or no. Raises ImproperlyConfigured for any other word: a typo must not open a door."""
    value = text(name).lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off", ""}:
        return False
    raise ImproperlyConfigured(f"{name} must be 0 or 1, not {value!r}.")


def seconds(name: str) -> float | None:
    """A number of seconds, None when unset. Raises ImproperlyConfigured for anything else."""
    value = text(name)
    try:
        found = float(value) if value else None
    except ValueError:
        found = -1.0
    if found is not None and not 0 <= found < float("inf"):
        raise ImproperlyConfigured(f"{name} must be a number of seconds, not {value!r}.")
    return found


def words(name: str) -> list[str]:
    """A comma-separated list, without empty items."""
    return [word.strip() for word in text(name).split(",") if word.strip()]


def number(name: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ImproperlyConfigured for anything else."""
    value = text(name)
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise ImproperlyConfigured(f"{name} must be a whole number from {least} up, not {value!r}.")
    return int(value)


def choice(name: str, *allowed: str) -> str:
    """One of the allowed words. Raises ImproperlyConfigured for any other."""
    value = text(name)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
    return value


def host_and_ports(name: str) -> tuple[str, int, int] | None:
    """Host, first and last port of HOST, HOST:PORT or HOST:FIRST-LAST (0 to 0 without ports); None when unset.

    Raises ImproperlyConfigured for anything else.
    """
    if not (value := text(name)):
        return None
    found = _HOST_AND_PORTS.fullmatch(value)
    first, last = (int(found[2] or 0), int(found[3] or found[2] or 0)) if found else (1, 0)
    if not found or not first <= last < 65_536:
        raise ImproperlyConfigured(
            f"{name} must look like 10.0.0.5, 10.0.0.5:7000 or 10.0.0.5:7000-7099, not {value!r}."
        )
    return found[1], first, last


def mail(name: str) -> dict[str, Any]:
    """Django's ``EMAIL_…`` settings from a URL.

    Raises ImproperlyConfigured without quoting the URL, which holds a password.
    """
    try:
        config = Env.email_url_config(text(name))
    except (ValueError, KeyError, ImproperlyConfigured):
        config = {}
    if not config.get("EMAIL_HOST"):
        raise ImproperlyConfigured(f"{name} must look like smtp+tls://USER:PASSWORD@mail.example.org:587.")
    return {key: value for key, value in config.items() if key.startswith("EMAIL_") and key != "EMAIL_FILE_PATH"}


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}_FILE names {path}, which cannot be read: {error}.") from error
