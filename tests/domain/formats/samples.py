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
    argv = st.builds(lambda first, rest: (first, *rest), plain.filter(str.strip), st.lists(words, max_size=3))
    return st.builds(ServerEntry, key=st.just(key), command=argv, env=pairs, cwd=words, env_file=words, **_shared)


def remote_servers(key: str) -> st.SearchStrategy[ServerEntry]:
    urls = st.builds("https://h.example/{}{}".format, keys, st.sampled_from(["", "/sse", "?k=${K}"]))
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
        st.builds(ServerEntry, key=st.just(key), transport=st.just("websocket"), url=sockets, headers=pairs, **_shared),
    )


def servers(key: str) -> st.SearchStrategy[ServerEntry]:
    return st.one_of(local_servers(key), remote_servers(key))


documents = st.lists(keys, unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*map(servers, names)).map(lambda made: Document(made))
)
