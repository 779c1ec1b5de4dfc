"""One entry goes into a host's file or out of it; every other byte stays, or nothing is changed."""

from __future__ import annotations

import json
import string
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.hosts.entry_file import put_entry, read_file_entries, remove_entry
from mcpregistry.domain.hosts.jsonc import parse
from mcpregistry.domain.hosts.table import HOSTS

CLAUDE = HOSTS["claude-code"]
CODEX = HOSTS["codex"]
ZED = HOSTS["zed"]
ENTRY = {"url": "http://x/mcp/default"}

COMMENTED = """\
// my editor
{
    "theme": "Ayu", // dark at night
    /* tools */
    "context_servers": {
        "git": { "command": "git-mcp" }, // the old one
        "notes": {
            "command": "notes",
        },
    },
    "vim_mode": true
}
"""
WITH_OURS = COMMENTED.replace(
    '            "command": "notes",\n        },\n',
    '            "command": "notes",\n        },\n        "slipsnisse": {\n            "url": "http://x/mcp/default"\n        },\n',
)


def test_an_entry_goes_into_a_commented_file_and_out_again() -> None:
    text = put_entry(ZED, COMMENTED, "slipsnisse", ENTRY, "settings.json")
    assert text == WITH_OURS
    assert remove_entry(ZED, text, "slipsnisse", "settings.json") == COMMENTED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": {\n    "s": {\n      "url": "u"\n    }\n  }\n}\n'),
        ("{}", '{\n  "mcpServers": {\n    "s": {\n      "url": "u"\n    }\n  }\n}'),
        ('{"a": 1}', '{"a": 1,\n  "mcpServers": {\n    "s": {\n      "url": "u"\n    }\n  }\n}'),
        (
            '{\n\t"a": 1 // one\n}\n',
            '{\n\t"a": 1, // one\n\t"mcpServers": {\n\t\t"s": {\n\t\t\t"url": "u"\n\t\t}\n\t}\n}\n',
        ),
        (
            '{\r\n  "mcpServers": {}\r\n}\r\n',
            '{\r\n  "mcpServers": {\r\n    "s": {\r\n      "url": "u"\r\n    }\r\n  }\r\n}\r\n',
        ),
        (
            '{"mcpServers": {"s": {"url": "old"}}, "b": "}"}',
            '{"mcpServers": {"s": {\n  "url": "u"\n}}, "b": "}"}',
        ),
        ('\ufeff{"mcpServers": {"s": {"url": "u"}}}', None),
    ],
)
def test_it_is_written_as_the_file_is(before: str, after: str | None) -> None:
    text = put_entry(CLAUDE, before, "s", {"url": "u"}, "x.json")
    if after is None:
        assert text.startswith("\ufeff{")
        assert json.loads(text.removeprefix("\ufeff")) == json.loads(before.removeprefix("\ufeff"))
    else:
        assert text == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"mcpServers": {"a": 1, "s": {}}}', '{"mcpServers": {"a": 1 }}'),
        ('{"mcpServers": {"s": {}, "a": 1}}', '{"mcpServers": { "a": 1}}'),
        (
            '{"mcpServers": {\n  "a": 1, // one\n  "s": {}\n}}',
            '{"mcpServers": {\n  "a": 1 // one\n}}',
        ),
        ('{"mcpServers": {"s": {}}}', '{"mcpServers": {}}'),
        ('{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {}}}'),
        ("", ""),
    ],
)
def test_it_goes_with_its_comma(before: str, after: str) -> None:
    assert remove_entry(CLAUDE, before, "s", "x.json") == after


def test_what_somebody_added_to_the_entry_stays() -> None:
    before = '{"mcpServers": {"s": {"command": "old", "args": [1], "env": {"PROXY": "p", "V": "1"}, "timeout": 9}}}'
    text = put_entry(
        CLAUDE, before, "s", {"type": "stdio", "command": "new", "env": {"V": "2"}}, "x.json"
    )
    entry = json.loads(text)["mcpServers"]["s"]
    assert entry == {
        "type": "stdio",
        "command": "new",
        "env": {"PROXY": "p", "V": "2"},
        "timeout": 9,
    }
    remote = put_entry(CLAUDE, text, "s", {"type": "http", "url": "u"}, "x.json")
    assert json.loads(remote)["mcpServers"]["s"] == {"type": "http", "url": "u", "timeout": 9}


TOML = """\
model = "gpt" # mine

[projects."/home/ann/a[1]"]
trust_level = "trusted"

[mcp_servers.git]
command = "git-mcp"
args = [
  "[x]",
]

# why this one
[mcp_servers.notes]
command = "notes"
"""


def test_a_table_goes_to_the_end_of_a_toml_file_and_out_again() -> None:
    text = put_entry(CODEX, TOML, "slipsnisse", ENTRY | {"required": True}, "config.toml")
    assert (
        text == TOML + '\n[mcp_servers.slipsnisse]\nurl = "http://x/mcp/default"\nrequired = true\n'
    )
    assert tomllib.loads(remove_entry(CODEX, text, "slipsnisse", "config.toml")) == tomllib.loads(
        TOML
    )
    assert remove_entry(CODEX, TOML, "notes", "config.toml").endswith("# why this one\n")


def test_a_table_with_tables_below_it_is_replaced_where_it_stands() -> None:
    before = '[mcp_servers.s]\ncommand = "a"\ntool_timeout_sec = 900\n\n[mcp_servers.s.env]\nV = "1"\n\n# next\n[mcp_servers."b c"]\ncommand = "b"\n'
    text = put_entry(CODEX, before, "s", {"command": "x", "env": {"V": "2"}}, "config.toml")
    assert text == (
        '[mcp_servers.s]\ncommand = "x"\nenv = { V = "2" }\ntool_timeout_sec = 900\n\n\n# next\n[mcp_servers."b c"]\ncommand = "b"\n'
    )
    assert read_file_entries(CODEX, text, "config.toml").keys() == {"s", "b c"}


@pytest.mark.parametrize(
    ("slug", "text", "says"),
    [
        ("codex", 'mcp_servers = { s = { command = "a" } }\n', "yourself"),
        ("codex", "a = ", "not valid TOML"),
        ("codex", "mcp_servers = 1", "not an object"),
        ("cursor", '{"mcpServers": null, "a": 1}', "not an object"),
        ("cursor", '{"mcpServers": []}', "not an object"),
        ("cursor", '{"a": "5ecret', "line 1"),
        ("cursor", "[]", "root"),
    ],
)
def test_a_file_that_cannot_be_changed_without_harm_is_refused_and_not_quoted(
    slug: str, text: str, says: str
) -> None:
    with pytest.raises(FileInvalid) as refusal:
        put_entry(HOSTS[slug], text, "s", ENTRY, "the-file")
    assert says in str(refusal.value)
    assert "5ecret" not in str(refusal.value)


texts = st.text(string.printable + "ü€\\\"'/*{}[],:", max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(texts, values, max_size=4),
    st.dictionaries(texts, st.dictionaries(texts, values, max_size=3), max_size=3),
    texts,
    st.sampled_from([None, 1, 4, "\t"]),
)
def test_whatever_else_a_file_says_it_says_afterwards(
    rest: dict[str, Any], servers: dict[str, Any], key: str, indent: Any
) -> None:
    data = rest | {"mcpServers": servers}
    text = json.dumps(data, indent=indent)
    after = put_entry(CLAUDE, text, key, {"url": "u"}, "x.json")
    assert {k: v for k, v in parse(after, "x")["mcpServers"].items() if k != key} == {
        k: v for k, v in servers.items() if k != key
    }
    again = parse(remove_entry(CLAUDE, after, key, "x.json"), "x")
    assert again == data | {"mcpServers": {k: v for k, v in servers.items() if k != key}}
