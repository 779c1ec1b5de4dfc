"""Conversations of chat clients: what becomes the question, what its context, and what a repeated
question is."""

from __future__ import annotations

from typing import Any

import pytest

from subagents.headends import responses
from subagents.headends.chat_arguments import (
    WAITING,
    ChatMessage,
    build_arguments,
    is_background_prompt,
    read_messages,
)
from subagents.headends.errors import HeadendError

ONE_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
QUESTION = ChatMessage("user", "Make a branch.")
NOTICE = ChatMessage("assistant", f"{WAITING}\nhttps://site.example/approvals/1/\n")


def text_of(*chat: ChatMessage) -> str:
    return str(build_arguments(chat, ONE_TEXT)["text"])


def test_the_same_message_twice_keeps_what_came_between() -> None:
    yes = ChatMessage("user", "yes")
    asked = text_of(yes, ChatMessage("assistant", "Delete all files?"), yes)
    assert (
        asked
        == "Earlier messages:\n\nUser: yes\n\nAssistant: Delete all files?\n\nQuestion:\n\nyes"
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "before", [(), (ChatMessage("user", "hi"), ChatMessage("assistant", "hello"))]
)
def test_a_question_repeated_after_a_notice_is_the_same_question(
    before: tuple[ChatMessage, ...], times: int
) -> None:
    assert text_of(*before, *[QUESTION, NOTICE] * times, QUESTION) == text_of(*before, QUESTION)


def test_another_question_after_a_notice_keeps_its_context() -> None:
    assert NOTICE.text in text_of(QUESTION, NOTICE, ChatMessage("user", "Is it done?"))


def test_system_text_after_the_question_is_kept() -> None:
    asked = text_of(ChatMessage("user", "Hello."), ChatMessage("system", "Answer in French."))
    assert (
        asked == "Instructions of the client program:\n\nAnswer in French.\n\nQuestion:\n\nHello."
    )


def test_a_refusal_of_an_earlier_answer_is_read() -> None:
    parts = [{"type": "refusal", "refusal": "I cannot."}]
    assert read_messages([{"role": "assistant", "content": parts}]) == [
        ChatMessage("assistant", "I cannot.")
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        "### Task:\nGenerate a concise, 3-5 word title with an emoji.",
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions.",
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title",
        "Given the following... please reply with a title for the chat that is 3-4 words in length.",
        "Generate a title for this conversation:\n",
        "Please generate a four to five word title summarizing our conversation without any lead-in.",
        "Please generate a concise title (max 40 characters) for a conversation that starts with",
    ],
)
def test_prompts_for_titles_are_recognised(prompt: str) -> None:
    assert is_background_prompt([ChatMessage("user", "Hello."), ChatMessage("user", prompt)])


@pytest.mark.parametrize(
    "question",
    [
        "Generate a report with a title.",
        "Given the following log, what failed?",
        "Write a title for my book.",
    ],
)
def test_questions_about_titles_are_answered(question: str) -> None:
    assert not is_background_prompt([ChatMessage("user", question)])


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {
            "input": [
                {"type": "item_reference", "id": "msg_1"},
                {"role": "user", "content": "and then?"},
            ]
        },
    ],
)
def test_a_reference_to_what_is_not_stored_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(HeadendError, match="nothing is stored for later requests"):
        responses.read_request({"model": "expert", "input": "hi"} | more)
