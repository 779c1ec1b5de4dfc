"""Hand-written JSON and YAML are read kindly; hostile ones are refused quickly and in plain
words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.notes import FileInvalid
from tests.domain.growth import FACTOR, grows_at_most

storable = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(storable, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(storable, values, max_size=4)


def refusal(raw: bytes, file: str) -> FileInvalid:
    with pytest.raises(FileInvalid) as caught:
        text.load(raw, file)
    assert caught.value.remedy
    return caught.value


@settings(max_examples=60)
@given(objects)
def test_what_is_dumped_is_loaded_again(data: dict[str, object]) -> None:
    assert text.load(text.dump(data).encode(), "x.json") == data
    assert text.load(text.dump(data, as_yaml=True).encode(), "x.yaml") == data


def test_json_may_hold_comments_and_trailing_commas() -> None:
    raw = b'\xef\xbb\xbf{ // one\n "a": [1, 2,], /* two */ "b": "// no, /* comment */ ,}", }'
    assert text.load(raw, "x.json") == {"a": [1, 2], "b": "// no, /* comment */ ,}"}


def test_yaml_is_read_by_the_core_rules_of_version_1_2() -> None:
    raw = b"a: on\nb: 12:30\nc: 2020-01-01\nd: no\ne: 0x1f\nf: ~\ng: 1.5\nh: true\n"
    assert text.load(raw, "x.yaml") == {
        "a": "on",
        "b": "12:30",
        "c": "2020-01-01",
        "d": "no",
        "e": 31,
        "f": None,
        "g": 1.5,
        "h": True,
    }


def test_yaml_anchors_and_merge_keys_work() -> None:
    raw = b"base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\nagain: *b\n"
    assert text.load(raw, "x.yml") == {
        "base": {"x": 1, "y": 2},
        "use": {"x": 1, "y": 3},
        "again": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("raw", "yaml"),
    [(b'{"a": 1}', False), (b"// c\n{}", False), (b"a: 1", True), (b"--- {a: 1}", True)],
)
def test_without_an_ending_the_first_character_decides(raw: bytes, yaml: bool) -> None:
    assert text.load(raw, "-") == ({} if raw.endswith(b"{}") else {"a": 1})


@pytest.mark.parametrize(
    ("raw", "file"),
    [(b'{"a/b": {"c": 1, "c": 2}}', "x.json"), (b"a/b:\n  c: 1\n  c: 2\n", "x.yaml")],
)
def test_a_repeated_key_is_refused_with_its_pointer(raw: bytes, file: str) -> None:
    assert refusal(raw, file).note.pointer == "/a~1b/c"


@pytest.mark.parametrize(
    ("raw", "file", "word"),
    [
        (b"{", "x.json", "Line 1"),
        (b"[1]", "x.json", "must be an object, but it is a list"),
        (b"", "x.yaml", "must be an object, but it is empty"),
        (b"\xff\xfe", "x.json", "UTF-8"),
        (b'{"a": NaN}', "x.json", "NaN"),
        (b'{"a": 1e999}', "x.json", "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x.json", "too long"),
        (b'{"a": "\\u0000"}', "x.json", "NUL"),
        (b'{"\\ud800": 1}', "x.json", "surrogate"),
        (b"a: .inf", "x.yaml", "infinite"),
        (b"a: !!python/object/apply:os.system [id]", "x.yaml", "tags"),
        (b"a: !!binary aGk=", "x.yaml", "tags"),
        (b"1: a", "x.yaml", "quotes"),
        (b"? [a]\n: b", "x.yaml", "quotes"),
        (b"a: &x [*x]", "x.yaml", "nested"),
        (b"a: 1\n---\nb: 2", "x.yaml", "document"),
        (b"a: \x01", "x.yaml", "YAML"),
    ],
)
def test_what_cannot_be_a_configuration_is_refused_in_plain_words(
    raw: bytes, file: str, word: str
) -> None:
    assert word in str(refusal(raw, file))


def test_a_refusal_never_quotes_the_file() -> None:
    for raw, file in [
        (b'{"a": sk-secret}', "x.json"),
        (b'a: "sk-secret\n', "x.yaml"),
        (b"a: *sk-secret", "x.yaml"),
    ]:
        assert "sk-secret" not in str(refusal(raw, file))


def aliases() -> bytes:
    lines = [b"a: &a [x,x,x,x,x,x,x,x]"]
    lines += [b"%c: &%c [%s]" % (c, c, b",".join([b"*%c" % (c - 1)] * 8)) for c in range(98, 112)]
    return b"\n".join(lines)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("raw", "file"),
    [
        (b'{"a":' * 100 + b"1" + b"}" * 100, "x.json"),
        (aliases(), "x.yaml"),
        (b" " * (text.MAX_BYTES + 1), "x.json"),
    ],
    ids=["objects", "alias-bomb", "size"],
)
def test_a_hostile_file_is_refused(raw: bytes, file: str) -> None:
    refusal(raw, file)


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("times", "raw", "file"),
    [
        (1_000_000, lambda n: b"[" * n, "x.json"),
        (500_000, lambda n: b"/*" * n, "x.json"),
        (300_000, lambda n: b'"\\"' * n, "x.json"),
        (200_000, lambda n: b"," + b"/* */" * n, "x.json"),
        (100_000, lambda n: b"[" * n, "x.yaml"),
        (300_000, lambda n: b"a: [" + b"a, " * n + b"]", "x.yaml"),
        (500_000, lambda n: b'{"a": [' + b"1," * n + b"1]}", "x.json"),
    ],
    ids=["deep-json", "comments", "quotes", "comma", "deep-yaml", "long-yaml", "long-json"],
)
def test_a_long_hostile_file_is_refused_in_linear_time(
    times: int, raw: Callable[[int], bytes], file: str
) -> None:
    assert grows_at_most(lambda n: refusal(raw(n), file), times // FACTOR)
