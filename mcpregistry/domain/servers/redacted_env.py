"""What people see of a launch: values of its environment that steer where code comes from, its
words, never secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mcpregistry.domain.text.redaction import SHAPED, mask_words
from mcpregistry.domain.text.secret_names import is_secret_name

_PACKAGES = r"(?:PIP|UV|NPM_CONFIG|YARN|PNPM|BUN|DENO|POETRY|CARGO|GO|GEM|CONDA|MAVEN|GRADLE)_\w+|GO(?:PROXY|FLAGS|SUMDB)"
# Names without a typical ending that load code, start a program, or choose certificates, hosts or
# files to write.
_LOADS = (
    r"OPENSSL_\w+|DOTNET_\w+|CORECLR_\w+|COR_\w+|CLASSPATH|_?JAVA_OPTIONS|JDK_JAVA_OPTIONS|PHPRC|PHP_INI_SCAN_DIR|LUA_\w+|R_\w+|ELECTRON_\w+|ERL_\w+"
    r"|GIT_(?:ASKPASS|EDITOR|SEQUENCE_EDITOR|PAGER|EXTERNAL_DIFF|SSL\w*|ALTERNATE\w*|TRACE\w*|ALLOW_PROTOCOL|INDEX_FILE|OBJECT_DIRECTORY)"
    r"|(?:SSH|SUDO)_ASKPASS|EDITOR|VISUAL|PAGER|BROWSER|MANPAGER|LESSOPEN|BASH_\w+|BASHOPTS|ENV|ZDOTDIR|PROMPT_COMMAND|SHELLOPTS|PS4|IFS|CDPATH"
    r"|\w+_CA_BUNDLE|SSLKEYLOGFILE|BUNDLE_(?:GEMFILE|BIN|APP_CONFIG|MIRROR\w*)|\w+_(?:API_)?BASE|\w+_(?:COMMAND|CMD|SHELL|BINARY|PRELOAD|PLUGINS?|HOOKS?)"
    r"|KUBECONFIG|PG(?:HOST\w*|PORT|USER|DATABASE|SERVICE\w*|OPTIONS|SSL\w*|PASSFILE)|ODBC\w*INI|LDAP(?:CONF|RC|URI|BASE)|KRB5(?:_CONFIG|CCNAME|_KTNAME)"
    r"|SSH_AUTH_SOCK|\w+_(?:WRAPPER|RSH|SSH|BIN)|CC|CXX|CPP|LD|AR|AS|MAKE|\w+FLAGS|\w+RC|TERM|PS1|VIMINIT"
    r"|GLIBC_TUNABLES|MALLOC_\w+|LOCALDOMAIN|HOSTALIASES|RES_OPTIONS|LOCPATH|NLSPATH|TERMINFO\w*|GTK_\w+|QT_\w+|GDK_\w+|PLAYWRIGHT_\w+|PUPPETEER_\w+"
)
_STEERS = re.compile(
    rf"{_PACKAGES}|{_LOADS}|HOME|PATH|PWD|TMP|TMPDIR|TEMP|SHELL|USER|LANG|LC_\w+|TZ|(?:XDG|NODE|JAVA|DOCKER|SSL_CERT|LD|DYLD)_\w+"
    r"|PYTHON\w+|PERL5\w*|RUBY\w+|GIT_(?:SSH|EXEC|CONFIG|DIR|WORK|PROXY|TEMPLATE)\w*|NO_PROXY"
    r"|\w+_(?:URL|URI|HOST|PORT|ENDPOINT|REGISTRY|INDEX|PROXY|HOME|DIR|PATH|FILE|ROOT|CONFIG|OPTIONS|OPTS|FLAGS)",
    re.IGNORECASE,
)
ADDRESSES = ("url", "base_url")  # fields that hold an address
# A value that is a path is shown under any name: files and folders steer programs.
_PATH = re.compile(r"(?:(?:/|\.{1,2}/|~/)[\w./~-]{0,400}:?)+")
_OF_PACKAGES = re.compile(_PACKAGES, re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.:-]+\}")


def redact_env(env: Mapping[str, str]) -> dict[str, str | None]:
    """By name, in order: the value as far as it may be shown; None for one that may be a secret.

    A reference is shown as it stands. Of an address no user name or password is shown; its path
    only where packages are fetched from it, since elsewhere the path may be what is secret.
    """
    return {name: _redact_value(name, env[name]) for name in sorted(env)}


def _redact_value(name: str, value: str) -> str | None:
    if _REFERENCE.fullmatch(value):
        return value
    if is_secret_name(name) or SHAPED.search(value):
        return None
    if not _STEERS.fullmatch(name) and not _PATH.fullmatch(value):
        return None
    return _redact_address(name, value) if "://" in value else value


def _redact_address(name: str, value: str) -> str | None:
    try:
        parts = urlsplit(value)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return None
    user = "…@" if "@" in parts.netloc else ""
    if _OF_PACKAGES.fullmatch(name):
        path = parts.path
    elif parts.path.strip("/"):
        path = "/…"
    else:
        path = ""
    more = "?…" if parts.query or parts.fragment else ""
    return f"{parts.scheme}://{user}{host}{path}{more}"


def mask_record_secrets(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record with secrets in its command and addresses masked."""
    return {name: _mask_field(name, value) for name, value in facts.items()}


def mask_field_secrets(facts: Any) -> Any:
    """Return the parameters or the result of a request with its ``fields`` masked."""
    if not isinstance(facts, dict) or not isinstance(facts.get("fields"), dict):
        return facts
    return facts | {"fields": mask_record_secrets(facts["fields"])}


def _mask_field(name: str, value: Any) -> Any:
    if name == "command" and isinstance(value, list):
        return mask_words([str(word) for word in value])
    return mask_words([value])[0] if name in ADDRESSES and isinstance(value, str) else value
