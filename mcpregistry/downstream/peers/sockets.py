"""How the processes of a site reach each other: over Unix sockets on one machine, over TLS on
several.

An address is the path of a socket, or HOST:PORT. A Unix socket lies in a folder that only the
site's user can read. With TLS (1.3), both sides show a certificate that is made from a key of the
site, and accept no other: a program without a key of the site does not get beyond the handshake.
Handshakes are bounded in number and time (``tls_listener``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcpregistry.downstream.peers.tls_listener import TLSListener

HANDSHAKE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_REFUSED_SECONDS = 0.5
_WAITING = 1024  # connections that are not accepted yet
_PURPOSE = b"slipsnisse between processes"
# the key is what counts
_FROM = datetime(2020, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, tzinfo=UTC)
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """An address of this machine that the other machines reach, and the ports to choose from (0 to
    0: any)."""

    name: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """How this process shows that it belongs to the site, as the one that listens and as the one
    that connects."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class _Site:
    identity: PeerIdentity | None = None


def identify(keys: Iterable[bytes]) -> None:
    """Use certificates of these keys (32 bytes each) from now on: the first is shown, all are
    accepted."""
    certificates = [_make_certificate(key) for key in keys]
    accepted = "".join(certificate for certificate, _ in certificates)
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # the key says who it is
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=accepted)
        # mode 0600; ssl reads keys only from files
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write("".join(certificates[0]))
            file.flush()
            context.load_cert_chain(file.name)
        contexts.append(context)
    _Site.identity = PeerIdentity(*contexts)


async def dial(address: str) -> Streams:
    """Connect to a process. Raises OSError: among others ConnectionRefusedError, TimeoutError and
    ssl.SSLError."""
    if address.startswith("/"):
        return await asyncio.open_unix_connection(address)
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        return await asyncio.open_connection(
            host.strip("[]"),
            int(port),
            ssl=_get_identity().client,
            ssl_shutdown_timeout=_CLOSE_SECONDS,
        )


async def explain_unreachable(address: str) -> str:
    """Return why a process of the site cannot be reached; empty if it can."""
    try:
        reader, writer = await dial(address)
        with contextlib.suppress(TimeoutError):  # nothing comes, unless it refuses us after all
            async with asyncio.timeout(_REFUSED_SECONDS):
                await reader.read(1)
        writer.close()
        await writer.wait_closed()
    except ssl.SSLError:
        return "the two processes do not accept each other's keys"
    except OSError as error:
        return error.strerror or "no answer"
    return ""


async def listen(
    place: Path | PeerAddress, accept: Accept
) -> tuple[asyncio.Server | TLSListener, str]:
    """Listen for connections of other processes. Returns what listens and its address. Raises
    OSError."""
    if isinstance(place, Path):
        listening = await asyncio.to_thread(_open_unix_socket, place)
        return await asyncio.start_unix_server(accept, sock=listening, backlog=_WAITING), str(place)
    listening = await asyncio.to_thread(_open_network_socket, place)
    listener = TLSListener(
        listening,
        accept,
        _get_identity().server,
        handshake_seconds=HANDSHAKE_SECONDS,
        close_seconds=_CLOSE_SECONDS,
    )
    return listener, f"{place.name}:{listening.getsockname()[1]}"


def _get_identity() -> PeerIdentity:
    assert _Site.identity is not None, "identify() comes first"
    return _Site.identity


def _open_unix_socket(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.fspath(path))
    path.chmod(0o600)
    return listening


def _open_network_socket(place: PeerAddress) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        place.name.strip("[]"), None, type=socket.SOCK_STREAM
    )[0]
    for port in range(place.first, place.last + 1):
        try:
            listening = socket.create_server((address[0], port), family=family, backlog=_WAITING)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == place.last:
                raise
        else:
            listening.setblocking(False)
            return listening
    raise AssertionError("there is always a port to try")


def _make_certificate(key: bytes) -> tuple[str, str]:
    """Return a certificate and its private key, as PEM. The same for the same key, in every process
    (RFC 8032, 8410)."""
    from cryptography import x509  # only sites on several machines need it
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = hmac.digest(key, _PURPOSE, "sha256")
    private = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"slipsnisse {_format_fingerprint(private)}")]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(int.from_bytes(hmac.digest(seed, b"serial", "sha256")[:16]) | 1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, None)
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), pem.decode()


def _format_fingerprint(private: Any) -> str:
    """Return what tells the certificates of two keys apart in a chain."""
    return str(private.public_key().public_bytes_raw().hex()[:16])
