"""Package registries on loopback, with the real wire formats: PyPI's simple index (PEP 503, PEP
691) and npm's registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

SERVER = """
import json, sys
def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        answers = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "small", "version": "1"}},
            "tools/list": {"tools": [{"name": "ping", "inputSchema": {"type": "object"}}]},
        }
        answer = answers.get(asked["method"])
        said = {"result": answer} if answer else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""
JS = """#!/usr/bin/env node
const dep = require("small-dep");
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const asked = JSON.parse(line);
  if (asked.id === undefined) return;
  const answers = {
    "initialize": {protocolVersion: "2025-11-25", capabilities: {tools: {}}, serverInfo: {name: "small", version: dep}},
    "tools/list": {tools: [{name: "ping", inputSchema: {type: "object"}}]},
  };
  const answer = answers[asked.method];
  const said = answer ? {result: answer} : {error: {code: -32601, message: "no"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id: asked.id, ...said}));
});
"""


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    requires: tuple[str, ...] = (),
    program: str = "",
) -> tuple[str, bytes]:
    """File name and bytes of a wheel; ``program`` is ``name = module:function``."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    content = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: fake\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{program}\n"} if program else {}),
    }
    record = "".join(
        f"{path},{_record(text)},{len(text.encode())}\n" for path, text in content.items()
    )
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _record(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(
        hashlib.sha256(text.encode()).digest()
    ).decode().rstrip("=")


def tarball(manifest: Mapping[str, Any], files: Mapping[str, str]) -> bytes:
    """A package as npm serves it: everything below ``package/``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in {"package.json": json.dumps(manifest), **files}.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text.encode())
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@dataclass
class Packages:
    """What a registry holds, and what it was asked for. ``hold`` lets a download wait; ``answer``
    overrides a path."""

    address: str = ""
    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    npm: dict[str, dict[str, tuple[dict[str, Any], bytes]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda path: None

    def add_wheel(self, name: str, version: str, files: Mapping[str, str], **more: Any) -> None:
        """Put a wheel into the index."""
        file, content = wheel(name, version, files, **more)
        self.wheels.setdefault(name, {})[file] = content

    def add_npm(self, name: str, version: str, files: Mapping[str, str], **more: Any) -> None:
        """Publish a package; ``more`` goes into its ``package.json``."""
        manifest = {"name": name, "version": version, "license": "MIT", **more}
        self.npm.setdefault(name, {})[version] = (manifest, tarball(manifest, files))

    def body(self, path: str) -> tuple[str, bytes] | None:
        """Kind and bytes of an answer; None for 404."""
        parts = [part for part in unquote(path).split("/") if part]
        if parts[:1] == ["simple"] and len(parts) == 2 and parts[1] in self.wheels:
            return "application/vnd.pypi.simple.v1+json", json.dumps(
                self._simple(parts[1])
            ).encode()
        if parts[:1] == ["files"]:
            files = self.wheels.get(parts[1], {})
            return ("application/octet-stream", files[parts[2]]) if parts[2] in files else None
        if parts[:1] == ["npm"] and parts[-1].endswith(".tgz"):
            name = "/".join(parts[1:-2])
            version = parts[-1].removesuffix(".tgz").rpartition("+")[2]
            return "application/octet-stream", self.npm[name][version][1]
        name = "/".join(parts[1:])
        return (
            ("application/json", json.dumps(self._packument(name)).encode())
            if parts[:1] == ["npm"] and name in self.npm
            else None
        )

    def _simple(self, name: str) -> dict[str, Any]:
        files = [
            {
                "filename": file,
                "url": f"{self.address}/files/{name}/{file}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
            }
            for file, content in self.wheels[name].items()
        ]
        return {"meta": {"api-version": "1.0"}, "name": name, "files": files}

    def _packument(self, name: str) -> dict[str, Any]:
        versions = {
            version: manifest
            | (
                {"hasInstallScript": True}
                if {"postinstall", "install", "preinstall"} & {*manifest.get("scripts", {})}
                else {}
            )
            | {
                "dist": {
                    "tarball": f"{self.address}/npm/{name}/-/x+{version}.tgz",
                    "integrity": integrity(content),
                }
            }
            for version, (manifest, content) in self.npm[name].items()
        }
        return {"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}


def add_small_servers(packages: Packages) -> None:
    """Add a small server and what it needs to both registries: "small-server" 1.0, and
    "@small/server" 1.0.0 and 1.1.0."""
    packages.add_wheel("small-dep", "1.0", {"small_dep.py": "X = 1\n"})
    program = "small-server = small_server:main"
    packages.add_wheel(
        "small-server", "1.0", {"small_server.py": SERVER}, requires=("small-dep",), program=program
    )
    for version in ("1.0.0", "1.1.0"):
        packages.add_npm("small-dep", version, {"index.js": f'module.exports = "{version}";'})
        needs = {"small-dep": version}
        packages.add_npm(
            "@small/server", version, {"main.js": JS}, bin={"small": "main.js"}, dependencies=needs
        )


def integrity(content: bytes) -> str:
    """As npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


@contextmanager
def serving() -> Any:
    """Both registries on one port, until the block ends."""
    packages = Packages()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:  # uv asks by it whether parts of a wheel can be had
            self.do_GET()

        def do_GET(self) -> None:
            packages.asked.append(self.path)
            packages.before(self.path)
            found = packages.body(self.path)
            kind, body = found or ("application/json", b"{}")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                with suppress(BrokenPipeError):  # whoever asked was killed
                    self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    packages.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield packages
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
