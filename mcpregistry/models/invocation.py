"""One tool call: what was asked, decided, sent and answered. The recorder writes these rows."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import cast

from django.db import models
from django.db.models import Q
from django.db.models.functions import Substr
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.domain.offer_kinds import OTHERS, TOOL
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.conversation import Conversation
from mcpregistry.models.energy import EnergyEntry
from mcpregistry.models.server import Server
from mcpregistry.models.visibility import VisibleQuerySet

UNASKED = ~Q(outcome="ask")
_EVER = datetime(2000, 1, 1, tzinfo=UTC)
_OPEN = ("pending", "ready", "dispatched")
_ODD = ("denied", "rejected", "expired", "cancelled", "void", "not_sent", "tool_error", "unknown")


def _words(states: tuple[str, ...]) -> str:
    return f"mcpregistry_invocation.state IN ({', '.join(map(repr, states))})"


def _begins(word: str) -> Q:
    """Exactly so: SQLite's LIKE takes capitals for small letters, and an order of letters is each
    database's own."""
    return Q(Exact(Substr("tool_name", 1, len(word)), word))


class Calls(VisibleQuerySet["Invocation"]):
    """Calls by what pages and clocks ask for."""

    own_by = "agent_slug"

    def with_energy(self) -> Calls:
        """Each with ``energy_consumed``: what it cost of its agent's pool by the books; None:
        nothing."""
        return self.annotate(energy_consumed=EnergyEntry.of_call())

    def open(self) -> models.QuerySet[Invocation]:
        """Those without an end, by their partial index: SQLite uses it only for its very condition,
        in literal words."""
        return self.extra(where=[_words(_OPEN)])  # noqa: S610 - our own words

    def in_state(self, state: str) -> Calls:
        """Those in this state. All but the successful, which are most and found soon, have a
        partial index each."""
        partial = [_words(each) for each in (_OPEN, _ODD) if state in each]
        if not partial and state != InvocationState.SUCCEEDED:
            return self.none()
        # most of all: the order of time leads to them, which SQLite takes for a bound of time alone
        if not partial:
            return self.filter(state=state, received_at__gte=_EVER)
        return cast(Calls, self.extra(where=partial).filter(state=state))  # noqa: S610 - our own words

    def of_request(self, request_id: str) -> Calls:
        """Those whose caller named this request id."""
        named = self.extra(where=["mcpregistry_invocation.request_id > ''"])
        return cast(Calls, named.filter(request_id=request_id))

    def filter_by_tool_name(self, name: str) -> Calls:
        """Those of tools that are called so, by their server or as they were shown.

        Looks first which of the two it is: a list in the order of time has an index for either, and
        none for both.
        """
        ways = [
            way
            for way in ("tool_name", "exposed_name")
            if Invocation.objects.filter(**{way: name}).exists()
        ]
        if not ways:
            return self.none()
        return self.filter(reduce(or_, (Q(**{way: name}) for way in ways)))

    def of_kind(self, kind: str) -> Calls:
        """Those of tools, or of prompts and the like, whose names are spelled with their kind."""
        if kind != TOOL:
            return self.filter(_begins(f"{kind}:"))
        return self.exclude(reduce(or_, (_begins(f"{other}:") for other in OTHERS)))

    def without_known_end(self) -> models.QuerySet[Invocation]:
        """Those that are out, and those of which the clock only supposed that nobody will end
        them."""
        return self.filter(
            Q(state=InvocationState.DISPATCHED)
            | Q(state=InvocationState.UNKNOWN, error_code=SUPPOSED)
        )

    def of_servers_alone(self) -> models.QuerySet[Invocation]:
        """Calls whose duration says something about their server.

        Left out are calls that a person was asked about, and calls of expert tools, whose inner
        calls may have waited for one.
        """
        return self.filter(UNASKED, server_slug__in=Server.objects.values("slug"))


class Invocation(models.Model):
    """One call. Names are copied, not referenced: the record outlives the server, tool and agent it
    is about.

    Payload columns are JSON text with every odd value escaped (PostgreSQL refuses NUL and lone
    surrogates in JSON columns); retention empties them before it deletes the row.
    """

    id = models.CharField(primary_key=True, max_length=32)
    state = models.CharField(
        max_length=12, choices=[(s.value, s.value.replace("_", " ")) for s in InvocationState]
    )
    agent_slug = models.CharField(_("agent"), max_length=63)
    endpoint_slug = models.CharField(_("endpoint"), max_length=63, blank=True)
    server_slug = models.CharField(_("server"), max_length=63, blank=True)
    server_revision = models.IntegerField(default=0)
    tool_name = models.CharField(_("tool"), max_length=500)
    exposed_name = models.CharField(_("called as"), max_length=500)
    definition_hash = models.CharField(max_length=64, blank=True)
    binding = models.CharField(
        max_length=64, blank=True, help_text=_("SHA-256 of everything that the decision was about.")
    )
    arguments = models.TextField(blank=True)
    outcome = models.CharField(
        _("decision"),
        max_length=5,
        blank=True,
        help_text=_("Decision of the rules: allow, ask or deny."),
    )
    reason = models.TextField(
        blank=True, help_text=_("Reason for the decision, or for the end of the call.")
    )
    error_code = models.CharField(max_length=40, blank=True)
    warning = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_("Problem with a result that was passed on anyway."),
    )
    result = models.TextField(blank=True)
    result_bytes = models.BigIntegerField(default=0)
    origin = models.CharField(
        max_length=10, help_text=_("How the call arrived: stdio, http, rest, run, test or trial.")
    )
    host_name = models.CharField(_("host"), max_length=100, blank=True)
    requester = models.CharField(
        max_length=150,
        blank=True,
        default="",
        db_default="",
        help_text=_("The user who requested the call, if known. They cannot approve it."),
    )
    requester_id = models.BigIntegerField(
        null=True, blank=True, help_text=_("ID of the requester's account.")
    )
    request_id = models.CharField(max_length=100, blank=True)
    # Without a constraint: the record outlives the conversation, and what was recorded of a call
    # does not change.
    conversation = models.ForeignKey(
        Conversation,
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="calls",
        help_text=_("The conversation that the call belongs to, if its caller named one."),
    )
    writer = models.CharField(max_length=64, help_text=_("The process that recorded the call."))
    received_at = models.DateTimeField()
    dispatched_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    fence = models.IntegerField(default=0)
    duration_ms = models.FloatField(
        null=True,
        blank=True,
        help_text=_("Milliseconds from when the call is received until it ends."),
    )

    objects = Calls.as_manager()

    class Meta:
        verbose_name = _("call")
        ordering = ["-received_at", "-id"]
        indexes = [
            models.Index(fields=["-received_at", "-id"], name="call_by_time"),
            models.Index(fields=["server_slug", "-received_at"], name="call_by_server"),
            # One for each filter that lists offer: a value that is rare, or of nobody, must not be
            # looked for in all calls.
            *(
                models.Index(fields=[column, "-received_at", "-id"], name=name)
                for column, name in (
                    ("agent_slug", "call_by_agent"),
                    ("endpoint_slug", "call_by_endpoint"),
                    ("origin", "call_by_origin"),
                    ("tool_name", "call_by_tool"),
                    ("exposed_name", "call_by_exposed"),
                )
            ),
            models.Index(
                fields=["state", "-received_at", "-id"],
                name="call_odd",
                condition=Q(state__in=_ODD),
            ),
            models.Index(
                fields=["request_id"], name="call_by_request", condition=Q(request_id__gt="")
            ),
            models.Index(  # calls that name none, which are most, pay nothing for it
                fields=["conversation", "-received_at"],
                name="call_by_conversation",
                condition=Q(conversation__isnull=False),
            ),
            models.Index(fields=["lease_until"], name="call_open", condition=Q(state__in=_OPEN)),
        ]

    def __str__(self) -> str:
        return f"{show_invisible_characters(self.exposed_name)} {self.state}"
