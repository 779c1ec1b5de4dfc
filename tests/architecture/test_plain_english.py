"""Documents, pages and errors are written in plain English: each kind of text has few constructions
that readers stumble over.

The patterns are heuristics. A good sentence may match one, so each kind of text has a limit above
zero, counted per 1,000 words. To see all matches of a kind, run this file as a module: ``python -m
tests.architecture.test_plain_english errors``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from tests.architecture.test_layers import sources
from tests.externals import ROOT

# The highest number of matches per 1,000 words.
LIMITS = {"documents": 4.0, "interface": 3.0, "errors": 3.0}

PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        # "The text is no number": write "is not a number". "There is no agent yet" and "no longer"
        # are fine.
        r"(?<!there )\b(?:is|are|was|were|be|been|has|have|had|gives?|holds?|takes?) (?:no|none|nobody|nothing)\b(?! longer)",
        # Software reports, shows, sends and lists.
        r"\b(?:told|tells?|telling|says|said|hears?|heard|speaks?|spoken)\b",
        # Words that are translated from another language.
        r"\b(?:anew|mend(?:s|ed)?|bears?|borne|vouch(?:es|ed)?|afresh|thereby|lest|whence|forth|of late|at hand|shall)\b",
        r"\b(?:stands? (?:in|there|above|below|beside|still|at)|stood|otherwise than|foretells?|goes on|go on|gone on)\b",
        r"\b(?:becomes? of|of before|may not be|meanwhile|all the same|by (?:itself|themselves)|beside|besides|in between)\b",
        r"\b(?:also when|also (?:those|that|what)|for nobody)\b",
        # A person has a role: the user, an operator, an approver.
        r"\b(?:nobody|somebody|people|everybody|anybody)\b",
        # A sentence that starts with a relative clause: "What was changed is shown." Questions are
        # fine.
        r"(?:^|[.;:,(] ?)(?:who|what|whoever|whatever|whose|which of)\b(?![^.?!\n]*\?)",
    )
)
# A sentence that starts with what is usually its end: "Of a server that is disabled, no tool is
# listed." Here case matters.
FRAGMENT = re.compile(
    r"(?:^|[.;:] )(?:Of (?!course |the )|(?:By|As|From|At) (?!least|most|first|the |a |an |soon|well|default))[a-z]",
    re.MULTILINE,
)

# Keyword arguments and attributes whose strings are shown on pages, in the REST document or by
# commands.
SHOWN = {
    "help_text",
    "help",
    "hint",
    "description",
    "verbose_name",
    "verbose_name_plural",
    "label",
    "short_description",
}
SHOWN_ATTRIBUTES = {"help", "title", "short_description"}
MARKS_FOR_TRANSLATION = {"_", "gettext", "gettext_lazy"}
# Pages that list the rows of the requirements or of tests, in the words of their sources.
LEFT_OUT = {"requirements.md"}


class Text(NamedTuple):
    """A text that users read, and where it is."""

    place: str
    text: str


def documents() -> Iterator[Text]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path.name not in LEFT_OUT:
            text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
            text = re.sub(r"`[^`]*`", "X", text)
            text = re.sub(r"<[^>]+>", " ", re.sub(r"\]\([^)]*\)", "]", text))
            for paragraph in text.split("\n\n"):
                yield Text(str(path.relative_to(ROOT)), paragraph)


def interface() -> Iterator[Text]:
    for path in sorted((ROOT / "templates").rglob("*.html")):
        page = path.read_text()
        for place, line in visible_lines(page):
            yield Text(f"{path.relative_to(ROOT)}:{place}", line)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                values = [keyword.value for keyword in node.keywords if keyword.arg in SHOWN]
            elif isinstance(node, ast.Assign) and name_of(node.targets[0]) in SHOWN_ATTRIBUTES:
                values = [node.value]
            else:
                continue
            for value in values:
                yield Text(f"{path.relative_to(ROOT)}:{value.lineno}", string_of(value))


def errors() -> Iterator[Text]:
    # Each file is parsed twice: to keep all trees at the same time takes longer.
    names = error_classes(ast.parse(path.read_text()) for path in sources())
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name_of(node.func) in names:
                remedies = [
                    each.value for each in node.keywords if each.arg in ("remedy", "message")
                ]
                for value in [*node.args, *remedies]:
                    yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", string_of(value))


AREAS = {"documents": documents, "interface": interface, "errors": errors}


def visible_lines(page: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that a template shows; a variable is an X.

    Texts in ``{% translate "…" %}`` and the contents of ``{% blocktranslate %}`` are shown, other
    tags are not.
    """

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    page = re.sub(r"\{% comment.*?endcomment %\}|\{#.*?#\}", blank, page, flags=re.DOTALL)
    page = re.sub(r"""\{% (?:translate|trans) (["'])(.*?)\1.*?%\}""", r"\2", page)
    page = re.sub(r"\{\{.*?\}\}", "X", page)
    page = re.sub(r"\{%.*?%\}", blank, page, flags=re.DOTALL)
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", blank, page, flags=re.DOTALL)
    page = re.sub(r"<[^>]+>", lambda match: "\n" * match[0].count("\n") or " ", page)
    for number, line in enumerate(page.splitlines(), 1):
        if " " in line.strip():
            yield number, line.strip()


def unmarked_texts(page: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line with a text that is not marked for translation, and the text:
    words, not numbers or signs."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    page = re.sub(r"\{% comment.*?endcomment %\}|\{#.*?#\}", blank, page, flags=re.DOTALL)
    page = re.sub(r"\{% blocktranslate.*?endblocktranslate %\}", blank, page, flags=re.DOTALL)
    page = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", blank, page, flags=re.DOTALL)
    page = re.sub(r"<(script|style|svg|code|pre|kbd)\b.*?</\1>", blank, page, flags=re.DOTALL)
    page = re.sub(
        r'<span class="material-symbols-outlined[^>]*>.*?</span>', blank, page, flags=re.DOTALL
    )
    page = re.sub(
        r'(?s)<[^>]*?\b(?:title|aria-label|placeholder|alt)="([^"{]*[A-Za-z]{2}[^"{]*)"[^>]*>',
        r" \1 ",
        page,
    )
    page = re.sub(r"<[^>]+>", blank, page, flags=re.DOTALL)
    page = re.sub(r"&\w+;|&#\d+;", " ", page)
    for number, line in enumerate(page.splitlines(), 1):
        if re.search(r"[A-Za-z]{2}", line):
            yield number, line.strip()


def string_of(node: ast.AST) -> str:
    """Return the text of an expression: an X for each value in it, and nothing for what is not a
    text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "X" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return string_of(node.left) + string_of(node.right)
    if isinstance(node, ast.IfExp):
        return f"{string_of(node.body)} / {string_of(node.orelse)}"
    if isinstance(node, ast.Call) and name_of(node.func) in MARKS_FOR_TRANSLATION and node.args:
        return string_of(node.args[0])
    return ""


def name_of(node: ast.AST) -> str:
    """Return the last part of a name: ``NotFound`` of ``errors.NotFound``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def error_classes(trees: Iterable[ast.Module]) -> set[str]:
    bases = {}
    for tree in trees:
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        bases |= {node.name: {name_of(base) for base in node.bases} for node in classes}
    names = {"SlipsnisseError", "CommandError", "ValidationError", "ImproperlyConfigured"}
    while found := {name for name, above in bases.items() if name not in names and above & names}:
        names |= found
    return names


def matches(text: str) -> int:
    return sum(len(pattern.findall(text)) for pattern in (*PATTERNS, FRAGMENT))


@pytest.mark.parametrize("area", LIMITS)
def test_texts_are_plain_english(area: str) -> None:
    texts = [text for text in AREAS[area]() if text.text]
    words = sum(len(re.findall(r"[A-Za-z']+", text.text)) for text in texts)
    worst = sorted(((matches(text.text), text) for text in texts), reverse=True)
    rate = 1000 * sum(number for number, _ in worst) / words
    listed = "\n".join(f"{text.place}: {text.text}" for number, text in worst[:20] if number)
    assert words > 5_000
    assert rate <= LIMITS[area], (
        f"{rate:.1f} matches per 1,000 words, at most {LIMITS[area]} are allowed:\n{listed}"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The lock is no JSON. Resolve it anew.", 2),
        ("Of a server that offers more, the first are taken.", 1),
        ("Of the 12 calls, two failed. As a result, it was disabled.", 0),
        ("What was changed is shown to nobody.", 2),
        ("What was changed?", 0),
        ("There is no agent yet. The server is no longer offered.", 0),
        ('No server named "git".', 0),
    ],
)
def test_patterns_find_what_they_are_for(text: str, number: int) -> None:
    assert matches(text) == number


# Names, units and icons, which are the same in every language.
SAME_EVERYWHERE = {
    "| Slipsnisse",
    "SHA-256",
    "UTC",
    "Slipsnisse-Conversation:",
    "→  ms",
    ",  kB",
    "hub",
    "chevron_right",
}


def test_texts_of_templates_are_marked_for_translation() -> None:
    unmarked = []
    for path in sorted((ROOT / "templates").rglob("*.html")):
        for number, text in unmarked_texts(path.read_text()):
            if text not in SAME_EVERYWHERE:
                unmarked.append(f"{path.relative_to(ROOT)}:{number}: {text}")
    assert unmarked == []


MARKED_PACKAGES = (
    "mcpregistry/models",
    "mcpregistry/admin",
    "mcpregistry/web",
    "subagents/models",
    "subagents/admin",
)
MARKED_KEYWORDS = SHOWN | {"verbose_name", "title", "question", "empty_label", "message"}


def test_texts_of_models_and_pages_are_marked_for_translation() -> None:
    unmarked = []
    for path in (
        path for package in MARKED_PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                plain = isinstance(keyword.value, ast.Constant | ast.JoinedStr)
                if (
                    keyword.arg in MARKED_KEYWORDS
                    and plain
                    and re.search("[a-z] [a-z]", string_of(keyword.value))
                ):
                    unmarked.append(
                        f"{path.relative_to(ROOT)}:{node.lineno}: {string_of(keyword.value)}"
                    )
    assert unmarked == []


def test_unmarked_texts_of_a_template_are_found() -> None:
    page = '<p title="A tooltip">{% translate "Marked" %} {{ name }}</p>\n<b>{% if a %}Not marked{% endif %}</b>\n'
    assert list(unmarked_texts(page)) == [(1, "A tooltip"), (2, "Not marked")]


def test_visible_texts_of_a_template_are_found() -> None:
    page = '{% if a %}<p title="not shown">{% translate "Two words" %}</p>{% endif %}\n<b>Hello {{ name }}</b>\n'
    assert list(visible_lines(page)) == [(1, "Two words"), (2, "Hello X")]


if __name__ == "__main__":
    for area_name in sys.argv[1:] or LIMITS:
        for found_text in AREAS[area_name]():
            if matches(found_text.text):
                print(f"{found_text.place}: {' '.join(found_text.text.split())}")
