"""System checks: mistakes of an operator, said by `manage.py check`, `up` and `doctor`.

Those with the tag ``deploy`` belong to sites that others can reach.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from controlplane import embedded_broker, env, keys

TAG = "slipsnisse"
_BROWSERS_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]+)?")
_USUAL_PORT = re.compile(r"^https:.*:443$|^http:.*:80$")
_ORIGIN = (
    "Use a scheme, a host in lower case, and a port unless it is the default of the scheme, for example "
    "http://localhost:6274."
)
_LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}


@register(TAG)
def key_file_is_private(**_: Any) -> list[CheckMessage]:
    """E001: the key file must be readable by its owner alone."""
    file = keys.path(settings.VAR_DIR)
    if not file.exists() or not _others_may(file):
        return []
    return [
        Error(
            f"Other users of this machine can read {file}.",
            hint=f"Run: chmod 600 {file}",
            id="slipsnisse.E001",
        )
    ]


@register(TAG)
def folder_is_private(**_: Any) -> list[CheckMessage]:
    """W001: so should the folder with the database and the sockets."""
    var = settings.VAR_DIR
    if not var.exists() or not _others_may(var):
        return []
    return [
        Warning(
            f"Other users of this machine can access {var}.",
            hint=f"Run: chmod 700 {var}",
            id="slipsnisse.W001",
        )
    ]


@register(TAG)
def connections_are_not_kept_by_age(**_: Any) -> list[CheckMessage]:
    """E002: with CONN_MAX_AGE, each request's thread would keep a connection of its own."""
    if settings.DATABASES["default"].get("CONN_MAX_AGE", 0) == 0:
        return []
    hint = "Remove conn_max_age from DATABASE_URL. The site has its own connection pool."
    return [
        Error(
            "CONN_MAX_AGE must be 0, because each web request has its own thread.",
            hint=hint,
            id="slipsnisse.E002",
        )
    ]


@register(TAG)
def tracebacks_stay_at_home(**_: Any) -> list[CheckMessage]:
    """E003: DEBUG on a site that answers to other names than loopback."""
    abroad = sorted(set(settings.ALLOWED_HOSTS) - _LOOPBACK)
    if not settings.DEBUG or not abroad:
        return []
    hint = "Unset SLIPSNISSE_DEBUG."
    return [
        Error(
            f"DEBUG is on and shows tracebacks to everyone who can reach {', '.join(abroad)}.",
            hint=hint,
            id="slipsnisse.E003",
        )
    ]


@register(TAG)
def any_host_is_no_host(**_: Any) -> list[CheckMessage]:
    """E004: ``*`` as a host name lets web pages reach the site by DNS rebinding."""
    if "*" not in settings.ALLOWED_HOSTS:
        return []
    hint = "List the real host names. With '*', a web page could reach the site by DNS rebinding."
    return [Error("SLIPSNISSE_HOSTS must not contain '*'.", hint=hint, id="slipsnisse.E004")]


@register(TAG)
def origins_are_origins(**_: Any) -> list[CheckMessage]:
    """W004: what is no origin, or is written otherwise than browsers write it, lets no page in."""
    return [
        Warning(
            f"SLIPSNISSE_ORIGINS contains '{origin}', which is not an origin that browsers send.",
            hint=_ORIGIN,
            id="slipsnisse.W004",
        )
        for origin in settings.MCP_ALLOWED_ORIGINS[1:]
        if not _BROWSERS_ORIGIN.fullmatch(origin) or _USUAL_PORT.search(origin)
    ]


@register(TAG)
def places_of_seals_can_be_used(**_: Any) -> list[CheckMessage]:
    """E005: a place outside for the audit log's seals that cannot work would be noticed when it is
    needed."""
    from mcpregistry.services.records import sinks

    hint = "Correct the setting (see docs/audit.md), or unset it to send no checkpoints there."
    return [
        Error(problem, hint=hint, id="slipsnisse.E005") for problem in sinks.find_sink_problems()
    ]


@register(TAG, deploy=True)
def broker_fits_the_database(**_: Any) -> list[CheckMessage]:
    """W002: a site on PostgreSQL expects several machines; the embedded broker is a unix socket on
    this one."""
    if (
        not env.text("DATABASE_URL").startswith("postgres")
        or embedded_broker.broker_url(settings.VAR_DIR) != settings.CELERY_BROKER_URL
    ):
        return []
    hint = "Set CELERY_BROKER_URL, for example redis://broker:6379/0."
    return [
        Warning("Other machines cannot use the embedded broker.", hint=hint, id="slipsnisse.W002")
    ]


@register(TAG, deploy=True)
def keys_are_given(**_: Any) -> list[CheckMessage]:
    """W003: replicas with key files of their own could not open each other's credentials."""
    if not env.text("DATABASE_URL").startswith("postgres") or (
        env.text("SLIPSNISSE_SECRET_KEY") and env.text("SLIPSNISSE_KEYS")
    ):
        return []
    hint = "Set SLIPSNISSE_SECRET_KEY and SLIPSNISSE_KEYS, or their _FILE forms, to the same values on all machines."
    return [
        Warning(
            "The keys are read from a file on this machine, so other machines do not have them.",
            hint=hint,
            id="slipsnisse.W003",
        )
    ]


def _others_may(path: Path) -> bool:
    return os.name == "posix" and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
