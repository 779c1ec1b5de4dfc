"""Every environment variable that the site reads, in one table.

``manage.py doctor --env`` prints the table, docs/settings.md shows it, and a test compares the two.
A value can also be in a file: ``NAME_FILE=/path`` is read if ``NAME`` is unset (Docker and
Kubernetes secrets).
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
    """One environment variable: its default as text, its purpose, and whether its value is a
    secret."""

    name: str
    default: str
    about: str
    secret: bool = False


TABLE: tuple[Variable, ...] = (
    Variable(
        "SLIPSNISSE_VAR",
        "var",
        "Directory of the site. It contains the database, keys, sockets and logs.",
    ),
    Variable(
        "SLIPSNISSE_DEBUG",
        "0",
        "If 1, the browser shows tracebacks. Do not use this in production.",
    ),
    Variable(
        "SLIPSNISSE_SECRET_KEY",
        "",
        "Key that signs sessions and forms. It is also part of the fingerprints of confirmed servers, providers "
        "and project files. If unset, the site creates a key in SLIPSNISSE_VAR. If you change the key, servers, "
        "providers and project files must be confirmed again.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_KEYS",
        "",
        "Keys that encrypt secrets in the database, newest first: k2:BASE64,k1:BASE64 (docs/rotate-keys.md). If "
        "unset, the site creates the file keys.json in SLIPSNISSE_VAR.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_AUDIT_KEYS",
        "",
        "Keys that sign the audit log, newest first, in the same format as SLIPSNISSE_KEYS. If unset, the site "
        "derives them from the keys that encrypt secrets.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_AUDIT_FILE",
        "",
        "File to which a worker appends each checkpoint of the audit log (docs/audit.md).",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_SYSLOG",
        "",
        "Syslog server that receives each checkpoint of the audit log: /dev/log or udp://HOST:PORT.",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_WEBHOOK",
        "",
        "Address to which a worker sends each checkpoint of the audit log as a POST request.",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_WEBHOOK_SECRET",
        "",
        "Secret that signs the requests to SLIPSNISSE_AUDIT_WEBHOOK (Standard Webhooks): whsec_BASE64.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_AUDIT_BUCKET",
        "",
        "S3-compatible bucket that receives each checkpoint of the audit log: https://HOST/BUCKET/PREFIX.",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_BUCKET_REGION",
        "us-east-1",
        "Region of the bucket in SLIPSNISSE_AUDIT_BUCKET.",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_BUCKET_KEY_ID",
        "",
        "ID of the access key with which the site writes to the bucket in SLIPSNISSE_AUDIT_BUCKET.",
    ),
    Variable(
        "SLIPSNISSE_AUDIT_BUCKET_SECRET",
        "",
        "Secret of the access key in SLIPSNISSE_AUDIT_BUCKET_KEY_ID.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_AUDIT_NETWORKS",
        "",
        "Private networks that contain the webhook or the bucket for checkpoints, comma-separated, for example "
        "10.0.0.0/8. If the webhook or the bucket has a private address outside of these networks, no checkpoints "
        "are sent to it.",
    ),
    Variable(
        "SLIPSNISSE_HOSTS",
        "127.0.0.1,localhost,[::1]",
        "Host names of the site, comma-separated. Requests to other host names are refused.",
    ),
    Variable(
        "SLIPSNISSE_ORIGINS",
        "",
        "Origins of other web pages that may send requests to the site, comma-separated: https://app.example.org.",
    ),
    Variable(
        "SLIPSNISSE_DOORS",
        "sse,ws",
        "Transports that hosts can use in addition to stdio and streamable HTTP, comma-separated: sse (HTTP+SSE of "
        "2024-11-05) and ws (WebSocket). If empty, both are disabled.",
    ),
    Variable(
        "SLIPSNISSE_URL",
        "",
        "Address of the site for users and hosts. If unset, the site uses the address at which it was last started.",
    ),
    Variable(
        "SLIPSNISSE_HTTPS",
        "0",
        "Set this to 1 if the site is behind a TLS proxy. It enables secure cookies, HSTS, and a redirect to HTTPS.",
    ),
    Variable(
        "SLIPSNISSE_METRICS_LOCAL",
        "0",
        "If 1, programs on this machine can read /metrics without a token. Do not set this if a proxy or tunnel on "
        "this machine forwards requests from other machines.",
    ),
    Variable(
        "SLIPSNISSE_REGISTRY_PUBLIC",
        "0",
        "If 1, anyone can read the list of endpoints at /registry without a token.",
    ),
    Variable(
        "SLIPSNISSE_FOUR_EYES",
        "0",
        "If 1, users cannot confirm the launch of a server that they have added or changed themselves.",
    ),
    Variable(
        "SLIPSNISSE_MAINTENANCE",
        "",
        "Kinds of maintenance requests that the background sub-agent in this process handles, comma-separated. If "
        "unset, the sub-agent handles all kinds.",
    ),
    Variable(
        "SLIPSNISSE_STDIO",
        "1",
        "If 0, local (stdio) servers are forbidden.",
    ),
    Variable(
        "SLIPSNISSE_PASS_ENV",
        "",
        "Names of the environment variables that servers and providers can use as ${NAME} in their configuration, "
        "comma-separated. Servers and providers cannot use any other environment variable of the site.",
    ),
    Variable(
        "SLIPSNISSE_PYPI_INDEX",
        "",
        "Package index (PEP 503) from which Python packages of servers are installed. If unset, the site uses the "
        "index in UV_DEFAULT_INDEX or PIP_INDEX_URL, or the default index of uv.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_NPM_REGISTRY",
        "",
        "Registry from which npm packages of servers are installed. If unset, the site uses the registry in "
        "npm_config_registry, or the default registry of npm.",
        secret=True,
    ),
    Variable(
        "MCP_TOOL_APPROVAL",
        "true",
        "If false, calls that match no rule run without an approval.",
    ),
    Variable(
        "MCP_AUTO_DISCOVERY",
        "",
        "If true, the background sub-agent can search registries when an agent asks for a server. If false, it "
        "cannot. If unset, the configuration of the site decides.",
    ),
    Variable(
        "SLIPSNISSE_HOLD",
        "",
        "Maximum time in seconds for which the site keeps a host waiting for the approval of a held call. Then the "
        'host gets the answer "pending". If unset, the time depends on the host (docs/held-calls-in-hosts.md). You '
        "can set a shorter time for an agent or an endpoint.",
    ),
    Variable(
        "SLIPSNISSE_GRACE",
        "30",
        "Maximum time in seconds for which a web process waits for running calls when it is stopped.",
    ),
    Variable(
        "SLIPSNISSE_MAX_CONNECTIONS",
        "200",
        "Maximum number of connections that one process has to servers. If more are needed, the process closes idle "
        "connections.",
    ),
    Variable(
        "SLIPSNISSE_CONNECTIONS_PER_ADDRESS",
        "500",
        "Maximum number of connections from one address to one web process. This limit does not apply to connections "
        "from this machine and from trusted proxies.",
    ),
    Variable(
        "SLIPSNISSE_PEER_ADDRESS",
        "",
        "Address at which the site's processes on other machines reach this machine, optionally with a range of ports: "
        "10.0.0.5:7000-7099 (docs/several-machines.md).",
    ),
    Variable(
        "SLIPSNISSE_LOG_LEVEL",
        "INFO",
        "Log messages of this level and of more severe levels are written: DEBUG, INFO, WARNING or ERROR.",
    ),
    Variable(
        "SLIPSNISSE_LOG_FORMAT",
        "auto",
        "Format of the log: text, json, or auto (text on a terminal, JSON otherwise).",
    ),
    Variable(
        "SLIPSNISSE_DATABASE_POOL",
        "20",
        "Maximum number of PostgreSQL connections in the pool of one process, at least 4.",
    ),
    Variable(
        "SLIPSNISSE_BACKUP_PASSPHRASE",
        "",
        "Passphrase that encrypts the keys in backups. If unset, the commands for backups ask for it on a terminal.",
        secret=True,
    ),
    Variable(
        "DATABASE_URL",
        "",
        "Address of the database: postgres://… If unset, the site uses SQLite in SLIPSNISSE_VAR.",
        secret=True,
    ),
    Variable(
        "EMAIL_URL",
        "",
        "Address of the mail server for notifications: smtp+tls://USER:PASSWORD@mail.example.org:587.",
        secret=True,
    ),
    Variable(
        "SLIPSNISSE_MAIL_FROM",
        "slipsnisse@localhost",
        "Address from which e-mail notifications are sent.",
    ),
    Variable(
        "CELERY_BROKER_URL",
        "",
        "Address of the broker: redis://… or amqp://… If unset, the site uses the embedded Valkey in SLIPSNISSE_VAR.",
        secret=True,
    ),
)

_HOST_AND_PORTS = re.compile(
    r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})(?:-([0-9]{1,5}))?)?"
)
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
        raise ImproperlyConfigured(
            f"{name} must be a number of seconds of at least 0, not {value!r}."
        )
    return found


def words(name: str) -> list[str]:
    """A comma-separated list, without empty items."""
    return [word.strip() for word in text(name).split(",") if word.strip()]


def number(name: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ImproperlyConfigured for anything else."""
    value = text(name)
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise ImproperlyConfigured(
            f"{name} must be a whole number of at least {least}, not {value!r}."
        )
    return int(value)


def choice(name: str, *allowed: str) -> str:
    """One of the allowed words. Raises ImproperlyConfigured for any other."""
    value = text(name)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
    return value


def host_and_ports(name: str) -> tuple[str, int, int] | None:
    """Host, first and last port of HOST, HOST:PORT or HOST:FIRST-LAST (0 to 0 without ports); None
    when unset.

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
        raise ImproperlyConfigured(
            f"{name} must look like smtp+tls://USER:PASSWORD@mail.example.org:587."
        )
    return {
        key: value
        for key, value in config.items()
        if key.startswith("EMAIL_") and key != "EMAIL_FILE_PATH"
    }


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(
            f"{name}_FILE names {path}, which cannot be read: {error}. Correct the path, or make the file readable."
        ) from error
