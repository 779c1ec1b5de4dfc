"""Files come back as they were; between formats nothing is lost without being reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.domain.formats import FORMATS, text
from mcpregistry.domain.formats.document import Document
from mcpregistry.domain.formats.notes import Note
from tests.domain.formats.samples import IDS, SAMPLES, documents, odd_files, read_sample

# The formats that share their whole table of keys with another one add nothing to the slower tests.
DISTINCT = [name for name in FORMATS if name not in ("claude-code", "copilot")]


@pytest.mark.parametrize(("name", "path"), SAMPLES, ids=IDS)
def test_a_sample_comes_back_from_its_own_format_unchanged(name: str, path: Path) -> None:
    written = FORMATS[name].write(read_sample(name, path))
    assert not written.refused
    original = text.load(path.read_bytes(), path.name)
    assert json.dumps(written.data, sort_keys=True) == json.dumps(original, sort_keys=True)


@pytest.mark.parametrize(("name", "path"), SAMPLES, ids=IDS)
def test_the_servers_of_a_sample_keep_their_order_and_that_of_their_keys(
    name: str, path: Path
) -> None:
    again = FORMATS[name].write(read_sample(name, path)).data
    twice = FORMATS[name].write(FORMATS[name].read(again, path.name)).data
    assert json.dumps(again) == json.dumps(twice)


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize(("name", "path"), SAMPLES, ids=IDS)
def test_a_sample_survives_every_other_format_but_for_what_was_reported(
    name: str, path: Path, target: str
) -> None:
    assert_survives(read_sample(name, path), target)


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("target", DISTINCT)
@settings(max_examples=20)
@given(document=documents)
def test_any_server_survives_every_format_but_for_what_was_reported(
    target: str, document: Document
) -> None:
    assert_survives(document, target)


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("target", DISTINCT)
@settings(max_examples=12)
@given(document=documents)
def test_writing_what_was_written_and_read_changes_nothing(target: str, document: Document) -> None:
    form = FORMATS[target]
    once = form.write(document).data
    assert form.write(form.read(once, form.file)).data == once


def assert_survives(document: Document, target: str) -> None:
    """Write, serialise, parse, read: every column equal, or named by a note about that server."""
    form = FORMATS[target]
    written = form.write(replace(document, expert_tools=()))
    refused = [server.key for server in document.servers if _notes(written.refused, server.key)]
    plain = text.load(text.dump(written.data).encode(), "x.json")
    back = form.read(plain, form.file)
    assert not back.refused, [str(note) for note in back.refused]
    found = {server.key: server for server in back.servers}
    assert sorted(found) == sorted(
        server.key for server in document.servers if server.key not in refused
    )
    for server in document.servers:
        if server.key in refused:
            continue
        before = server.columns()
        after = found[server.key].columns()
        before["name"] = before["name"] if before["name"] != server.key else ""
        lost = {column for column in before if before[column] != after[column]}
        reported = {
            note.column
            for note in _notes(written.notes, server.key, list(document.servers).index(server))
        }
        assert lost <= reported, (lost - reported, before, after)


def _notes(notes: tuple[Note, ...], key: str, index: int = -1) -> list[Note]:
    """The notes about one server, which a list names by its place and a map by its key."""
    return [
        note
        for note in notes
        if {key, str(index)} & {part.replace("~1", "/") for part in note.pointer.split("/")[:4]}
    ]


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("target", DISTINCT)
@settings(max_examples=25)
@given(made=st.data())
def test_any_file_is_refused_with_a_place_or_comes_back_unchanged(
    target: str, made: st.DataObject
) -> None:
    form = FORMATS[target]
    data = made.draw(odd_files(form.family))
    document = form.read(data, form.file)
    if document.refused:
        assert all(note.sentence and note.remedy for note in document.refused)
    else:
        written = form.write(document)
        assert written.refused or written.data == data
