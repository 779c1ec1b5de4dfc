"""Authentication over REST: people come with a session, programs with a bearer token.

* A request with a bearer token is judged by that token alone, so no browser's cookie rides along.
* A session is good only with the CSRF token that belongs to it.
* Fails closed: when the database cannot say whether a token was revoked, the answer is 503.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import structlog
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.db import Error
from django.http import HttpRequest
from django.utils import timezone
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from mcpregistry.api.errors import TooManyRequests, make_unauthorized
from mcpregistry.api.permissions import OperationRule
from mcpregistry.api.token_guesses import Guesses
from mcpregistry.database_errors import fault_facts, is_passing, make_unavailable_error
from mcpregistry.db import db_call
from mcpregistry.domain.addresses import mask_client_address
from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import Denied, SlipsnisseError
from mcpregistry.models import Agent, Token
from mcpregistry.services.access.tokens import find_token, hash_token

log = structlog.get_logger(__name__)

_TOUCH = timedelta(minutes=1)
_touch_again = 0.0  # when the use of tokens may be noted, by the steady clock
guesses = Guesses()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a person or an agent; exactly one of the two is set."""

    user: User | None = None
    agent: Agent | None = None

    @property
    def who(self) -> User | Agent:
        """Whom records are shown to (``visible_to``)."""
        who = self.agent or self.user
        assert who is not None
        return who

    @property
    def actor(self) -> str:
        """As the audit log names it."""
        return f"agent:{self.agent.slug}" if self.agent else f"user:{self.user}"

    @property
    def requester(self) -> Requester:
        """The person, as a call or run that they ask for knows them."""
        return Requester(self.user.pk, self.user.get_username()) if self.user else NOBODY


def principal(request: HttpRequest) -> Principal:
    """Who asked, as the gate of the operation has found; for operations only."""
    return cast(Principal, request.auth)  # type: ignore[attr-defined]


def actor(request: HttpRequest) -> str:
    """Who asked, as the audit log names it; for operations only."""
    return principal(request).actor


def person(request: HttpRequest) -> User | None:
    """The person who asked; None for an agent."""
    return principal(request).user


def rights(request: HttpRequest) -> Rights:
    """Return the rights of the caller for services. An agent has none."""
    user = person(request)
    return deny_all_rights if user is None else user.has_perm


class _Gate(AuthBase):
    """One way in, bound to one operation's rule. None means: not this way, try the next."""

    def __init__(self, rule: OperationRule, *, is_async: bool) -> None:
        super().__init__()
        self.rule = rule
        self.is_async = is_async

    def __call__(self, request: HttpRequest) -> Principal | Awaitable[Principal | None] | None:
        return (
            db_call(self._admit_or_refuse, request)
            if self.is_async
            else self._admit_or_refuse(request)
        )

    def _admit_or_refuse(self, request: HttpRequest) -> Principal | None:
        try:
            return self.admit(request)
        except Error as error:
            log.exception("api.cannot_authenticate", path=request.path)
            raise make_unavailable_error(error) from error

    def admit(self, request: HttpRequest) -> Principal | None:
        raise NotImplementedError


class Bearer(_Gate):
    """The way in with a bearer token; refuses a wrong one instead of trying the next way."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def admit(self, request: HttpRequest) -> Principal | None:
        """The token's principal, None without a token."""
        if "Authorization" not in request.headers:
            return None
        found = bearer(request)
        request.user = found.user or request.user  # the history of records names the person
        return check_allowed(found, self.rule)


class Session(_Gate):
    """The way in with a browser's session and its CSRF token."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME

    def admit(self, request: HttpRequest) -> Principal | None:
        """The signed-in person, None for nobody."""
        if not request.user.is_authenticated:
            return None
        if check_csrf(request) is not None:
            raise Denied(
                "The request was not sent by a page of this site.",
                remedy="Send the header X-CSRFToken, and an Origin header with the address of this site. Or use a bearer token.",
            )
        return check_allowed(Principal(user=request.user), self.rule)


class Nobody(AuthBase):
    """The default of operations that are not in the permission table: no credential is good
    enough."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    csrf = True  # tells the documentation page to send the CSRF token

    def __call__(self, request: HttpRequest) -> None:
        """Refuse."""


def bearer(request: HttpRequest) -> Principal:
    """The principal of the request's bearer token. Raises Unauthorized or TooManyRequests.

    A good token is good whoever else guesses beside it: behind a proxy, or on one machine, all have
    one address.
    """
    scheme, _, raw = request.headers.get("Authorization", "").partition(" ")
    token = find_token(raw.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise _wrong(
            mask_client_address(request.META.get("REMOTE_ADDR", "")), raw, time.monotonic()
        )
    _note_use(token)
    return Principal(user=token.user, agent=token.agent)


def _wrong(where: str, raw: str, now: float) -> SlipsnisseError:
    if wait := guesses.wait(where, now):
        return TooManyRequests(
            "Too many different invalid tokens were sent from this address.",
            remedy=f"Use a valid token: it is accepted at any time. Invalid tokens get this answer for the next {round(wait)} s.",
            wait=wait,
        )
    guesses.remember_failure(where, hash_token(raw), now)
    return make_unauthorized()


def _note_use(token: Token) -> None:
    """Note the use, once a minute: a write per request would cost more than the request.

    A database that refuses it is left alone for a minute. The request may only read, and need not
    wait for a lock.
    """
    global _touch_again  # noqa: PLW0603 - a time, written whole
    now = timezone.now()
    if time.monotonic() < _touch_again or (
        token.last_used_at is not None and token.last_used_at > now - _TOUCH
    ):
        return
    try:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    except Error as error:
        if not is_passing(error):
            raise
        _touch_again = time.monotonic() + _TOUCH.total_seconds()
        log.warning("api.token_use_not_recorded", **fault_facts(error))


def check_allowed(who: Principal, rule: OperationRule) -> Principal:
    """The same principal, if the rule lets it; raises ``Denied``."""
    if who.agent is not None:
        if not rule.agent:
            raise Denied(
                "You cannot use an agent's token for this request. With such a token, you can only call tools and list the agent's own records.",
                remedy="Use the token of a user.",
            )
        return who
    for name, permission in rule.permissions.items():
        if who.user is None or not who.user.has_perm(permission):
            raise Denied(
                f"You do not have the permission '{name}'.",
                remedy="Ask an administrator for a role that has this permission.",
            )
    return who


def is_still_allowed(request: HttpRequest, rule: OperationRule) -> bool:
    """Whether a request that was admitted would be admitted now. For answers that last; asks the
    database."""
    if "Authorization" in request.headers:
        token = find_token(request.headers["Authorization"].partition(" ")[2].strip())
        found = None if token is None else Principal(user=token.user, agent=token.agent)
    else:
        request.session = type(request.session)(request.session.session_key)  # to be read again
        person = get_user(request)
        found = Principal(user=person) if isinstance(person, User) else None
    if found is None:
        return False
    try:
        check_allowed(found, rule)
    except Denied:
        return False
    return True


def gates(rule: OperationRule, *, is_async: bool) -> list[Any]:
    """The ways into one operation, in the order in which they are tried."""
    return [Bearer(rule, is_async=is_async), Session(rule, is_async=is_async)]
