"""What counts as one address, or as one network, when somebody is slowed down."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network


def mask_client_address(address: str) -> str:
    """An IPv4 address, or a /56: providers give that to one IPv6 customer. "unknown" for anything
    else.

    An IPv4 address inside an IPv6 one (``::ffff:203.0.113.7``) is an IPv4 address: all of these are
    in one /56.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return (
        str(ip_network((parsed, 56), strict=False))
        if isinstance(parsed, IPv6Address)
        else str(parsed)
    )


def mask_client_network(place: str) -> str:
    """The larger network of a place: a /24 (IPv4), or the /48 that one IPv6 site usually owns."""
    try:
        parsed = ip_network(place, strict=False)
    except ValueError:
        return "unknown"
    return str(parsed.supernet(new_prefix=48 if parsed.version == 6 else 24))
