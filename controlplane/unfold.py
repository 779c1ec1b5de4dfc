"""How the admin looks: titles, colours, the chip in the corner. What it leads to:
``navigation``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _


def environment(request: HttpRequest) -> list[str] | None:
    """Unfold's ``ENVIRONMENT``: the chip in the corner, for what nobody should overlook."""
    return [gettext("Debug"), "danger"] if settings.DEBUG else None


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Slipsnisse",
    "ACCOUNT": {
        "navigation": [
            {"title": _("Change password"), "link": reverse_lazy("admin:password_change")},
            {"title": _("Second factor"), "link": reverse_lazy("second-factor")},
        ]
    },
    "LOGIN": {"form": "mcpregistry.web.login.LoginForm"},
    "SITE_HEADER": "Slipsnisse",
    "SITE_SUBHEADER": _("MCP control plane"),
    "SITE_URL": None,
    "SITE_SYMBOL": "hub",
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda _: static("mcpregistry/favicon.svg"),
        },
    ],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "ENVIRONMENT": "controlplane.unfold.environment",
    "DASHBOARD_CALLBACK": "controlplane.dashboard.dashboard",
    "STYLES": [
        lambda _: static("mcpregistry/admin.css"),
        lambda _: static("mcpregistry/cards.css"),
    ],
    "COLORS": {
        "primary": {
            "50": "oklch(98.4% .014 180.7)",
            "100": "oklch(95.3% .051 180.8)",
            "200": "oklch(91% .096 180.4)",
            "300": "oklch(85.5% .138 181.1)",
            "400": "oklch(77.7% .152 181.9)",
            "500": "oklch(60% .118 184.7)",
            "600": "oklch(51.1% .096 186.4)",
            "700": "oklch(43.7% .078 188.2)",
            "800": "oklch(38.6% .063 188.4)",
            "900": "oklch(32% .05 190)",
            "950": "oklch(27.7% .046 192.5)",
        }
    },
    "SIDEBAR": {
        "show_search": True,
        "command_search": False,
        "show_all_applications": False,
        "navigation": "controlplane.navigation.navigation",
    },
}
