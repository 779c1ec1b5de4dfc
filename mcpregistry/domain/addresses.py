"""What counts as one address when somebody is slowed down."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network


def place(address: str) -> str:
    """An IPv4 address, or the /64 that one IPv6 customer owns; "unknown" for anything else."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)
