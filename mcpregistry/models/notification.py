"""Telling people elsewhere that something waits or was decided: channels, and the outbox of what
they are owed."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.notifications.events import ChannelKind, NotificationEvent
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.policy import PolicyRule
from mcpregistry.models.sealing import Sealed
from mcpregistry.models.server import Server
from mcpregistry.models.tracked import TrackedModel


class Channel(TrackedModel):
    """One place that is told. Empty filters let everything through.

    ``access`` holds what opens the place: ``url``, and ``signing`` (webhook and Slack) or ``token``
    (Slack's bot token). The address is sealed too, because many receivers put a key into it.
    """

    KINDS = [
        (ChannelKind.WEBHOOK.value, "Webhook"),
        (ChannelKind.EMAIL.value, _("E-mail")),
        (ChannelKind.SLACK.value, "Slack"),
    ]
    RISKS = [(1, _("low: every call")), (2, _("medium")), (3, _("high"))]

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=10, choices=KINDS, default=ChannelKind.WEBHOOK.value)
    enabled = models.BooleanField(
        default=True, help_text=_("If disabled, nothing is sent and waiting messages are dropped.")
    )
    sealed_access = models.TextField(blank=True, editable=False)
    access = Sealed("sealed_access", dict)
    addresses = models.JSONField(
        default=list, blank=True, help_text=_("E-mail addresses of the recipients.")
    )
    room = models.CharField(
        _("Slack channel"),
        max_length=100,
        blank=True,
        help_text=_("ID of the Slack channel, for example C0123456789."),
    )
    allowed_networks = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            'Private networks that may contain the receiver, for example ["10.1.0.0/16"]. If empty, only '
            "public addresses are allowed."
        ),
    )
    events = models.JSONField(
        default=list,
        blank=True,
        help_text=_("Events that are sent. If empty, all events are sent."),
    )
    servers = models.ManyToManyField(
        Server,
        blank=True,
        related_name="+",
        help_text=_(
            "Only events of these servers are sent. If empty, events of all servers are sent."
        ),
    )
    rules = models.ManyToManyField(
        PolicyRule,
        blank=True,
        related_name="+",
        help_text=_(
            "If set, only notifications about calls that these rules hold are sent. If empty, notifications "
            "about all held calls are sent."
        ),
    )
    minimum_risk = models.PositiveSmallIntegerField(_("minimum risk"), choices=RISKS, default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    history = HistoricalRecords(excluded_fields=["updated_at"], m2m_fields=[servers, rules])

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return show_invisible_characters(self.name)

    @property
    def origin(self) -> str:
        """Where it goes, as far as everybody may know: scheme, host and port."""
        if self.kind == ChannelKind.EMAIL:
            return ", ".join(self.addresses)
        parts = urlsplit(str(self.access.get("url", "")))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    """Deliveries by what the sender has to do about them."""

    def open(self) -> DeliveryQuerySet:
        """Not yet arrived, and still tried."""
        return self.filter(state__in=[Delivery.State.WAITING, Delivery.State.FAILED])

    def due(self, now: object) -> DeliveryQuerySet:
        """To be sent now; what concerns one request goes to a channel in the order in which it
        happened."""
        earlier = Delivery.objects.open().filter(
            channel=models.OuterRef("channel"),
            request=models.OuterRef("request"),
            id__lt=models.OuterRef("id"),
        )
        return self.open().filter(~models.Exists(earlier), next_at__lte=now)


class Delivery(models.Model):
    """One message that one channel is owed, written in the transaction of what it tells: the
    outbox.

    It arrives at least once: a repeated message carries the same ``uid``. Whoever sends claims it
    by raising ``attempts`` and moving ``next_at`` ahead; when that process dies, the row falls due
    again.
    """

    class State(models.TextChoices):
        """How far the delivery has come."""

        WAITING = "waiting", _("waiting")
        FAILED = "failed", _("failed, will be retried")
        SENT = "sent", _("sent")
        GIVEN_UP = "given up", _("abandoned")

    EVENTS = [(event.value, event.value) for event in NotificationEvent]

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=12, choices=EVENTS)
    request = models.ForeignKey(
        ApprovalRequest, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    key = models.CharField(
        max_length=100,
        editable=False,
        help_text=_("Identifies what the message is about, so that a channel gets it only once."),
    )
    body = models.TextField(
        help_text=_("Content of the message as JSON. Secrets in arguments are masked.")
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    next_at = models.DateTimeField(null=True, blank=True, help_text=_("Time of the next attempt."))
    give_up_at = models.DateTimeField(
        help_text=_("After this time, a failed delivery is not tried again.")
    )
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the message was delivered or abandoned.")
    )
    response_code = models.PositiveIntegerField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    message_ref = models.CharField(
        max_length=200, blank=True, help_text=_("Channel and timestamp of the message in Slack.")
    )

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = _("deliveries")
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["channel", "key"], name="told_once")]
        indexes = [
            # empty once it needs no more tries
            models.Index(fields=["next_at"], name="delivery_due"),
            models.Index(fields=["channel", "request"], name="delivery_order"),
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel}"

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.body)


class SlackIdentity(TrackedModel):
    """Whose Slack account this is: what somebody does there counts as done by that person here."""

    team = models.CharField(
        _("Slack workspace"),
        max_length=30,
        help_text=_("ID of the Slack workspace, for example T0123456789."),
    )
    member = models.CharField(
        _("member ID"),
        max_length=30,
        help_text=_("ID of the user in Slack, for example U0123456789."),
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="slack_identities"
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name = _("Slack member")
        verbose_name_plural = _("Slack members")
        ordering = ["user__username", "team"]
        constraints = [
            models.UniqueConstraint(fields=["team", "member"], name="one_person_per_slack_account")
        ]

    def __str__(self) -> str:
        return f"{self.user} ({self.member})"

    def clean(self) -> None:
        """Refuse what is no id of Slack: nothing that it sends would ever be this person's."""
        for name in ("team", "member"):
            if not (value := getattr(self, name)).isascii() or not value.isalnum():
                raise ValidationError(
                    {
                        name: _(
                            "Use the ID that Slack shows: letters and digits, for example T0123456789."
                        )
                    }
                )
