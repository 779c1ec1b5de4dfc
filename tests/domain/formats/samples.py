"""The sample files of this folder, by format, and the servers that the property tests make up."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from mcpregistry.domain.formats import FORMATS, text
from mcpregistry.domain.formats.document import Document, Oauth, ServerEntry

HERE = Path(__file__).parent
SAMPLES = sorted((path.parent.name, path) for path in (HERE / "samples").glob("*/*"))
IDS = [f"{name}-{path.stem}" for name, path in SAMPLES]


def sample(name: str) -> bytes:
    return (HERE / "samples" / name).read_bytes()


def read_sample(name: str, path: Path) -> Document:
    document = FORMATS[name].read(text.load(path.read_bytes(), path.name), path.name)
    assert not document.refused, [str(note) for note in document.refused]
    return document


keys = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
variables = st.from_regex(r"[A-Z][A-Z0-9_]{0,6}", fullmatch=True)
plain = st.text(st.characters(codec="utf-8", exclude_characters="\0{}$"), max_size=8)
words = st.one_of(
    plain,
    st.builds("{}${{{}}}{}".format, plain, variables, plain),
    st.builds("${{{}:-{}}}".format, variables, st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True)),
    st.builds("${{cred:{}}}".format, keys),
    st.sampled_from(["${workspace}/x", "${home}"]),
)
pairs = st.dictionaries(variables, words, max_size=3)
milliseconds = st.none() | st.integers(1, 86_400_000)

oauths = st.none() | st.builds(
    Oauth,
    client_id=plain,
    client_secret=words,
    scopes=st.lists(keys, max_size=2).map(tuple),
    callback_port=st.none() | st.integers(1, 65535),
)
_shared = {
    "name": plain,
    "enabled": st.booleans(),
    "connect_timeout_ms": milliseconds,
    "request_timeout_ms": milliseconds,
    "auto_approve": st.booleans() | st.lists(keys, min_size=1, max_size=2).map(tuple),
}


def local_servers(key: str) -> st.SearchStrategy[ServerEntry]:
    argv = st.builds(
        lambda first, rest: (first, *rest), plain.filter(str.strip), st.lists(words, max_size=3)
    )
    return st.builds(
        ServerEntry, key=st.just(key), command=argv, env=pairs, cwd=words, env_file=words, **_shared
    )


def remote_servers(key: str) -> st.SearchStrategy[ServerEntry]:
    urls = st.builds(
        "https://h.example/{}{}".format, keys, st.sampled_from(["", "/sse", "?k=${K}"])
    )
    sockets = st.builds("wss://h.example/{}".format, keys)
    return st.one_of(
        st.builds(
            ServerEntry,
            key=st.just(key),
            transport=st.sampled_from(["http", "sse"]),
            url=urls,
            headers=pairs,
            oauth=oauths,
            **_shared,
        ),
        st.builds(
            ServerEntry,
            key=st.just(key),
            transport=st.just("websocket"),
            url=sockets,
            headers=pairs,
            **_shared,
        ),
    )


def servers(key: str) -> st.SearchStrategy[ServerEntry]:
    return st.one_of(local_servers(key), remote_servers(key))


documents = st.lists(keys, unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*map(servers, names)).map(lambda made: Document(made))
)

# Files that nobody wrote by the book: every key that some format knows, with values of any kind.
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 100_000),
    words,
    st.sampled_from(
        [
            "stdio",
            "http",
            "sse",
            "remote",
            "https://h.example/sse",
            "a b",
            "${env:X}",
            "{env:Y}",
            "${input:z}",
        ]
    ),
    st.lists(words, max_size=3),
    pairs,
    st.dictionaries(
        st.sampled_from(["startup", "request", "clientId", "client_id", "scopes", "scope", "x"]),
        words | milliseconds,
    ),
)
_times = st.integers(1, 90_000)
_usual = {
    "args": st.lists(words, max_size=2),
    "env": pairs,
    "environment": pairs,
    "headers": pairs,
    "enabled": st.booleans(),
    "disabled": st.booleans(),
    "cwd": words,
    "envFile": words,
    "autoApprove": st.booleans() | st.lists(words, max_size=2),
    "alwaysAllow": st.lists(words, max_size=2),
    "tools": st.just(["*"]) | st.lists(words, max_size=2),
    "timeout": _times | st.dictionaries(st.sampled_from(["startup", "request", "x"]), _times),
    "oauth": st.just(False)
    | st.dictionaries(st.sampled_from(["clientId", "client_id", "x"]), words),
    "auth": st.dictionaries(st.sampled_from(["CLIENT_ID", "CLIENT_SECRET", "scopes"]), words),
    "sandbox": odd_values,
    "apiKey": words,
}
_starts = st.fixed_dictionaries(
    {"command": st.just("x") | st.lists(words.filter(str.strip), min_size=1, max_size=2)}
)
_reaches = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://h.example/mcp", "https://h.example/sse", "${B}/mcp"])},
    optional={"type": st.sampled_from(["http", "sse", "remote", "streamable-http"])},
)
_odd_keys = st.sampled_from([*_usual, "command", "url", "type", "transport", "id", "name"])
_extras = st.lists(st.sampled_from(list(_usual)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _usual[name] for name in names})
)
odd_entries = st.one_of(
    st.builds(lambda base, more: {**base, **more}, st.one_of(_starts, _reaches), _extras),
    st.builds(
        lambda base, more: {**base, **more},
        _starts,
        st.dictionaries(_odd_keys, odd_values, max_size=1),
    ),
    odd_values,
)


def _with_required(entry: object) -> object:
    """What every server of ``mcp-servers.json`` must have."""
    return (
        {"name": "n", "args": [], "command": "x", "enabled": True, **entry}
        if isinstance(entry, dict)
        else entry
    )


_maps = st.dictionaries(st.one_of(keys, keys, keys, plain), odd_entries, max_size=3)
_ROOTS = {
    "slipsnisse": st.fixed_dictionaries({"mcps": _maps, "tools": st.just([])}),
    "mcp-servers": st.builds(
        lambda entries: {
            "servers": [
                {"id": key, **entry} for key, entry in entries.items() if isinstance(entry, dict)
            ]
        },
        st.dictionaries(keys, odd_entries.map(_with_required), max_size=3),
    ),
    "ai-agent": st.fixed_dictionaries({}, optional={"mcpServers": _maps}),
    "mcpservers": st.fixed_dictionaries({"mcpServers": _maps}),
    "opencode": st.fixed_dictionaries({"mcp": _maps}),
    "opencode2": st.fixed_dictionaries(
        {"mcp": st.fixed_dictionaries({"servers": _maps}, optional={"x": words})}
    ),
    "vscode": st.fixed_dictionaries({"servers": _maps, "inputs": st.just([{"id": "z"}])}),
    "dispatch": st.fixed_dictionaries({"servers": _maps}),
}
_besides = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(
            st.fixed_dictionaries({"id": keys}, optional={"type": words}), max_size=2
        )
        | odd_values,
        "providers": odd_values,
        "defaults": odd_values,
        "subAgentEnabled": odd_values,
        "$schema": words,
        "servers": odd_values,
    },
)


def odd_files(family: str) -> st.SearchStrategy[dict[str, object]]:
    return st.builds(lambda besides, root: {**besides, **root}, _besides, _ROOTS[family])
