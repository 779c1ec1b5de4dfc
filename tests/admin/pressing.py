"""Pressing a button of a record's page, also one that first says what will happen."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client
from django.urls import reverse

from mcpregistry.models import Server


def asks(answer: Any) -> str:
    """What a yes to the question of this page says; empty where it asks nothing."""
    found = re.search(r'name="sure" value="([^"]+)"', answer.content.decode())
    return found[1] if found else ""


def pressed(client: Client, record: Any, verb: str) -> Any:
    """Press the button, say yes where it asks, and give the page that follows."""
    meta = record._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_verb", args=[record.pk, verb])
    answer = client.post(url, follow=True)
    return client.post(url, {"sure": sure}, follow=True) if (sure := asks(answer)) else answer


def chosen(client: Client, address: str, action: str, rows: Any, **more: str) -> Any:
    """Choose rows of a list and an action on them, say yes where it asks, and give the page that
    follows."""
    fields = {
        "action": action,
        "_selected_action": [row.pk if hasattr(row, "pk") else row for row in rows],
        **more,
    }
    answer = client.post(address, fields, follow=True)
    return (
        client.post(address, fields | {"sure": sure}, follow=True)
        if (sure := asks(answer))
        else answer
    )


def asked(client: Client, server: Server, verb: str) -> list[str]:
    """What the button says will happen."""
    url = reverse("admin:mcpregistry_server_verb", args=[server.pk, verb])
    return list(client.post(url).context["sentences"])
