"""The admin's site: Unfold's, but it lists its models only where a page shows them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite


class Site(UnfoldAdminSite):
    """The list costs a twelfth of an ordinary page, which shows ``controlplane.navigation``
    instead."""

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Make the list as late as it is read."""
        return SimpleLazyObject(lambda: super(Site, self).get_app_list(request, app_label))
