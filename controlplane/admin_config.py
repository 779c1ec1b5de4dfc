"""Django's configuration of the admin, with our site."""

from __future__ import annotations

from django.contrib.admin import apps


class AdminConfig(apps.AdminConfig):
    """Registers the pages of every app, as Django's own does."""

    default = False
    default_site = "controlplane.admin_site.Site"
