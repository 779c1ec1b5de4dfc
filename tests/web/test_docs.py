"""The docs as the site serves them: every page, every link and picture in them, found words, and
the way to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.template import Context, Template
from django.test import Client
from django.urls import reverse

from controlplane.navigation import AREAS
from mcpregistry.templatetags.error_codes import error_code
from mcpregistry.web.docs.document_list import contents, entries, find_parent, render_document
from mcpregistry.web.docs.error_codes import error_codes
from mcpregistry.web.docs.rendering import address, render
from mcpregistry.web.docs.search import search
from tests.fakes.seed import Site
from tests.pictures import IMAGES, PICTURES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.one_database
_LINK = re.compile(r'(?:href|src)="([^"]+)"')


def test_every_link_and_picture_of_every_document_leads_somewhere():
    anchors = {
        entry.slug: {section.anchor for section in render_document(entry).sections}
        for entry in entries()
    }
    broken = []
    for entry in entries():
        for target in _LINK.findall(render_document(entry).html):
            path, _, anchor = target.partition("#")
            slug = path.removeprefix("/docs/").rstrip("/") or entry.slug
            if path.startswith("/docs/images/"):
                fine = (ROOT / path.lstrip("/")).is_file()
            elif path.startswith("/docs/errors/") and path.count("/") == 4:
                fine = path.split("/")[3] in error_codes()
            elif path.startswith("/docs/") or not path:
                fine = slug in anchors and (not anchor or anchor in anchors[slug])
            else:
                fine = target.startswith(("https://", "mailto:")) or path in ("LICENSE", "/")
            if not fine:
                broken.append((entry.slug, target))
    assert not broken


def test_every_picture_can_be_taken_anew_and_is_shown():
    files = {file.stem for file in IMAGES.glob("*.png")}
    assert {picture.name for picture in PICTURES} == files
    texts = [
        file.read_text(encoding="utf-8")
        for file in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    ]
    assert [
        name for name in sorted(files) if not any(f"images/{name}.png" in text for text in texts)
    ] == []


def test_the_words_of_the_navigation_are_explained():
    """The glossary has each list's name, in the singular."""
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8").lower()
    explained = {
        word.removesuffix("s").removesuffix("y") for word in re.findall(r"\*\*([^*]+)\*\*", text)
    }
    pages = [page for area in AREAS for page in area.pages]
    lists = {page.title.lower() for page in pages if page.url.endswith("_changelist")}
    unexplained = {title for title in lists if not any(word in title for word in explained)}
    assert explained >= {"mcp", "mcp server", "host"}
    assert unexplained == {"configuration"}


def test_a_document_says_what_its_file_says():
    made = render(
        "# One `thing`\n\nText [there](audit.md#a-b).\n\n## A *b*\n\n|x|\n|-|\n|y|\n\n## A b\n",
        base="/docs/",
    )
    assert made.title == "One thing"
    assert [section.anchor for section in made.sections] == ["one-thing", "a-b", "a-b-1"]
    assert made.sections[0].text == "Text there."
    assert made.sections[1].text == "x y"
    assert '<a href="/docs/audit/#a-b">' in made.html
    assert "<h1" not in made.html
    assert address("https://example.org/x.md", "/docs/") == "https://example.org/x.md"


def test_contents_of_a_directory_lead_to_their_documents(people: Site, client_of):
    client = client_of("viewer")
    directory = next(entry for entry in entries() if entry.slug == "decisions")
    page = client.get("/docs/decisions/").content.decode()
    assert directory.parts
    assert not any("`" in part.title for part in directory.parts)
    assert all(f'href="/docs/{part.slug}/"' in page for part in directory.parts)
    part = directory.parts[1]
    assert find_parent(part) == directory
    page = client.get(f"/docs/{part.slug}/").content.decode()
    assert f'<a href="/docs/decisions/">{directory.title}</a>' in page
    assert f'rel="prev" href="/docs/{directory.parts[0].slug}/"' in page
    assert address("../decisions/README.md#hosts", "/docs/") == "/docs/decisions/#hosts"
    assert address("../../README.md", "/docs/") == address("README.md", "/docs/") == "/docs/"


def test_every_document_has_an_address_of_its_own():
    slugs = [entry.slug for entry in entries()]
    assert sorted(slugs) == sorted(set(slugs))
    assert "" not in slugs


def test_words_find_the_section_that_is_about_them():
    best = search("idempotency key")[0]
    assert (best.slug, best.title) == ("rest", "Send a request twice safely")
    assert any(found for _, found in best.parts)
    assert search("restor")[0].slug == "backup"
    assert search('"; DROP -- *') == search("drop")
    assert search("zebrafishery") == search(" ") == []


def test_pages_are_for_who_is_logged_in(people: Site, client_of):
    assert Client().get("/docs/rest/").status_code == 302
    viewer = client_of("viewer")
    page = viewer.get("/docs/").content.decode()
    listed = [entry for group in contents() for entry in group.entries]
    assert all(f'href="/docs/{entry.slug}/"' in page for entry in listed)
    assert "<mark>" in viewer.get("/docs/?q=<b>approve").content.decode()
    assert "No section contains" in viewer.get("/docs/?q=zebrafishery").content.decode()
    assert viewer.get("/docs/nothing/").status_code == 404
    assert viewer.get("/docs/images/approvals.png")["Content-Type"] == "image/png"
    assert viewer.get("/docs/images/..%2fREADME.md").status_code == 404
    for entry in entries():
        assert viewer.get(f"/docs/{entry.slug}/").status_code == 200


def test_pages_lead_to_what_explains_them(people: Site, client_of):
    admin = client_of("admin")
    anchors = {
        entry.slug: {section.anchor for section in render_document(entry).sections}
        for entry in entries()
    }
    for name, slug in (
        ("admin:index", "first-hour"),
        ("admin:mcpregistry_budget_changelist", "budgets"),
        ("admin:subagents_proposal_changelist", "sub-agent"),
        ("approvals:queue", "approvals"),
    ):
        found = re.search(
            r'class="sn-docs-link" href="/docs/([\w-]+)/(?:#([\w-]+))?"',
            admin.get(reverse(name)).content.decode(),
        )
        assert found, name
        assert found[1] == slug
        assert not found[2] or found[2] in anchors[slug]


def test_what_the_places_name_is_there():
    from mcpregistry.web.docs import page_documents

    anchors = {
        entry.slug: {section.anchor for section in render_document(entry).sections}
        for entry in entries()
    }
    for place in [*page_documents._ADMIN.values(), *filter(None, page_documents._OTHERS.values())]:
        slug, _, anchor = place.partition("#")
        assert not anchor or anchor in anchors[slug], place
        assert slug in anchors


@pytest.mark.exhaustive
def test_every_error_code_has_a_page_to_which_the_table_leads(people: Site, client_of):
    client = client_of("viewer")
    table = client.get("/docs/errors/").content.decode()
    for code in error_codes():
        address = f"/docs/errors/{code}/"
        assert f'href="{address}"' in table
        assert code in client.get(address).content.decode()
    page = client.get("/docs/errors/TIMEOUT/").content.decode()
    assert "The call may have taken effect." in page
    assert client.get("/docs/errors/NO_SUCH_CODE/").status_code == 404


def test_tag_links_a_known_error_code_and_escapes_any_other() -> None:
    assert 'href="/docs/errors/TIMEOUT/"' in error_code("TIMEOUT")
    assert (
        Template("{% load error_codes %}{% error_code code %}").render(Context({"code": "<b>"}))
        == "&lt;b&gt;"
    )
