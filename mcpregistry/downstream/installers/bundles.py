"""Bundles (MCPB): fetched through the guarded client, checked by their SHA-256 before they are
opened, unpacked in bounds.

Invariants:
* Nothing of a file is read before its hash is the expected one.
* What is written lies below the build folder, is a file or a folder, and is no larger than its
  limits, whatever the archive says of itself.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from mcpregistry.domain.errors import (
    ConfigInvalid,
    DownstreamError,
    OutboundRefused,
    ResourceLimit,
)
from mcpregistry.domain.installs.mcpb import FILE, MOST_MANIFEST, Manifest, parse
from mcpregistry.domain.installs.reasons import InstallFailed, explain_excess_usage, explain_timeout
from mcpregistry.domain.servers.launch import check_url
from mcpregistry.domain.servers.target import ServerLimits, ServerTarget
from mcpregistry.downstream.http_client.client import HttpReply, Outbound, RequestAttempt
from mcpregistry.downstream.installers import programs
from mcpregistry.downstream.installers.installer_process import LOOK_SECONDS, InstallerPlace
from mcpregistry.downstream.installers.package_tree import MOST_BYTES, MOST_FILES

MOST_DOWNLOADED = 200 << 20
MOST_RATIO = 100  # of unpacked to packed, for archives that unpack to more than a little
_LITTLE = 1 << 20
_MOST_DIRECTORY = 32 << 20
_PIECE = 1 << 16
MOST_REDIRECTS = 5
_IDLE_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_END = b"PK\x05\x06"
_END64 = b"PK\x06\x07"
_ALLOW = "If you trust this address, add its network to “Allowed networks” on the page of the registry that lists the bundle."
_REPORT = "Do not use this bundle. Report the problem to its publisher."


def fetch_bundle(
    *, address: str, sha256: str, networks: tuple[str, ...], place: InstallerPlace
) -> tuple[str, int]:
    """The file with this hash, as a path below ``place.home``, and its size. Raises
    InstallFailed."""
    file = os.path.join(place.home, "bundle.zip")
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="bundle") as pool, open(file, "wb") as opened:
        work = _download(address, networks, opened, place.bounds.seconds, stop)
        done: Future[str] = pool.submit(asyncio.run, work)
        try:
            while not wait([done], LOOK_SECONDS).done:
                place.beat()
        finally:
            stop.set()
        found = done.result()
    if found != sha256:
        raise InstallFailed(
            "The file at the bundle's address is not the expected file: its SHA-256 hash is different.",
            remedy="Do not install this file. Ask the publisher of the bundle for the correct hash.",
        )
    return file, os.path.getsize(file)


async def _download(
    address: str, networks: tuple[str, ...], file: BinaryIO, seconds: float, stop: threading.Event
) -> str:
    """Write it into the file; its SHA-256. Redirects are followed, each to an address that is
    checked like the first."""
    target = ServerTarget(
        server_id=0,
        slug="",
        revision=0,
        transport="http",
        url=address,
        allowed_networks=networks,
        limits=ServerLimits(connect_timeout=_CONNECT_SECONDS),
    )
    try:
        async with asyncio.timeout(seconds), Outbound(target) as outbound:
            for _ in range(MOST_REDIRECTS):
                _check_address(address, networks)
                async with outbound.send(
                    "GET", address, headers={}, data=None, attempt=RequestAttempt()
                ) as reply:
                    if 300 <= reply.status < 400 and "location" in reply.headers:
                        address = urljoin(address, reply.headers["location"])
                        continue
                    return await _write_reply(reply, file, stop)
    except TimeoutError as error:
        raise explain_timeout(seconds) from error
    except ResourceLimit as error:
        raise explain_excess_usage("network data", f"{MOST_DOWNLOADED >> 20} MB") from error
    except OutboundRefused as error:
        raise InstallFailed(
            f"The bundle cannot be downloaded. {error.message}", remedy=_ALLOW
        ) from error
    except (DownstreamError, ConfigInvalid) as error:
        raise InstallFailed(
            f"The bundle cannot be downloaded. {error.message}", remedy=error.remedy
        ) from error
    raise InstallFailed(
        f"The bundle's address redirects more than {MOST_REDIRECTS} times.",
        remedy="Ask the publisher of the bundle for an address without redirects.",
    )


def _check_address(address: str, networks: tuple[str, ...]) -> None:
    if not check_url(address, ("http", "https")).startswith("https://") and not networks:
        raise ConfigInvalid(
            "The bundle has an http address, so the file could be changed during the download.",
            remedy="Use an https address.",
        )


async def _write_reply(reply: HttpReply, file: BinaryIO, stop: threading.Event) -> str:
    if reply.status != 200:
        raise InstallFailed(
            f"The bundle's address answered HTTP {reply.status}.",
            remedy="Check whether the bundle still exists at this address.",
        )
    digest = hashlib.sha256()
    pieces = reply.read_pieces(MOST_DOWNLOADED)
    while not stop.is_set():
        async with asyncio.timeout(_IDLE_SECONDS):
            piece = await anext(pieces, None)
        if piece is None:
            break
        digest.update(piece)
        await asyncio.to_thread(file.write, piece)
    return digest.hexdigest()


def read_bundle_manifest(file: str) -> Mapping[str, Any]:
    """The archive's ``manifest.json``. Raises InstallFailed, and LockRefused for what it says."""
    with _open_archive(file) as archive:
        try:
            info = archive.getinfo(FILE)
        except KeyError as error:
            raise InstallFailed(
                f"The file is not a valid bundle: it contains no {FILE}.", remedy=_REPORT
            ) from error
        raw = b"".join(_unpack_file(archive, info, MOST_MANIFEST))
    return parse(raw)


def unpack(file: str, build: str) -> None:
    """All of it, below ``build``. Raises InstallFailed, with the name of what is odd in it."""
    with _open_archive(file) as archive:
        infos = archive.infolist()
        _check_entries(infos)
        left = MOST_BYTES
        for info in infos:
            target = Path(build, info.filename)
            try:
                (target if info.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise _make_odd_error(
                    info, "is in a folder whose path is already used by a file"
                ) from error
            if info.is_dir():
                continue
            with open(target, "xb") as opened:
                for piece in _unpack_file(archive, info, left):
                    opened.write(piece)
                    left -= len(piece)
            os.chmod(target, 0o700 if info.external_attr >> 16 & 0o111 else 0o600)


def build_bundle_command(found: Manifest, folder: str) -> list[str]:
    """The program and its fixed words, with the bundle in ``folder``. Raises InstallFailed where
    there is no such program."""
    first = {"node": programs.find_node, "python": programs.find_python}.get(found.program)
    return [
        *([first()] if first else []),
        *(word.replace("${__dirname}", folder) for word in found.fixed),
    ]


def make_runnable(words: list[str], build: str) -> None:
    """Its own program may be started, also where the archive forgot that. Changes no mode outside
    of the folder."""
    place = os.path.realpath(words[0])
    if not Path(place).is_relative_to(os.path.realpath(build)) or not words[0].startswith(
        f"{build}/"
    ):
        return
    if os.path.isfile(place) and not os.path.islink(words[0]):
        os.chmod(place, 0o700)


def _open_archive(file: str) -> zipfile.ZipFile:
    """The archive, once its list of contents is known to be of a size that one may read."""
    try:
        _check_end(file)
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise InstallFailed("The bundle is not a valid ZIP archive.", remedy=_REPORT) from error


def _check_end(file: str) -> None:
    with open(file, "rb") as opened:
        opened.seek(-min(os.path.getsize(file), 22 + 0xFFFF + 20), os.SEEK_END)
        tail = opened.read()
    at = tail.rfind(_END)
    count, size = struct.unpack("<HI", tail[at + 10 : at + 16]) if at >= 0 else (0, 0)
    if _END64 in tail or count > MOST_FILES or size > _MOST_DIRECTORY:
        raise explain_excess_usage("disk space", f"{MOST_BYTES >> 20} MB or {MOST_FILES:,} files")


def _check_entries(infos: list[zipfile.ZipInfo]) -> None:
    names: set[str] = set()
    for info in infos:
        mode = info.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _make_odd_error(info, "is not a regular file or folder")
        if info.flag_bits & 1 or info.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise _make_odd_error(info, "is encrypted, or compressed in an unsupported way")
        if not _is_below(info.filename):
            raise _make_odd_error(info, "has a path outside of the bundle")
        key = info.filename.rstrip("/")
        if key in names:
            raise _make_odd_error(info, "is contained twice")
        names.add(key)
    packed, whole = (
        sum(getattr(info, name) for info in infos) for name in ("compress_size", "file_size")
    )
    if (
        whole > MOST_BYTES
        or len(infos) > MOST_FILES
        or (whole > _LITTLE and whole > packed * MOST_RATIO)
    ):
        raise explain_excess_usage(
            "disk space",
            f"{MOST_BYTES >> 20} MB, {MOST_FILES:,} files, or {MOST_RATIO} times the packed size",
        )


def _is_below(name: str) -> bool:
    parts = name.rstrip("/").split("/")
    odd = (
        "\\" in name
        or any(sign < " " for sign in name)
        or name.startswith("/")
        or len(name) > 1_000
    )
    return not odd and all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= 255 for part in parts
    )


def _unpack_file(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
    """In pieces; more than ``most`` bytes, or another content than its checksum says, is
    refused."""
    try:
        with archive.open(info) as opened:
            while piece := opened.read(_PIECE):
                most -= len(piece)
                if most < 0:
                    raise explain_excess_usage("disk space", f"{MOST_BYTES >> 20} MB")
                yield piece
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise _make_odd_error(info, "is damaged") from error
    except OSError as error:
        # its list of contents names a place before the file's beginning
        if error.errno != errno.EINVAL:
            raise
        raise _make_odd_error(info, "is damaged") from error


def _make_odd_error(info: zipfile.ZipInfo, what: str) -> InstallFailed:
    return InstallFailed(f"{info.filename[:200]!r} in the bundle {what}.", remedy=_REPORT)
