"""Log-ins with a password: counted before the password is looked at, slowed, and told to the audit
log.

An account is locked for one place, then for the network around it, so nobody locks a person out
from elsewhere. Beyond ``OF_ALL`` attempts from all networks, attempts at the account are not
refused but looked at one after another, one in ``PACE``: a right password still gets in, and the
number of guesses stays bounded. This does not concern networks from which that person has logged in
before. A browser in which that person has logged in before carries a mark, and counts as a place of
its own: whoever guesses beside it, also behind one proxy, does not lock it. A place from which many
accounts are tried is locked for all of them, such browsers excepted.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import sleep

import structlog
from django.contrib.auth.models import User
from django.core import signing
from django.db import connection, transaction
from django.db.models import F

from mcpregistry.db import read_database_now
from mcpregistry.domain.addresses import mask_client_network
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import LoginAttempts
from mcpregistry.services.records import audit

log = structlog.get_logger(__name__)

PERIOD = timedelta(minutes=15)  # in which attempts are counted, and for which a lock lasts
# attempts at one account from one place; wrong ones at all accounts from one place
OF_ACCOUNT = 5
OF_PLACE = 50
# attempts at one account from one network; from everywhere, until they are paced
OF_NETWORK = 20
OF_ALL = 40
PACE = timedelta(seconds=5)  # between two paced attempts at one account
# of a paced attempt; proxies give up on requests after a minute
LONGEST_WAIT = timedelta(seconds=50)
_WAITING = threading.BoundedSemaphore(32)  # attempts that wait in this process: each keeps a thread
# the cookie of a browser that a person has used, in seconds
MARK = "slipsnisse-known"
MARK_AGE = 180 * 24 * 3600
_SALT = "slipsnisse.known-browser"


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """Somebody tries to log in. ``place`` as in ``domain.addresses``; ``mark`` is the cookie MARK,
    if there is one."""

    account: str
    place: str
    mark: str = ""

    @property
    def known(self) -> str:
        """What is in the mark, if it was given to this account; else empty."""
        try:
            account, nonce = signing.loads(self.mark, salt=_SALT, max_age=MARK_AGE)
        except (signing.BadSignature, ValueError, TypeError):
            return ""
        return str(nonce) if account == hash_parts(self.account) else ""

    @property
    def _own(self) -> str:
        return hash_parts("account", self.account, self.known or self.place)

    @property
    def _counts(self) -> list[tuple[str, int]]:
        """What counts this attempt, the narrowest first, and how many each allows."""
        own = (self._own, OF_ACCOUNT)
        return [own] if self.known else [own, (self._around, OF_NETWORK)]

    @property
    def _around(self) -> str:
        return hash_parts("network", self.account, mask_client_network(self.place))

    @property
    def _everywhere(self) -> str:
        return hash_parts("everywhere", self.account)

    @property
    def _here(self) -> str:
        return hash_parts("place", self.place)

    def begin(self, now: datetime | None = None) -> datetime | None:
        """Count the attempt before the password is looked at. None: continue. Otherwise until when
        nothing is looked at.

        Waits up to ``LONGEST_WAIT`` where attempts at this account are paced.

        Counted first, or as many as like could try at once. What is locked at a narrower place is
        not counted further, so one place alone never locks an account elsewhere.
        """
        now = now or read_database_now()
        if not self.known and (until := _find_lock_end(self._here, now)):
            return until
        if until := next(
            filter(None, (_count_attempt(key, most, now) for key, most in self._counts)), None
        ):
            return until
        if (
            self.known
            or LoginAttempts.objects.filter(key=self._around, known_until__gt=now).exists()
        ):
            return None
        return self._wait_for_turn(now)

    def _wait_for_turn(self, now: datetime) -> datetime | None:
        """Wait for the turn of this attempt, if attempts at this account are paced. Otherwise until
        when it is refused."""
        turn, until = self._take_turn(now)
        if until is None and turn > now:
            until = _sleep_until(turn, now)
        if until is not None:  # it was not looked at, so it does not count
            counted = LoginAttempts.objects.filter(
                key__in=[key for key, _ in self._counts], count__gt=0
            )
            counted.update(count=F("count") - 1, locked_until=None)
        return until

    @transaction.atomic
    def _take_turn(self, now: datetime) -> tuple[datetime, datetime | None]:
        """When this attempt is looked at, or until when it is refused. Only one attempt of each
        network waits at a time, so that nobody who has few networks can fill the queue.
        """
        row = _lock_row(self._everywhere, now)
        if row.began_at < now - PERIOD:
            row.count = 0
            row.began_at = now
        row.count += 1
        turn = now
        until = None
        if row.count > OF_ALL:
            around = _lock_row(self._around, now)
            turn = max(now, row.next_at or now)
            if around.next_at is not None and around.next_at > now:
                until = around.next_at
            elif turn - now > LONGEST_WAIT:
                until = max(turn - LONGEST_WAIT, now + PACE)
            else:
                row.next_at = turn + PACE
                around.next_at = turn
                around.save(update_fields=["next_at"])
        row.save(update_fields=["count", "began_at", "next_at"])
        return turn, until

    def record_failure(self, now: datetime | None = None, *, step: str = "") -> datetime | None:
        """The password was wrong, or the code of the second ``step``. Until when this account is
        locked here, if it is so now."""
        now = now or read_database_now()
        with transaction.atomic():
            _count_attempt(self._here, OF_PLACE, now)
            keys = [key for key, _ in self._counts] + ([] if self.known else [self._here])
            until = next(filter(None, (_find_lock_end(key, now) for key in keys)), None)
            self._note("login.failed", **({"step": step} if step else {}))
            if until:
                self._note("login.locked", until=until.isoformat(timespec="seconds"))
        return until

    def record_success(self) -> None:
        """The password was right: wrong ones before it at this place are forgotten; those elsewhere
        and at other accounts are not, and this one does not count.
        """
        now = read_database_now()
        LoginAttempts.objects.filter(key=self._own).delete()
        wider = [self._around, self._everywhere] if not self.known else []
        LoginAttempts.objects.filter(key__in=wider, count__gt=0).update(count=F("count") - 1)
        with transaction.atomic():
            _lock_row(self._around, now)
            LoginAttempts.objects.filter(key=self._around).update(
                known_until=now + timedelta(seconds=MARK_AGE)
            )

    def _note(self, kind: str, **facts: str) -> None:
        who = describe_account(self.account)
        audit.record_entry(
            kind=kind, actor="nobody", subject=f"login:{who}", place=self.place, **facts
        )
        log.warning(kind, account=who, place=self.place, **facts)


def _sleep_until(turn: datetime, now: datetime) -> datetime | None:
    """Wait without keeping a connection of the database. Returns ``turn`` instead if too many
    attempts wait here already."""
    if not _WAITING.acquire(blocking=False):
        return turn
    try:
        if not connection.in_atomic_block:
            connection.close()
        sleep((turn - now).total_seconds())
    finally:
        _WAITING.release()
    return None


def make_known_mark(account: str) -> str:
    """The value of the cookie MARK for a browser in which this person has just logged in."""
    return signing.dumps([hash_parts(account), secrets.token_hex(8)], salt=_SALT)


def describe_account(account: str) -> str:
    """The name of an account that there is; of any other only its beginning, since it may be a
    password."""
    if User.objects.filter(username=account).exists():
        return show_invisible_characters(account, 150)
    return f"{show_invisible_characters(account[:2])}… ({len(account)} characters, no account)"


def _find_lock_end(key: str, now: datetime) -> datetime | None:
    row = LoginAttempts.objects.filter(key=key, locked_until__gt=now).first()
    return row.locked_until if row else None


@transaction.atomic
def _count_attempt(key: str, most: int, now: datetime) -> datetime | None:
    """One more. Returns until when the key is locked, if it was so before; the lock that this one
    brings is for the next."""
    row = _lock_row(key, now)
    if row.locked_until is not None and row.locked_until > now:
        return row.locked_until
    if row.locked_until is not None or row.began_at < now - PERIOD:
        row.count = 0
        row.began_at = now
        row.locked_until = None
    row.count += 1
    row.locked_until = now + PERIOD if row.count >= most else None
    row.save()
    return None


def _lock_row(key: str, now: datetime) -> LoginAttempts:
    """The key's row, locked; made if there is none, and again if a log-in beside this one deletes
    it in between."""
    while True:
        LoginAttempts.objects.bulk_create(
            [LoginAttempts(key=key, began_at=now)], ignore_conflicts=True
        )
        row = LoginAttempts.objects.select_for_update().filter(key=key).first()
        if row is not None:
            return row
