"""docs/README.md, from which the site makes its contents, names every document."""

from __future__ import annotations

from mcpregistry.web.docs.document_list import contents, entries
from tests.externals import ROOT


def test_the_contents_name_every_document_once():
    named = [entry.path.relative_to(ROOT).as_posix() for entry in entries()]
    assert sorted(named) == sorted(set(named))
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - {
        "docs/README.md"
    }
    assert there <= set(named)
    assert [group.title for group in contents()] == ["Learn", "Do", "Look up", "Understand"]
