"""Pages that a server wants opened first: which of them hosts get, and in which form."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.calls import own_site
from mcpregistry.domain.calls.forwarding import list_unsupported_questions
from mcpregistry.domain.calls.own_site import OwnSite
from mcpregistry.domain.calls.pages import (
    MOST_PAGES,
    URL_ELICITATION_REQUIRED,
    explain_needed_page,
    list_elicitation_ids,
    list_pages,
)
from mcpregistry.domain.errors import ToolRefused

URL: dict[str, Any] = {"elicitation": {"url": {}}}
PAGE = {"mode": "url", "elicitationId": "e1", "url": "https://example.com/in", "message": "Sign in"}
NOT_WEB: list[Any] = [
    "file:///etc/passwd",
    "javascript:alert(1)",
    "data:text/html,x",
    "https://a\nb",
    "",
    7,
    None,
]


def refusal(*pages: Any) -> ToolRefused:
    return ToolRefused(
        "Sign in first", rpc_code=URL_ELICITATION_REQUIRED, data={"elicitations": list(pages)}
    )


@pytest.mark.attack
@pytest.mark.parametrize("url", NOT_WEB)
def test_a_page_without_a_web_address_is_not_passed_on(url: Any):
    pages = PAGE | {"url": url}, PAGE
    needed = explain_needed_page(refusal(*pages), "git", allowed=True, capabilities=URL)
    assert needed.data == {"elicitations": [PAGE | {"message": "The server git asks: Sign in"}]}
    alone = explain_needed_page(refusal(pages[0]), "git", allowed=True, capabilities=URL)
    assert (alone.rpc_code, alone.data, alone.code) == (0, None, "TOOL_CALL_FAILED")


@pytest.mark.attack
def test_page_of_this_site_is_not_passed_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        own_site, "_own", OwnSite.at(["tools.example.org"], ["https://tools.example.org"])
    )
    page = PAGE | {"url": "https://tools.example.org/approvals/1/"}
    needed = explain_needed_page(refusal(page), "git", allowed=True, capabilities=URL)
    assert needed.data is None
    assert "tools.example.org" not in str(needed)
    assert list_unsupported_questions(
        {"a": {"method": "elicitation/create", "params": page}}, URL
    ) == ["elicitation/create"]


def test_a_host_that_opens_pages_gets_them_with_the_name_of_the_server():
    needed = explain_needed_page(refusal(PAGE), "git", allowed=True, capabilities=URL)
    assert (needed.rpc_code, needed.code) == (URL_ELICITATION_REQUIRED, "INPUT_NEEDED")
    assert needed.data == {"elicitations": [PAGE | {"message": "The server git asks: Sign in"}]}


@pytest.mark.parametrize(
    "capabilities", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}, {"sampling": {}}]
)
def test_other_hosts_get_the_addresses_as_text(capabilities: dict[str, Any]):
    needed = explain_needed_page(refusal(PAGE), "git", allowed=True, capabilities=capabilities)
    assert (needed.rpc_code, needed.data) == (0, None)
    assert "https://example.com/in" in needed.remedy


def test_a_server_that_may_not_ask_people_sends_them_nowhere():
    needed = explain_needed_page(refusal(PAGE), "git", allowed=False, capabilities=URL)
    assert (needed.rpc_code, needed.data, needed.message) == (0, None, "Sign in first")
    assert "example.com" not in str(needed)


@pytest.mark.parametrize(
    "data",
    [None, [], "x", {"elicitations": None}, {"elicitations": "x"}, {"elicitations": [1, []]}],
)
def test_data_of_another_form_holds_no_page(data: Any):
    assert list_pages(data, "git") == []
    assert list_elicitation_ids(data) == []


def test_the_number_of_pages_has_a_limit():
    assert len(list_pages({"elicitations": [PAGE] * 100}, "git")) == MOST_PAGES
