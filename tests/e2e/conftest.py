"""The same site for a module as the gateway's tests have."""

from __future__ import annotations

from tests.gateway.conftest import launched, site, stage

__all__ = ["launched", "site", "stage"]
