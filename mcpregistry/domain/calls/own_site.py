"""Which addresses lead to this site itself: no server may send a person there.

A page of this site that a server opens in the browser of a signed-in person would look like a
request of the site.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}
_LOCAL = "localhost"  # stands for all names of this machine


@dataclass(frozen=True, slots=True)
class OwnSite:
    """The names and ports of this site. A name that begins with a dot stands for all names below
    it."""

    names: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()

    @classmethod
    def at(cls, names: Iterable[str], addresses: Iterable[str]) -> OwnSite:
        """The site that answers to these names at the ports of these addresses, and on this
        machine."""
        found = [split for each in addresses if (split := _split_host_and_port(each)) is not None]
        own = (
            {_normalize_host(name) for name in names if name != "*"}
            | {host for host, _ in found}
            | {_LOCAL}
        )
        return cls(frozenset(own), frozenset(port for _, port in found))

    def has(self, url: str) -> bool:
        """Whether a browser that opens this address comes to this site, or cannot be known to go
        elsewhere."""
        split = _split_host_and_port(url)
        if split is None:
            return True
        host, port = split
        below = any(name.startswith(".") and host.endswith(name) for name in self.names)
        return port in self.ports and (host in self.names or below)


def _split_host_and_port(url: str) -> tuple[str, int] | None:
    """Host and port as browsers read them; None if there is no host or no valid port."""
    try:
        parts = urlsplit(url.replace("\\", "/"))
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (_normalize_host(parts.hostname), port) if parts.hostname else None


def _normalize_host(name: str) -> str:
    """One spelling for each host: browsers decode, fold and shorten names, and write IPv4 addresses
    in many ways."""
    host = unicodedata.normalize("NFKC", unquote(name)).lower().strip("[]").rstrip(".")
    try:
        address = _parse_ipv4(host) or ip_address(host)
    except ValueError:
        return _LOCAL if host.endswith(".localhost") else host
    mapped = getattr(address, "ipv4_mapped", None) or address
    return _LOCAL if mapped.is_loopback or mapped.is_unspecified else str(mapped)


def _parse_ipv4(host: str) -> IPv4Address | None:
    """An IPv4 address in the spellings that browsers accept: fewer than four parts, and hexadecimal
    or octal ones."""
    parts = host.split(".")
    try:
        numbers = [_parse_number(part) for part in parts]
    except ValueError:
        return None
    *first, last = numbers
    if len(parts) > 4 or any(number > 255 for number in first) or last >= 256 ** (5 - len(parts)):
        return None
    value = last + sum(number << 8 * (3 - place) for place, number in enumerate(first))
    return IPv4Address(value)


def _parse_number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if len(part) > 1 and part.startswith("0") else int(part)


_own = OwnSite()


def set_own_site(site: OwnSite) -> None:
    """Say which site this is; once, when the process starts."""
    global _own  # noqa: PLW0603 - a process belongs to one site
    _own = site


def is_own_site_url(url: str) -> bool:
    """Whether the address leads to this site itself; see ``OwnSite.has``."""
    return _own.has(url)
