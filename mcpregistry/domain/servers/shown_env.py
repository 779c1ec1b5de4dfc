"""What whoever confirms a launch sees of its environment: values that steer where code comes from, never secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from mcpregistry.domain.text.secret_names import is_secret_name

_PACKAGES = (
    r"(?:PIP|UV|NPM_CONFIG|YARN|PNPM|BUN|DENO|POETRY|CARGO|GO|GEM|CONDA|MAVEN|GRADLE)_\w+|GO(?:PROXY|FLAGS|SUMDB)"
)
_STEERS = re.compile(
    rf"{_PACKAGES}|HOME|PATH|PWD|TMP|TMPDIR|TEMP|SHELL|USER|LANG|LC_\w+|TZ|(?:XDG|NODE|JAVA|DOCKER|SSL_CERT|LD|DYLD)_\w+"
    r"|PYTHON\w+|PERL5\w*|RUBY\w+|GIT_(?:SSH|EXEC|CONFIG|DIR|WORK|PROXY|TEMPLATE)\w*|NO_PROXY"
    r"|\w+_(?:URL|URI|HOST|PORT|ENDPOINT|REGISTRY|INDEX|PROXY|HOME|DIR|PATH|FILE|ROOT|CONFIG|OPTIONS|OPTS|FLAGS)",
    re.IGNORECASE,
)
_OF_PACKAGES = re.compile(_PACKAGES, re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.:-]+\}")


def shown_env(env: Mapping[str, str]) -> dict[str, str | None]:
    """By name, in order: the value as far as it may be shown; None for one that may be a secret.

    A reference is shown as it stands. Of an address no user name or password is shown; its path only where packages
    are fetched from it, since elsewhere the path may be what is secret.
    """
    return {name: _shown(name, env[name]) for name in sorted(env)}


def _shown(name: str, value: str) -> str | None:
    if _REFERENCE.fullmatch(value):
        return value
    if is_secret_name(name) or not _STEERS.fullmatch(name):
        return None
    return _address(name, value) if "://" in value else value


def _address(name: str, value: str) -> str | None:
    try:
        parts = urlsplit(value)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return None
    user = "…@" if "@" in parts.netloc else ""
    path = parts.path if _OF_PACKAGES.fullmatch(name) else "/…" if parts.path.strip("/") else ""
    more = "?…" if parts.query or parts.fragment else ""
    return f"{parts.scheme}://{user}{host}{path}{more}"
