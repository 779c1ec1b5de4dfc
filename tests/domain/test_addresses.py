"""Which addresses count as one when somebody is slowed down."""

from __future__ import annotations

import pytest

from mcpregistry.domain.addresses import mask_client_address, mask_client_network


@pytest.mark.parametrize(
    ("address", "of_place", "of_network"),
    [
        ("203.0.113.7", "203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.7", "203.0.113.0/24"),
        ("2001:db8:1:2ff::1", "2001:db8:1:200::/56", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/56", "fe80::/48"),
        ("", "unknown", "unknown"),
    ],
)
def test_ipv4_addresses_count_one_by_one_in_either_notation(
    address: str, of_place: str, of_network: str
):
    """A proxy that listens on IPv6 names its IPv4 clients as ``::ffff:203.0.113.7``."""
    assert mask_client_address(address) == of_place
    assert mask_client_network(mask_client_address(address)) == of_network
