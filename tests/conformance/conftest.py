"""A site whose endpoint shows the suite's tools under their own names, served by two fixture
servers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from mcpregistry.domain.offer_kinds import COMPLETIONS, LOGGING, SUBSCRIPTIONS
from mcpregistry.models import Configuration, Server
from tests.fakes import sdk
from tests.fakes.servers import conformance_server, tasks_server
from tests.fakes.servers.conformance_prompts import PROMPTS
from tests.fakes.servers.conformance_resources import RESOURCES, TEMPLATES
from tests.fakes.stage import Stage, Web
from tests.fakes.targets import LOOPBACK
from tests.gateway.conftest import stage

__all__ = ["stage"]

OFFERED = {"prompt": PROMPTS, "resource": RESOURCES, "template": TEMPLATES}


class OpenWeb(Web):
    """Lets pages of its own address in; the suite asks as one of them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self._env |= {"SLIPSNISSE_ORIGINS": f"http://{self.address}"}


class WithoutLanes(OpenWeb):
    module = "tests.conformance.without_lanes"


@contextmanager
def started(running: Web) -> Iterator[Web]:
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def site(stage: Stage) -> Iterator[Web]:
    with started(OpenWeb(stage.env)) as running:
        yield running


@pytest.fixture(scope="module")
def site_without_lanes(stage: Stage) -> Iterator[Web]:
    with started(WithoutLanes(stage.env)) as running:
        yield running


@pytest.fixture(scope="module")
def fixtures() -> Iterator[dict[str, str]]:
    """The addresses of the two servers."""
    plain = conformance_server.make_server(by_request=True)
    tasks = tasks_server.make_server()
    with (
        sdk.serving(plain.streamable_http_app()) as one,
        sdk.serving(tasks.streamable_http_app()) as two,
    ):
        yield {"conformance": f"{one}/mcp", "tasks": f"{two}/mcp"}


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web, fixtures: dict[str, str]) -> str:
    Configuration.load()
    Configuration.objects.update(default_outcome="allow")
    stage.endpoint(naming_style="plain")
    listed = {"conformance": (conformance_server.TOOLS, OFFERED), "tasks": (tasks_server.TOOLS,)}
    rows = [
        stage.server(
            slug,
            *listed[slug],
            transport="http",
            url=url,
            allowed_networks=list(LOOPBACK),
            asks_roots=True,
        )
        for slug, url in fixtures.items()
    ]
    Server.objects.filter(slug="conformance").update(features=[COMPLETIONS, LOGGING, SUBSCRIPTIONS])
    token = stage.agent("local", *rows)
    site.wait_known(token)
    return token
