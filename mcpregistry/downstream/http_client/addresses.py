"""Which network addresses the guarded client may go to.

``ipaddress.is_global`` alone is not enough: on Python 3.11 it calls ``::127.0.0.1``, NAT64, 6to4,
site-local and multicast addresses global. So: only ordinary unicast is public, minus a list of the
special ranges of RFC 6890 and its registry, and an IPv4 address inside an IPv6 one counts as
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_ORDINARY_V6 = IPv6Network("2000::/3")
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        *(
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
        ),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
        *(
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ),
        *("224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet."""
    if isinstance(address, IPv6Address) and address not in _ORDINARY_V6:
        return False
    return address.is_global and not any(address in network for network in _SPECIAL)


def is_allowed(address: Address, networks: Iterable[Network]) -> bool:
    """Public, or inside a network that the operator named. An IPv4-mapped address counts as
    IPv4."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks) or is_public(address)


def parse_address(text: str) -> Address | None:
    """The address that ``text`` is, without brackets or a zone; None when it is a name."""
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


@lru_cache(maxsize=256)
def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Raises ConfigInvalid for what is not a network in CIDR form."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigInvalid(
            "One of the allowed networks is not in CIDR notation.",
            remedy=error_texts.advise_form("CIDR notation", "10.1.0.0/16"),
        ) from error
