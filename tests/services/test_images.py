"""The digest of an image's tag: asked of a registry that speaks the real protocol, shown in the
form, bounded where it lies."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from mcpregistry.domain.errors import DownstreamError, NotFound, SlipsnisseError
from mcpregistry.domain.registry import containers
from mcpregistry.models import RegistryEntry, RegistrySource, Server
from mcpregistry.services.registry import add_entries
from mcpregistry.services.registry.images import fetch_current_digest
from tests.fakes import images
from tests.fakes.receiver import Answer, Received
from tests.services.test_registry_adding import IMAGE, docker, listed

__all__ = ["docker"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def registry() -> Iterator[images.Images]:
    with images.running() as running:
        yield running


def entry_of(host: str, tag: str = "1.0.0") -> RegistryEntry:
    entry = listed(
        packages=[
            {
                **IMAGE,
                "identifier": f"{host}/acme/notes:{tag}",
                "environmentVariables": [],
                "runtimeArguments": [],
            }
        ]
    )
    RegistrySource.objects.update(allowed_networks=["127.0.0.0/8"])
    return RegistryEntry.objects.select_related("source").get(pk=entry.pk)


def asked(entry: RegistryEntry) -> str:
    return fetch_current_digest(entry, add_entries.list_local_options(entry)[0])


@pytest.mark.parametrize("tells", [True, False])
def test_a_tag_leads_to_the_digest_of_its_index_by_a_token_that_anybody_gets(
    registry: images.Images, docker: str, tells: bool
) -> None:
    registry.tells = tells
    assert asked(entry_of(registry.host)) == registry.digest
    ways = [(each.method, each.path.partition("?")[0]) for each in registry.receiver.requests]
    manifest = "/v2/acme/notes/manifests/1.0.0"
    assert ways == [
        ("HEAD", manifest),
        ("GET", "/token"),
        ("HEAD", manifest),
        *[("GET", manifest)] * (not tells),
    ]


def test_the_form_shows_it_and_adds_what_was_shown(
    registry: images.Images, docker: str, admin_client: Client
) -> None:
    entry = entry_of(registry.host)
    page = reverse("admin:mcpregistry_registryentry_add_way", args=[entry.pk, 0])
    shown = html.unescape(admin_client.get(page).content.decode())
    assert f'the digest <code class="sn-code">{registry.digest}</code> for this tag' in shown
    assert f'value="{registry.digest}"' in shown
    asked_for = add_entries.list_local_options(entry)[0].inputs
    given = {
        f"input-{n}": {"digest": registry.digest, "network": "none"}.get(each.name, "")
        for n, each in enumerate(asked_for)
    }
    admin_client.post(page, {"slug": "notes", "shown": entry.sha256, **given})
    assert f"{registry.host}/acme/notes@{registry.digest}" in Server.objects.get().command
    registry.receiver.otherwise = (503, {}, b"")
    failed = html.unescape(admin_client.get(page).content.decode())
    assert (
        "The image of the tag could not be found: The container registry answered HTTP 503."
        in failed
    )


def _no(registry: images.Images, **lies: Any) -> Callable[[Received], Answer]:
    """It answers as it should, but for what is said here by path."""

    def answer(request: Received) -> Answer:
        told = next((lie for path, lie in lies.items() if path in request.path), None)
        return told or registry.answer(request)

    return answer


@pytest.mark.attack
@pytest.mark.parametrize(
    ("lies", "why"),
    [
        (
            {"manifests": (200, {"Docker-Content-Digest": "sha256:short"}, b"")},
            "not return a SHA-256 digest",
        ),
        ({"manifests": (302, {"Location": "http://127.0.0.1:1/"}, b"")}, "answered HTTP 302"),
        ({"manifests": (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")}, "requires a password"),
        (
            {"manifests": (401, {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'}, b"")},
            "requires a password",
        ),
        (
            {"manifests": (401, {"WWW-Authenticate": 'Bearer realm="http://10.0.0.1/token"'}, b"")},
            "is private",
        ),
        ({"token": (200, {}, b'{"token": ["x"]}')}, "an invalid token"),
        ({"token": (200, {}, b'{"token": "a\\u000d\\u000ab: c"}')}, "an invalid token"),
        ({"token": (200, {}, b"[" * 10_000)}, "requires an account"),
        ({"token": (200, {}, b"x" * 100_000)}, "bytes"),
    ],
)
def test_a_registry_that_lies_is_refused_with_a_reason(
    registry: images.Images, docker: str, lies: dict[str, Any], why: str
) -> None:
    registry.receiver.otherwise = _no(registry, **lies)
    with pytest.raises(SlipsnisseError, match=why) as caught:
        asked(entry_of(registry.host))
    assert caught.value.remedy


def test_what_is_not_there_is_said_and_a_private_registry_is_not_asked(
    registry: images.Images, docker: str
) -> None:
    with pytest.raises(NotFound, match='no image named "acme/notes:2'):
        asked(entry_of(registry.host, "2.0.0"))
    RegistryEntry.objects.all().delete()
    entry = entry_of(registry.host)
    entry.source.allowed_networks = []
    before = len(registry.receiver.requests)
    with pytest.raises(DownstreamError):
        asked(entry)
    assert len(registry.receiver.requests) == before


def test_images_of_others_are_asked_for_over_tls_where_they_lie() -> None:
    def where(identifier: str) -> tuple[str, str, str]:
        found = containers.find_tagged_image(identifier)
        assert found
        assert found.schemes[0] == "https"
        return found.base_url, found.path, found.tag

    assert where("docker.io/acme/notes:1.0.0") == (
        "https://registry-1.docker.io",
        "acme/notes",
        "1.0.0",
    )
    assert where("docker.io/redis") == ("https://registry-1.docker.io", "library/redis", "latest")
    assert where("ghcr.io/a/b:v2") == ("https://ghcr.io", "a/b", "v2")
    assert where("127.0.0.1.evil.example/a/b:v2")[0] == "https://127.0.0.1.evil.example"
    assert containers.find_tagged_image("ghcr.io/a/b@sha256:" + "d" * 64) is None
