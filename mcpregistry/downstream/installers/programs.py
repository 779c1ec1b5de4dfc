"""Where uv, npm and Node are on this machine, and the environment that installers get: strict, as
that of servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from urllib.parse import urlsplit

from mcpregistry.domain.installs.reasons import explain_missing_installer

# How this machine reaches the network, and which certificates it believes; named by its operator's
# environment.
_NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
)
_UV = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_SYSTEM_CERTS",
)
_FILES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "UV_FIND_LINKS")


def find_uv() -> str:
    """The program that uv's wheel brings, beside this Python; else one on PATH. Raises
    InstallFailed."""
    return _find_program("uv", sysconfig.get_path("scripts"), os.path.dirname(sys.executable))


def find_npm() -> str:
    """Raises InstallFailed where there is none."""
    return _find_program("npm")


def find_node() -> str:
    """Raises InstallFailed where there is none."""
    return _find_program("node")


def find_container_engine() -> str:
    """What starts containers here. Raises InstallFailed where there is neither docker nor
    podman."""
    found = shutil.which("docker") or shutil.which("podman")
    if found is None:
        raise explain_missing_installer("docker")
    return found


def find_python() -> str:
    """The interpreter of virtual environments: the one under our own, so that ours can be
    replaced."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def read_version(program: str) -> str:
    """What the program says of its version; empty where it says nothing that looks like one."""
    try:
        said = subprocess.run(  # noqa: S603  a program that was found on PATH
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+\.\d+[\w.+-]*", said)
    return found.group() if found else ""


def build_uv_env(home: str, index: str) -> dict[str, str]:
    """uv's environment: no configuration of anybody's, no download of a Python."""
    known = _select_environment(*_NETWORK, *_UV)
    if (
        "UV_DEFAULT_INDEX" not in known
        and "UV_INDEX_URL" not in known
        and (pip := os.environ.get("PIP_INDEX_URL"))
    ):
        known["UV_DEFAULT_INDEX"] = pip
    return (
        known
        | ({"UV_DEFAULT_INDEX": index} if index else {})
        | {
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": os.path.join(home, "cache"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "UV_LINK_MODE": "copy",
        }
    )


def build_npm_env(home: str, registry: str) -> dict[str, str]:
    """npm's environment: no configuration of anybody's (HOME has none), no scripts, no git, no
    links to elsewhere."""
    named = registry or next(iter(_select_environment("NPM_CONFIG_REGISTRY").values()), "")
    return (
        _select_environment(*_NETWORK)
        | ({"npm_config_registry": named} if named else {})
        | {
            "npm_config_globalconfig": os.devnull,
            "npm_config_cache": os.path.join(home, "cache"),
            "npm_config_ignore_scripts": "true",
            "npm_config_git": "false",  # the program of that name: it answers no, and does nothing
            "npm_config_allow_git": "none",
            "npm_config_allow_remote": "none",
            "npm_config_allow_directory": "none",
            "npm_config_allow_file": "none",
            "npm_config_omit_lockfile_registry_resolved": "true",
            "npm_config_replace_registry_host": "always",
            "npm_config_audit": "false",
            "npm_config_fund": "false",
            "npm_config_update_notifier": "false",
        }
    )


def list_readable_files(*addresses: str) -> tuple[str, ...]:
    """Files that the environment names: certificates, and an index that is a folder of this
    machine."""
    values = [value for name in _FILES for value in os.environ.get(name, "").split()]
    files = [value for value in values if value.startswith("/")]
    named = (*addresses, *(os.environ.get(name, "") for name in _UV))
    folders = [urlsplit(each).path for each in named if each.startswith("file://")]
    return tuple(path for path in (*files, *folders) if os.path.exists(path))


def _select_environment(*names: str) -> dict[str, str]:
    words = (word for name in names for word in (name, name.lower()))
    return {word: os.environ[word] for word in words if os.environ.get(word)}


def _find_program(program: str, *folders: str) -> str:
    found = shutil.which(
        program, path=os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    )
    if found is None:
        raise explain_missing_installer(program)
    return found
