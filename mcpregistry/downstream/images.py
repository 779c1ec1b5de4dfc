"""Asks an image's registry which digest a tag has now, believing nothing: sizes, times and
redirects are bounded.

Source: OCI Distribution Specification 1.1, ``HEAD /v2/<name>/manifests/<reference>``, and Docker's
token authentication: what is public is read with a token that anybody gets. Of an image for several
kinds of machines it is the index's digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from urllib.parse import urlencode, urlsplit

from mcpregistry.domain.errors import (
    AuthFailed,
    DownstreamError,
    NotFound,
    OutboundRefused,
    ProtocolError,
    TimedOut,
)
from mcpregistry.domain.registry.containers import Image
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream.http_client import single_request
from mcpregistry.downstream.http_client.single_request import HttpAnswer

SECONDS = 8.0
MOST_BYTES = 4 * 1024 * 1024  # of a manifest, by the specification
_CONNECT_SECONDS = 4.0
_MOST_TOKEN_BYTES = 64 * 1024
_REMEDY = "Run `docker buildx imagetools inspect IMAGE`, and enter the digest that it shows."
_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TOLD = re.compile(r'(realm|service|scope)="([^"]{0,500})"')


async def fetch_digest(image: Image, networks: tuple[str, ...]) -> str:
    """The digest of the image's tag at this moment. ``networks``: private ones in which its
    registry may lie.

    Raises DownstreamError (OutboundRefused for a private address) and NotFound, with a remedy.
    """
    try:
        async with asyncio.timeout(SECONDS):
            return await _request_digest(
                f"{image.base_url}/v2/{image.path}/manifests/{image.tag}", image, networks
            )
    except OutboundRefused as error:
        remedy = "If you trust the container registry, add its network to “Allowed networks” on the page of the MCP registry that lists the image."
        raise OutboundRefused(
            f"The site did not contact the container registry: {error.message}", remedy=remedy
        ) from error
    except TimeoutError as error:
        raise TimedOut(
            f"The container registry did not answer within {SECONDS:g} s.", remedy=_REMEDY
        ) from error


async def _request_digest(url: str, image: Image, networks: tuple[str, ...]) -> str:
    headers = {"Accept": _KINDS}
    answer = await _send_request("HEAD", url, headers, networks)
    if answer.status == 401 and (challenge := answer.headers.get("www-authenticate", "")):
        headers["Authorization"] = f"Bearer {await _fetch_token(challenge, image, networks)}"
        answer = await _send_request("HEAD", url, headers, networks)
    _check_answer(answer, image)
    digest = answer.headers.get("docker-content-digest", "")
    if not digest:  # it may be left out; then it is what the manifest's bytes come to
        answer = await _send_request("GET", url, headers, networks, MOST_BYTES)
        _check_answer(answer, image)
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    if not _DIGEST.fullmatch(digest):
        raise ProtocolError(
            "The container registry did not return a SHA-256 digest.", remedy=_REMEDY
        )
    return digest


async def _fetch_token(challenge: str, image: Image, networks: tuple[str, ...]) -> str:
    """Of whoever the registry names. We have nothing that could be given away there."""
    told = dict(_TOLD.findall(challenge))
    realm = told.get("realm", "")
    if not challenge.lower().startswith("bearer ") or urlsplit(realm).scheme not in image.schemes:
        raise AuthFailed("The container registry requires a password.", remedy=_REMEDY)
    query = {"scope": f"repository:{image.path}:pull"} | (
        {"service": told["service"]} if "service" in told else {}
    )
    url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}"
    answer = await _send_request(
        "GET", url, {"Accept": "application/json"}, networks, _MOST_TOKEN_BYTES
    )
    try:
        read = json.loads(answer.body)
        token = read.get("token") or read["access_token"]
    except (ValueError, RecursionError, KeyError, AttributeError) as error:
        raise AuthFailed("The container registry requires an account.", remedy=_REMEDY) from error
    if (
        not isinstance(token, str)
        or len(token) > 16_000
        or not token.isascii()
        or not token.isprintable()
    ):
        raise ProtocolError("The container registry returned an invalid token.", remedy=_REMEDY)
    return token


async def _send_request(
    method: str, url: str, headers: dict[str, str], networks: tuple[str, ...], most: int = 0
) -> HttpAnswer:
    return await single_request.send_single_request(
        method,
        url,
        None,
        headers,
        networks=networks,
        connect_seconds=_CONNECT_SECONDS,
        answer_bytes=most,
    )


def _check_answer(answer: HttpAnswer, image: Image) -> None:
    if answer.status == 200:
        return
    if answer.status == 404:
        raise NotFound(
            f'The container registry has no image named "{clean_text(image.path, 200)}:{image.tag}".',
            remedy="Choose another version.",
        )
    refusal: type[DownstreamError] = AuthFailed if answer.status in (401, 403) else ProtocolError
    raise refusal(f"The container registry answered HTTP {answer.status}.", remedy=_REMEDY)
