"""Callers of every kind, and a short way to make rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from mcpregistry.api import auth
from mcpregistry.api.auth import guesses
from mcpregistry.models import Agent, Definition, Invocation, Server, Tool
from mcpregistry.services.access import tokens
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle

ROOT = "/api/v1"


@dataclass
class Caller:
    """A program with a bearer token (or none). ``call`` sends JSON and gives the response."""

    token: str = ""
    client: Client = field(default_factory=lambda: Client(raise_request_exception=False))

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = (
            {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        )
        return self.client.generic(
            method, path if path.startswith("/metrics") else ROOT + path, headers=headers, **data
        )

    def get(self, path: str, **headers: str) -> HttpResponse:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> HttpResponse:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any) -> HttpResponse:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> HttpResponse:
        return self.call("DELETE", path)


@pytest.fixture(autouse=True)
def _no_guesses_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses.__init__()
    monkeypatch.setattr(auth, "_touch_again", 0.0)


@pytest.fixture
def caller() -> Callable[[str], Caller]:
    """``caller("operator")``, ``caller("agent")``, ``caller("anonymous")``."""

    def make(kind: str) -> Caller:
        if kind == "anonymous":
            return Caller()
        if kind == "agent":
            return Caller(
                tokens.issue_token(agent=new_agent("robot"), name="test", actor="test")[1]
            )
        return Caller(tokens.issue_token(user=new_user(kind), name="test", actor="test")[1])

    return make


def new_user(role: str) -> User:
    """Without a password: hashing one would take longer than most tests."""
    user = User.objects.create(username=f"{role}-{User.objects.count()}", password="!")
    user.groups.add(Group.objects.get(name=role))
    return user


def new_agent(slug: str) -> Agent:
    return Agent.objects.get_or_create(slug=slug)[0]


def new_server(slug: str = "echo", **fields: Any) -> Server:
    values = {"transport": "stdio", "command": ["echo-server"]} | fields
    return lifecycle.save_server(server=Server(slug=slug, **values), actor="test")


def new_tool(server: Server, name: str = "say", *, approve: bool = True, **data: Any) -> Tool:
    listed = {"name": name, "description": f"Does {name}", "inputSchema": {"type": "object"}} | data
    known = [tool.latest.data for tool in server.tools.exclude(name=name).select_related("latest")]
    observe.observe(server=server, listed=[*known, listed])
    if approve:
        decisions.approve(
            definition=Definition.objects.get(tool__name=name, tool__server=server), actor="test"
        )
    return Tool.objects.get(server=server, name=name)


def new_call(number: int, **fields: Any) -> Invocation:
    values = {
        "id": f"call-{number:06}",
        "state": "succeeded",
        "agent_slug": "robot",
        "endpoint_slug": "default",
        "server_slug": "echo",
        "tool_name": "say",
        "exposed_name": "echo__say",
        "origin": "http",
        "writer": "test",
        "received_at": timezone.now() - timedelta(seconds=1000 - number),
        "duration_ms": 12.5,
    }
    return Invocation.objects.create(**(values | fields))
