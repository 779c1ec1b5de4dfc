"""The second step of logging in, and the page on which people set their second factor up.

Until a session has passed both, it is nobody's (``middleware``): so no face has to ask again, and
tokens are not concerned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import segno
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.contrib.auth import login as log_in
from django.contrib.auth import logout as log_out
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import SimpleLazyObject
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.debug import sensitive_post_parameters

from mcpregistry.db import read_database_now
from mcpregistry.domain.addresses import mask_client_address
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import SecondFactor
from mcpregistry.services.access import logins, second_factor
from mcpregistry.web.pages import add_security_headers, show

PASSED = "second_factor"  # in a session: the uid of the factor that was shown
# a password was right; for how long that stands
_PENDING = "second_factor_pending"
_PENDING_SECONDS = 600
WRONG = _(
    "This code is wrong or was already used. Wait for the next code, and check that the clock of your device is right."
)


class Backend(ModelBackend):
    """Django's own way to know people; a session's person comes with what is to be known of their
    second factor."""

    def get_user(self, user_id: Any) -> User | None:
        """The active account of a session, in one question to the database."""
        user = second_factor.select_accounts().filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """``request.user`` is the person only once the session has passed; ``request.half`` whoever
    gave the password."""
    if iscoroutinefunction(get_response):

        async def answer_later(request: HttpRequest) -> HttpResponse:
            _guard(request)
            return await cast(Awaitable[HttpResponse], get_response(request))

        return answer_later

    def answer(request: HttpRequest) -> HttpResponse:
        _guard(request)
        return cast(HttpResponse, get_response(request))

    return answer


def _guard(request: Any) -> None:
    half = request.user
    request.half = half
    request.user = SimpleLazyObject(lambda: _whole(request, half))


def _whole(request: HttpRequest, half: Any) -> Any:
    if not half.is_authenticated or second_factor.build_standing(half).is_passed_by(
        request.session.get(PASSED)
    ):
        return half
    return AnonymousUser()


# The second step


def ask_later(request: HttpRequest, user: User) -> bool:
    """The password of ``user`` is right: whether a code is to be asked for before they are logged
    in."""
    uid = second_factor.load_factor_standing(user.pk).uid
    if uid:
        at = read_database_now().timestamp()
        request.session[_PENDING] = [user.pk, uid, at, user.get_session_auth_hash()]
    return bool(uid)


def _find_pending_user(request: HttpRequest) -> User | None:
    """Whoever gave the password a moment ago, in this session, and has not changed it since."""
    key, uid, at, proof = request.session.get(_PENDING) or (0, "", 0, "")
    user = User.objects.filter(pk=key, is_active=True).first()
    fresh = read_database_now().timestamp() - at < _PENDING_SECONDS
    same = (
        user is not None
        and user.get_session_auth_hash() == proof
        and second_factor.load_factor_standing(user.pk).uid == uid
    )
    return user if fresh and same else None


@sensitive_post_parameters()
def code(request: HttpRequest) -> HttpResponse:
    """The page that asks for the code after the password."""
    user = _find_pending_user(request)
    onward = request.GET.get("next", "")
    if user is None:
        return HttpResponseRedirect(f"{reverse('admin:login')}?{request.GET.urlencode()}")
    if request.method != "POST":
        return _show_code_page(request)
    attempt = attempt_of(request, user.get_username())
    if until := attempt.begin():
        return _show_code_page(request, describe_lockout(until), until)
    if not second_factor.accept_code(user, request.POST.get("code", "")):
        until = attempt.record_failure(step="code")
        return _show_code_page(request, describe_lockout(until) if until else str(WRONG), until)
    attempt.record_success()
    uid = request.session.pop(_PENDING)[1]
    log_in(request, user)
    request.session[PASSED] = uid
    safe = url_has_allowed_host_and_scheme(
        onward, {request.get_host()}, require_https=request.is_secure()
    )
    return remember(HttpResponseRedirect(onward if safe else reverse("admin:index")), user)


def _show_code_page(request: HttpRequest, problem: str = "", until: Any = None) -> HttpResponse:
    page = show(
        request,
        "web/code.html",
        {"title": _("Second factor"), "problem": problem},
        429 if until else 200,
    )
    if until:
        page["Retry-After"] = str(seconds_until(until))
    return add_security_headers(page)


# What both steps share


def attempt_of(request: HttpRequest, account: str) -> logins.LoginAttempt:
    """Somebody's try at an account, from where it comes."""
    where = mask_client_address(request.META.get("REMOTE_ADDR", ""))
    return logins.LoginAttempt(account, where, request.COOKIES.get(logins.MARK, ""))


def seconds_until(until: Any) -> int:
    """Whole seconds, at least one."""
    return max(1, round((until - read_database_now()).total_seconds()))


def describe_lockout(until: Any) -> str:
    """The message to a person who has been wrong too often."""
    minutes = -(-seconds_until(until) // 60)
    text = ngettext(
        "There were too many wrong passwords or codes. Try again in %(minutes)s minute, at %(time)s UTC. "
        "Until then, no password or code is checked. You can still log in from another network, or in a "
        "browser that you have used before.",
        "There were too many wrong passwords or codes. Try again in %(minutes)s minutes, at %(time)s UTC."
        " Until then, no password or code is checked. You can still log in from another network, or in a "
        "browser that you have used before.",
        minutes,
    )
    return text % {"minutes": minutes, "time": f"{until:%H:%M}"}


def remember(response: HttpResponse, user: User) -> HttpResponse:
    """This browser is known from now on: strangers who guess elsewhere do not lock it."""
    response.set_cookie(
        logins.MARK,
        logins.make_known_mark(user.get_username()),
        max_age=logins.MARK_AGE,
        httponly=True,
        samesite="Lax",
        secure=settings.HTTPS,
        path="/admin/login/",
    )
    return response


# The set-up page


@sensitive_post_parameters()
def account(request: Any) -> HttpResponse:
    """One's own second factor: set up, renew the recovery codes, switch off."""
    user: Any = request.half
    if not user.is_authenticated:
        return HttpResponseRedirect(f"{reverse('admin:login')}?next={request.path}")
    standing = second_factor.load_factor_standing(user.pk)
    # set up elsewhere since this log-in
    if standing.uid and not standing.is_passed_by(request.session.get(PASSED)):
        log_out(request)
        return HttpResponseRedirect(f"{reverse('admin:login')}?next={request.path}")
    if request.method != "POST":
        return _show_account_page(request, user)
    do = request.POST.get("do", "")
    if do == "leave":
        log_out(request)
        return HttpResponseRedirect(reverse("admin:login"))
    return _change_factor(request, user, do)


def _change_factor(request: HttpRequest, user: User, do: str) -> HttpResponse:
    """Each change needs a code, and wrong ones count like wrong passwords."""
    attempt = attempt_of(request, user.get_username())
    if until := attempt.begin():
        return _show_account_page(request, user, problem=describe_lockout(until), status=429)
    try:
        codes = _apply_change(request, user, do, request.POST.get("code", ""))
    except SlipsnisseError as error:
        return _show_account_page(
            request, user, problem=f"{error.message} {error.remedy}", status=409
        )
    if codes is None:
        until = attempt.record_failure(step="code")
        return _show_account_page(
            request,
            user,
            problem=describe_lockout(until) if until else str(WRONG),
            status=429 if until else 200,
        )
    attempt.record_success()
    return _show_account_page(request, user, codes=codes, done=do)


def _apply_change(request: HttpRequest, user: User, do: str, typed: str) -> list[str] | None:
    """What was asked for; the new recovery codes, if there are any. None: the code is wrong."""
    if do == "enable":
        codes = second_factor.confirm_factor(user, typed)
        if codes is not None:
            request.session.cycle_key()
            request.session[PASSED] = second_factor.load_factor_standing(user.pk).uid
            request.user = user  # from this very page on
        return codes
    if do not in ("renew", "remove") or not second_factor.accept_code(user, typed):
        return None
    if do == "renew":
        return second_factor.renew_codes(user)
    second_factor.remove_factor(user)
    return []


def _show_account_page(
    request: HttpRequest,
    user: User,
    *,
    problem: str = "",
    codes: Any = (),
    done: str = "",
    status: int = 200,
) -> HttpResponse:
    standing = second_factor.load_factor_standing(user.pk)
    facts = {
        "title": _("Second factor"),
        "person": user,
        "standing": standing,
        "problem": problem,
        "codes": codes,
        "done": done,
    }
    if standing.uid:
        facts["left"] = SecondFactor.objects.get(user=user).recovery_codes.count()
    elif done != "remove":
        factor = second_factor.begin_setup(user)
        facts |= {
            "qr": segno.make(second_factor.build_otpauth_url(factor), error="m").svg_data_uri(
                scale=5, light="white", border=4
            ),
            "secret": " ".join(
                factor.secret[at : at + 4] for at in range(0, len(factor.secret), 4)
            ),
        }
    return add_security_headers(show(request, "web/second_factor.html", facts, status))
