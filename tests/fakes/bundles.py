"""Bundles (MCPB) as their makers publish them, and as attackers would."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

SERVER = """
const fs = require("fs");
const said = JSON.stringify({
  args: process.argv.slice(2), key: process.env.API_KEY || "", lib: process.env.LIB,
  folder: fs.readdirSync(__dirname + "/..").sort(), write: (() => {
    try { fs.writeFileSync(__dirname + "/x", "x"); return "yes"; } catch { return "no"; }
  })(),
});
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const asked = JSON.parse(line);
  if (asked.id === undefined) return;
  const answers = {
    "initialize": {protocolVersion: "2025-11-25", capabilities: {tools: {}}, serverInfo: {name: "b", version: "1"}},
    "tools/list": {tools: [{name: "look", description: said, inputSchema: {type: "object"}}]},
  };
  const answer = answers[asked.method];
  const told = answer ? {result: answer} : {error: {code: -32601, message: "no"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id: asked.id, ...told}));
});
"""


def manifest(version: str = "1.0.0", **said: Any) -> dict[str, Any]:
    """A server of Node that asks for a key, folders and a mode."""
    return {
        "manifest_version": "0.3",
        "name": "notes",
        "version": version,
        "license": "MIT",
        "tools": [{"name": "look"}],
        "server": {
            "type": "node",
            "entry_point": "server/index.js",
            "mcp_config": {
                "command": "node",
                "args": [
                    "${__dirname}/server/index.js",
                    "--mode",
                    "${user_config.mode}",
                    "${user_config.folders}",
                ],
                "env": {"API_KEY": "${user_config.api_key}", "LIB": "${__dirname}/lib"},
            },
        },
        "user_config": {
            "api_key": {"type": "string", "title": "API key", "sensitive": True, "required": True},
            "folders": {
                "type": "directory",
                "title": "Folders",
                "multiple": True,
                "default": ["${HOME}/Desktop"],
            },
            "mode": {"type": "string", "title": "Mode"},
        },
        **said,
    }


def bundle(
    said: Mapping[str, Any] | None = None, files: Mapping[str, str | bytes] | None = None
) -> bytes:
    """The zip file: its manifest, its server, and further files by name."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest() if said is None else said))
        archive.writestr("server/index.js", SERVER)
        archive.writestr("lib/", "")
        for name, content in (files or {}).items():
            archive.writestr(name, content)
    return raw.getvalue()


def with_link(target: str) -> bytes:
    """One with a symbolic link."""
    raw = io.BytesIO(bundle())
    with zipfile.ZipFile(raw, "a") as archive:
        info = zipfile.ZipInfo("lib/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
    return raw.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
