"""Signs requests to an S3-compatible bucket: AWS Signature Version 4, with all of the body signed.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html; the
tests compare it with botocore's. Our own, because botocore's client would go out past the guarded
one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Whose request it is. ``repr`` shows no secret."""

    key_id: str
    secret: str = field(repr=False)
    region: str
    service: str = "s3"


def sign_request(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    keys: SigningKeys,
    now: datetime,
) -> dict[str, str]:
    """``headers`` and those that the signature takes, its own among them. The URL has no query, and
    is encoded."""
    parts = urlsplit(url)
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    given = {**headers, "Host": parts.netloc, "X-Amz-Date": stamp, "X-Amz-Content-SHA256": digest}
    ordered = sorted((name.lower(), " ".join(value.split())) for name, value in given.items())
    names = ";".join(name for name, _ in ordered)
    lines = [
        method,
        parts.path or "/",
        parts.query,
        *(f"{name}:{value}" for name, value in ordered),
        "",
        names,
        digest,
    ]
    scope = f"{stamp[:8]}/{keys.region}/{keys.service}/aws4_request"
    to_sign = "\n".join(
        [_ALGORITHM, stamp, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()]
    )
    signature = hmac.new(_derive_key(keys, stamp[:8]), to_sign.encode(), hashlib.sha256).hexdigest()
    own = f"{_ALGORITHM} Credential={keys.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return given | {"Authorization": own}


def encode_path(*names: str) -> str:
    """Names as a path, encoded as S3 wants it: everything but letters, digits and ``-._~``."""
    return "/".join(quote(name, safe="-._~") for name in names)


def _derive_key(keys: SigningKeys, day: str) -> bytes:
    key = f"AWS4{keys.secret}".encode()
    for part in (day, keys.region, keys.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
