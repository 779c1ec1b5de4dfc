"""The ids of questions that this site asks the hosts of sessions. Every web process recognizes them
without asking another one.

An id is an integer of at most 53 bits, because JSON numbers are not exact beyond: a number and, in
the lower bits, its signature for the session. So an answer to a question that was never asked in
the session is not passed on to other processes.
"""

from __future__ import annotations

import secrets

from django.utils.crypto import salted_hmac

_NUMBER_BITS = 30
_SIGNATURE_BITS = 23
_SALT = "mcpregistry.gateway.http.question_ids"


def make_question_id(session_id: str, number: int) -> int:
    """The id of the question with this number, which is taken modulo 2**30."""
    number %= 2**_NUMBER_BITS
    digest = salted_hmac(_SALT, f"{session_id}:{number}", algorithm="sha256").digest()
    return number << _SIGNATURE_BITS | int.from_bytes(digest[:4]) >> 32 - _SIGNATURE_BITS


def choose_first_number() -> int:
    """Where to begin: questions of different processes to one host must not have the same ids."""
    return secrets.randbelow(2**_NUMBER_BITS)


def parse_question_id(session_id: str, value: object) -> int | None:
    """The id that an answer names, if this site has asked such a question in the session; some
    hosts send it back as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 16:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2 ** (_NUMBER_BITS + _SIGNATURE_BITS):
        return None
    return value if make_question_id(session_id, value >> _SIGNATURE_BITS) == value else None
