"""The form of a record's page as a browser sends it: every input with the value that the page
shows."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

_NOT_SENT = {"submit", "button", "image", "reset", "file"}


class _Form(HTMLParser):
    """Collects the inputs of the form with this id."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._form = form
        self._inside = False
        self._area = ""
        self._text = ""
        self._select = ""
        self._is_multiple = False
        self._options = [("", False)]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "form":
            self._inside = given.get("id") == self._form
        if not self._inside:
            return
        if tag == "input" and given.get("name") and given.get("type") not in _NOT_SENT:
            if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                self._add(
                    given["name"],
                    given.get("value", "on" if given.get("type") == "checkbox" else ""),
                )
        elif tag == "textarea":
            self._area = given["name"]
            self._text = ""
        elif tag == "select":
            self._select = given["name"]
            self._is_multiple = "multiple" in given
            self._options = []
        elif tag == "option" and self._select:
            self._options.append((given.get("value", ""), "selected" in given))

    def handle_data(self, data: str) -> None:
        self._text += data if self._area else ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif tag == "textarea" and self._area:
            text = self._text.removeprefix("\r\n").removeprefix("\n")
            self._add(self._area, text.replace("\r\n", "\n").replace("\n", "\r\n"))
            self._area = ""
        elif tag == "select" and self._select:
            chosen = [value for value, is_selected in self._options if is_selected]
            if not chosen and not self._is_multiple and self._options:
                chosen = [self._options[0][0]]
            for value in chosen:
                self._add(self._select, value)
            self._select = ""

    def _add(self, name: str, value: str) -> None:
        self.values.setdefault(name, []).append(value)


def form_of(answer: Any, model: str) -> dict[str, list[str]]:
    """What a browser would send if nobody typed anything into the form of this model."""
    form = _Form(f"{model}_form")
    form.feed(answer.content.decode())
    assert form.values
    return form.values
