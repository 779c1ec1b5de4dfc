"""A registry of container images on loopback: tags, manifests and indices behind tokens; and lies
when told to.

Source: OCI Distribution Specification 1.1; Docker Registry HTTP API V2, token authentication.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.fakes.receiver import Answer, Received, Receiver, listening

INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN = "anybodys-token"


@dataclass
class Images:
    """One repository, ``acme/notes``, whose tag 1.0.0 is an index of two machines. ``tells``: the
    digest by its header."""

    tells: bool = True
    receiver: Receiver = field(default_factory=Receiver)

    @property
    def host(self) -> str:
        return urlsplit(self.receiver.url).netloc

    @property
    def manifest(self) -> bytes:
        each = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 2}
        machines = [
            each
            | {"digest": f"sha256:{letter * 64}", "platform": {"os": "linux", "architecture": arch}}
            for letter, arch in (("a", "amd64"), ("b", "arm64"))
        ]
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": machines}).encode()

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"

    def answer(self, request: Received) -> Answer:
        where = urlsplit(request.path)
        if where.path == "/token":
            asked = parse_qs(where.query)
            right = asked.get("scope") == ["repository:acme/notes:pull"] and asked.get(
                "service"
            ) == ["images"]
            return self._told(
                {"token": TOKEN, "expires_in": 300} if right else {"details": "denied"},
                200 if right else 403,
            )
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            realm = f'Bearer realm="{self.receiver.url}/token",service="images",scope="repository:acme/notes:pull"'
            code = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            status, headers, body = self._told(code, 401)
            return status, headers | {"WWW-Authenticate": realm}, body
        found = re.fullmatch(r"/v2/acme/notes/manifests/(.+)", where.path)
        if (
            request.method not in ("HEAD", "GET")
            or not found
            or found[1] not in ("1.0.0", self.digest)
        ):
            return self._told(
                {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}, 404
            )
        if INDEX not in request.headers.get("accept", ""):
            return self._told(
                {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "OCI index found"}]}, 404
            )
        said = {"Docker-Content-Digest": self.digest} if self.tells else {}
        return 200, {"Content-Type": INDEX, **said}, self.manifest

    @staticmethod
    def _told(body: object, status: int) -> Answer:
        headers = {
            "Content-Type": "application/json",
            "Docker-Distribution-Api-Version": "registry/2.0",
        }
        return status, headers, json.dumps(body).encode()


@contextmanager
def running() -> Iterator[Images]:
    images = Images()
    images.receiver.otherwise = images.answer
    with listening(images.receiver):
        yield images
