"""Small files of hosts that are only read, and what their servers become."""

from __future__ import annotations

from typing import Any

CODEX = """
model = "o3"
[mcp_servers.docs]
command = "npx"
args = ["-y", "docs-mcp"]
env = { MODE = "fast" }
env_vars = ["DOCS_KEY", { name = "HOME_URL", source = "local" }]
cwd = "/srv/docs"
startup_timeout_sec = 20
tool_timeout_sec = 1.5
enabled_tools = ["search"]
disabled_tools = ["rm"]
[mcp_servers."web.site"]
url = "https://site.example/mcp"
bearer_token_env_var = "SITE_TOKEN"
http_headers = { X-Team = "blue" }
env_http_headers = { X-Key = "SITE_KEY" }
enabled = false
"""

HERMES = """
model: x
mcp_servers:
  docs:
    command: npx
    args: [-y, docs-mcp]
    env: {KEY: "${DOCS_KEY}"}
    timeout: 120
    connect_timeout: 5
    tools: {include: [search]}
"""

ZED = """{
  // comments are fine
  "theme": "One",
  "context_servers": {
    "old": {"command": {"path": "uvx", "args": ["old-mcp"], "env": {"A": "1"}}, "settings": {}},
    "new": {"source": "custom", "command": "uvx", "args": ["new-mcp"], "enabled": false},
    "far": {"url": "https://far.example/mcp", "headers": {"X-Team": "blue"}},
    "extension": {"source": "extension", "settings": {"key": 1}},
  }
}"""

AMP = """{"amp.url": "x", "amp.mcpServers": {
  "web": {"url": "https://web.example/mcp", "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}},
  "local": {"command": "uvx", "args": ["local-mcp"], "includeTools": ["a", "b"]}}}"""

GOOSE = """
GOOSE_MODEL: x
extensions:
  developer: {type: builtin, enabled: true, name: developer}
  notes:
    type: stdio
    cmd: uvx
    args: [notes-mcp]
    envs: {MODE: fast}
    env_keys: [NOTES_KEY]
    timeout: 300
    enabled: true
    name: notes
    description: Notes
    bundled: null
  web:
    type: streamable_http
    uri: https://web.example/mcp
    envs: {TEAM: blue}
    env_keys: [WEB_TOKEN]
    headers: {Authorization: "Bearer $WEB_TOKEN", X-Team: "${TEAM}", X-Other: $OTHER}
    enabled: false
"""

CONTINUE = """
name: mine
version: 0.0.1
schema: v1
mcpServers:
  - name: Notes
    command: uvx
    args: [notes-mcp]
    env: {KEY: "${{ secrets.NOTES_KEY }}"}
    connectionTimeout: 3000
  - name: web
    type: streamable-http
    url: https://web.example/mcp
    requestOptions: {headers: {X-Team: blue}}
"""

CONTINUE_LIST = """{"models": [], "experimental": {"modelContextProtocolServers": [
  {"transport": {"type": "stdio", "command": "uvx", "args": ["notes-mcp"]}}]}}"""

LIBRECHAT = """
version: 1.2.1
endpoints: {}
mcpServers:
  web:
    type: streamable-http
    url: https://web.example/mcp
    title: The web
    timeout: 60000
    initTimeout: 15000
    headers:
      X-Token: "{{WEB_TOKEN}}"
      X-User: "{{LIBRECHAT_USER_ID}}"
      X-Key: "${WEB_KEY}"
    customUserVars: {WEB_TOKEN: {title: Token, description: Yours}}
    serverInstructions: true
  notes: {command: uvx, args: [notes-mcp]}
"""

GEMINI = """{"ui": {"theme": "x"}, "mcp": {"allowed": ["web", "local", "old"], "excluded": ["old"]},
 "mcpServers": {
  "web": {"httpUrl": "https://web.example/mcp", "headers": {"Authorization": "Bearer $WEB_TOKEN"}, "timeout": 30000, "includeTools": ["a"]},
  "local": {"command": "$HOME/bin/x", "args": ["--key", "${KEY:-none}"], "env": {"A": "$A", "B": "%USERNAME%"}, "trust": true, "excludeTools": ["rm"]},
  "old": {"url": "https://old.example/sse"},
  "other": {"command": "x"}}}"""

WINDSURF = """{"mcpServers": {
  "web": {"serverUrl": "https://web.example/mcp", "headers": {"X-Key": "${env:WEB_KEY}", "X-File": "${file:~/.web/key}"}, "disabledTools": ["rm"]},
  "off": {"command": "uvx", "args": ["off-mcp"], "disabled": true}}}"""

CRUSH = """{"$schema": "https://charm.land/crush.json", "mcp": {
  "local": {"type": "stdio", "command": "node", "args": ["a.js"], "timeout": 120, "disabled": false, "disabled_tools": ["x"]},
  "web": {"type": "http", "url": "https://web.example/mcp", "headers": {"Authorization": "Bearer $WEB_TOKEN"}}}}"""

PLUGIN = """{"tools": {"command": "${CLAUDE_PLUGIN_ROOT}/bin/tools", "args": ["--all"]}, "web": {"type": "http", "url": "https://web.example/mcp"}}"""

CLAUDE_USER = """{"numStartups": 3, "mcpServers": {"top": {"type": "stdio", "command": "npx", "args": ["top-mcp"], "env": {}}},
 "projects": {
  "/home/me/one": {"history": [], "mcpServers": {"web": {"type": "http", "url": "https://one.example/mcp"}}},
  "/home/me/two": {"mcpServers": {"top": {"command": "two-mcp"}, "web": {"type": "http", "url": "https://two.example/mcp"}},
                   "disabledMcpServers": ["web"]},
  "/home/me/three": {"mcpServers": {}}, "/home/me/four": {}}}"""

VSCODE_SETTINGS = """{"editor.fontSize": 14, "mcp": {
  "inputs": [{"type": "promptString", "id": "token", "description": "Token", "password": true}],
  "servers": {"local": {"command": "uvx", "args": ["local-mcp"], "env": {"TOKEN": "${input:token}"}}}}}"""

DEV_CONTAINER = """{"image": "x", "customizations": {"vscode": {"mcp": {"servers": {"local": {"command": "uvx", "args": ["local-mcp"]}}}}}}"""

CODE_WORKSPACE = """{"folders": [], "settings": {"mcp": {"servers": {"local": {"command": "uvx", "args": ["local-mcp"]}}}}}"""

# name of the file, its text, the host, and by server what is not empty in it
HOST_FILES: list[tuple[str, str, str, dict[str, dict[str, Any]]]] = [
    (
        "config.toml",
        CODEX,
        "codex",
        {
            "docs": {
                "command": ("npx", "-y", "docs-mcp"),
                "env": {"DOCS_KEY": "${DOCS_KEY}", "HOME_URL": "${HOME_URL}", "MODE": "fast"},
                "cwd": "/srv/docs",
                "connect_timeout_ms": 20000,
                "request_timeout_ms": 1500,
                "tools_allowed": ("search",),
            },
            "web.site": {
                "transport": "http",
                "url": "https://site.example/mcp",
                "enabled": False,
                "headers": {
                    "X-Key": "${SITE_KEY}",
                    "X-Team": "blue",
                    "Authorization": "Bearer ${SITE_TOKEN}",
                },
            },
        },
    ),
    (
        "config.yaml",
        HERMES,
        "hermes",
        {
            "docs": {
                "command": ("npx", "-y", "docs-mcp"),
                "env": {"KEY": "${DOCS_KEY}"},
                "connect_timeout_ms": 5000,
                "request_timeout_ms": 120000,
                "tools_allowed": ("search",),
            }
        },
    ),
    (
        "settings.json",
        ZED,
        "zed",
        {
            "old": {"command": ("uvx", "old-mcp"), "env": {"A": "1"}},
            "new": {"command": ("uvx", "new-mcp"), "enabled": False},
            "far": {
                "transport": "http",
                "url": "https://far.example/mcp",
                "headers": {"X-Team": "blue"},
            },
        },
    ),
    (
        "settings.json",
        AMP,
        "amp",
        {
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "headers": {"Authorization": "Bearer ${WEB_TOKEN}"},
            },
            "local": {"command": ("uvx", "local-mcp"), "tools_allowed": ("a", "b")},
        },
    ),
    (
        "config.yaml",
        GOOSE,
        "goose",
        {
            "notes": {
                "command": ("uvx", "notes-mcp"),
                "env": {"MODE": "fast", "NOTES_KEY": "${cred:NOTES_KEY}"},
                "request_timeout_ms": 300000,
            },
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "enabled": False,
                "headers": {
                    "Authorization": "Bearer ${cred:WEB_TOKEN}",
                    "X-Team": "blue",
                    "X-Other": "${OTHER}",
                },
            },
        },
    ),
    (
        "config.yaml",
        CONTINUE,
        "continue",
        {
            "Notes": {
                "command": ("uvx", "notes-mcp"),
                "env": {"KEY": "${cred:NOTES_KEY}"},
                "connect_timeout_ms": 3000,
            },
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "headers": {"X-Team": "blue"},
            },
        },
    ),
    ("config.json", CONTINUE_LIST, "continue", {"server-1": {"command": ("uvx", "notes-mcp")}}),
    (
        "librechat.yaml",
        LIBRECHAT,
        "librechat",
        {
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "name": "The web",
                "connect_timeout_ms": 15000,
                "request_timeout_ms": 60000,
                "headers": {
                    "X-Token": "${cred:WEB_TOKEN}",
                    "X-User": "{{LIBRECHAT_USER_ID}}",
                    "X-Key": "${WEB_KEY}",
                },
            },
            "notes": {"command": ("uvx", "notes-mcp")},
        },
    ),
    (
        "settings.json",
        GEMINI,
        "gemini",
        {
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "headers": {"Authorization": "Bearer ${WEB_TOKEN}"},
                "request_timeout_ms": 30000,
                "tools_allowed": ("a",),
            },
            "local": {
                "command": ("${HOME}/bin/x", "--key", "${KEY:-none}"),
                "env": {"A": "${A}", "B": "${USERNAME}"},
                "auto_approve": True,
            },
            "old": {"transport": "sse", "url": "https://old.example/sse", "enabled": False},
            "other": {"command": ("x",), "enabled": False},
        },
    ),
    (
        "mcp_config.json",
        WINDSURF,
        "windsurf",
        {
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "headers": {"X-Key": "${WEB_KEY}", "X-File": "${cred:web-key}"},
            },
            "off": {"command": ("uvx", "off-mcp"), "enabled": False},
        },
    ),
    (
        "crush.json",
        CRUSH,
        "crush",
        {
            "local": {"command": ("node", "a.js"), "request_timeout_ms": 120000},
            "web": {
                "transport": "http",
                "url": "https://web.example/mcp",
                "headers": {"Authorization": "Bearer ${WEB_TOKEN}"},
            },
        },
    ),
    (
        ".mcp.json",
        PLUGIN,
        "claude-plugin",
        {
            "tools": {"command": ("${CLAUDE_PLUGIN_ROOT}/bin/tools", "--all")},
            "web": {"transport": "http", "url": "https://web.example/mcp"},
        },
    ),
    (
        ".claude.json",
        CLAUDE_USER,
        "claude-user",
        {
            "top": {"command": ("npx", "top-mcp")},
            "web": {"transport": "http", "url": "https://one.example/mcp"},
            "top-two": {"command": ("two-mcp",), "cwd": "/home/me/two"},
            "web-two": {"transport": "http", "url": "https://two.example/mcp", "enabled": False},
        },
    ),
    (
        "settings.json",
        VSCODE_SETTINGS,
        "vscode-settings",
        {"local": {"command": ("uvx", "local-mcp"), "env": {"TOKEN": "${cred:token}"}}},
    ),
    (
        "devcontainer.json",
        DEV_CONTAINER,
        "vscode-settings",
        {"local": {"command": ("uvx", "local-mcp")}},
    ),
    (
        "x.code-workspace",
        CODE_WORKSPACE,
        "vscode-settings",
        {"local": {"command": ("uvx", "local-mcp")}},
    ),
]
IDS = [f"{host}-{name}" for name, _, host, _ in HOST_FILES]
