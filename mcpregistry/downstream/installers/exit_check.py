"""How an installer ended: well, or with a reason that people can read."""

from __future__ import annotations

import re

import structlog

from mcpregistry.domain.installs.reasons import explain_failure

log = structlog.get_logger(__name__)

_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*:/?/?[^\s/]*@\S+|\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE
)
_LOGGED = 2_000


def check_exit(code: int, output: str, *, verb: str) -> None:
    """Nothing where it ended well; else raises InstallFailed. Its last words are logged, without
    any address."""
    if code == 0:
        return
    log.warning(
        "installer_failed", verb=verb, code=code, output=_ADDRESS.sub("…", output)[-_LOGGED:]
    )
    raise explain_failure(output)
