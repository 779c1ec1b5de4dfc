"""Channels, what became of their messages, and whose Slack account is whose."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import Count, Max, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.fields import SecretField, WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.notifications.events import TITLES, NotificationEvent
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Channel, Delivery, SlackIdentity
from mcpregistry.services.notifications import outbox

STATE_COLOURS = {"sent": "success", "waiting": "info", "failed": "warning", "given up": "danger"}
_EVENTS = [
    (event.value, TITLES[event])
    for event in NotificationEvent
    if event is not NotificationEvent.TEST
]


def _test(request: HttpRequest, channel: Channel) -> str:
    outbox.send_test(channel=channel, actor=actor(request))
    return gettext("A test message is being sent. The result appears under Deliveries.")


def _redeliver(request: HttpRequest, delivery: Delivery) -> str:
    outbox.redeliver(delivery=delivery, actor=actor(request))
    return gettext("The message is sent once more, with the same ID.")


class ChannelForm(RecordForm[Channel]):
    """A channel's fields; its secrets are written and never shown."""

    url = forms.CharField(
        label=_("URL"),
        required=False,
        max_length=2_000,
        widget=UnfoldAdminTextInputWidget(attrs={"class": "sn-code"}),
        help_text=_(
            "Address of the webhook. For Slack, leave this field empty to use https://slack.com/api. The "
            "address is stored encrypted."
        ),
    )
    signing = SecretField(
        label=_("Signing secret"),
        max_length=2_000,
        help_text=_(
            'For a webhook, create a secret with: echo "whsec_$(openssl rand -base64 32)". For Slack, copy '
            "the secret from the Basic Information page of the app. Without the secret, users cannot decide "
            "on calls in Slack. The secret is stored encrypted and never shown. Leave this field empty to "
            "keep the stored secret."
        ),
    )
    token = SecretField(
        label=_("Bot token"),
        max_length=2_000,
        help_text=_("For Slack: a token that begins with xoxb- and has the scope chat:write."),
    )
    addresses = WordsField(rows=2, placeholder="approvals@example.org", label=_("E-mail addresses"))
    allowed_networks = WordsField(
        rows=2,
        placeholder="10.1.0.0/16",
        help_text=_(
            "Private networks that may contain the receiver, one per line. If empty, only public addresses are allowed."
        ),
    )
    events = forms.MultipleChoiceField(
        choices=_EVENTS,
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text=_("If no event is selected, all events are sent."),
    )

    class Meta:
        model = Channel
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "url" in self.fields:
            self.fields["url"].initial = _load_url(self.instance)

    def access(self) -> dict[str, str]:
        """What the form says of the sealed ``access``; an empty secret keeps the stored one."""
        return {name: self.cleaned_data.get(name) or "" for name in ("url", "signing", "token")}


def _load_url(channel: Channel) -> str:
    try:
        return str(channel.access.get("url", ""))
    except ConfigInvalid:  # sealed with a key that is lost: it can be entered anew
        return ""


@admin.register(Channel)
class ChannelAdmin(RecordAdmin):
    """Channels; the page hides the fields of other kinds (``channel_form.js``)."""

    form = ChannelForm
    list_display = (
        "name",
        "kind",
        "enabled",
        "goes_to",
        "shown_filters",
        "open_count",
        "last_sent",
    )
    list_filter = ("kind", "enabled")
    search_fields = ("name",)
    autocomplete_fields = ("servers", "rules")
    fieldsets = (
        (None, {"fields": (("name", "kind"), "enabled")}),
        (_("Addresses"), {"fields": ("addresses",), "classes": ("sn-kind-email",)}),
        (
            _("Receiver"),
            {
                "fields": ("url", "signing", "allowed_networks"),
                "classes": ("sn-kind-webhook", "sn-kind-slack"),
            },
        ),
        (_("Slack"), {"fields": ("token", "room", "interactions"), "classes": ("sn-kind-slack",)}),
        (_("Events"), {"fields": ("events", "minimum_risk", "servers", "rules")}),
    )
    verbs = (
        Verb(
            "test",
            _("Send test message"),
            "change_channel",
            "send",
            _("Send one message to check whether it arrives."),
            _test,
            applies=lambda channel: channel.enabled,
        ),
    )

    class Media:
        js = ("mcpregistry/channel_form.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        is_open = Q(deliveries__next_at__isnull=False)
        counted = (
            super()
            .get_queryset(request)
            .annotate(
                owed=Count("deliveries", filter=is_open),
                sent=Max("deliveries__ended_at", filter=Q(deliveries__state="sent")),
            )
        )
        return counted.prefetch_related("servers", "rules")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Whoever may only look sees where it goes, not the address itself."""
        may_write = (
            self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        )
        if may_write:
            return self.fieldsets
        return ((None, {"fields": ("name", "kind", "enabled", "goes_to", "shown_filters")}),)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("goes_to", "shown_filters", "interactions")

    def save(self, request: HttpRequest, row: Channel, form: forms.ModelForm[Channel]) -> None:
        outbox.save_channel(
            channel=row,
            actor=actor(request),
            access=form.access(),  # type: ignore[attr-defined]
            servers=form.cleaned_data["servers"],
            rules=form.cleaned_data["rules"],
        )

    def remove(self, request: HttpRequest, row: Channel) -> None:
        outbox.delete_channel(channel=row, actor=actor(request))

    @display(description=_("destination"))
    def goes_to(self, channel: Channel) -> str:
        try:
            return show_invisible_characters(channel.origin, 200)
        except ConfigInvalid:
            return gettext("the address cannot be decrypted; enter it again")

    @display(description=_("request URL for Slack"))
    def interactions(self, channel: Channel) -> str:
        """For the app's Request URL under Interactivity."""
        if channel.kind != "slack" or not channel.pk:
            return gettext("shown here after a Slack channel is saved")
        return f"{settings.SITE_URL}{reverse('slack', args=[channel.uid])}"

    @display(description=_("filters"))
    def shown_filters(self, channel: Channel) -> str:
        parts = [", ".join(channel.events) or gettext("everything")]
        if channel.minimum_risk > 1:
            parts.append(
                gettext("{risk} risk and above").format(risk=channel.get_minimum_risk_display())
            )
        if servers := channel.servers.all():
            parts.append(
                gettext("servers {names}").format(
                    names=", ".join(server.slug for server in servers)
                )
            )
        if chosen := channel.rules.all():
            parts.append(
                gettext("rules {names}").format(names=", ".join(rule.name for rule in chosen))
            )
        return show_invisible_characters("; ".join(parts), 300)

    @display(description=_("pending deliveries"), ordering="owed")
    def open_count(self, channel: Any) -> int:
        return channel.owed

    @display(description=_("last delivery"), ordering="sent")
    def last_sent(self, channel: Any) -> Any:
        return channel.sent


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """The outbox: what each channel was or will be told, and how often it was tried."""

    list_display = (
        "created_at",
        "channel",
        "event",
        "shown_state",
        "attempts",
        "response_code",
        "error",
        "next_at",
    )
    list_filter = ("state", "event", "channel")
    list_select_related = ("channel",)
    search_fields = ("=uid", "=request__id", "channel__name", "last_error")
    search_help_text = _("ID of the message or request, channel, or error")
    fields = (
        "channel",
        "event",
        "shown_state",
        "uid",
        "created_at",
        "ended_at",
        "attempts",
        "next_at",
        "give_up_at",
        "response_code",
        "error",
        "shown_body",
    )
    verbs = (
        Verb(
            "redeliver",
            _("Send message again"),
            "change_channel",
            "replay",
            _("Send the message once more, with the same ID."),
            _redeliver,
            applies=lambda delivery: delivery.next_at is None,
        ),
    )
    actions = ("redeliver_selected",)

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, delivery: Delivery) -> str:
        return delivery.state

    @display(description=_("error"))
    def error(self, delivery: Delivery) -> str:
        return show_invisible_characters(delivery.last_error, 300)

    @display(description=_("message"))
    def shown_body(self, delivery: Delivery) -> str:
        text = show_invisible_characters(json.dumps(delivery.facts, indent=2, ensure_ascii=False))
        return format_html('<pre class="sn-pre sn-tall">{}</pre>', text)

    @admin.action(description=_("Send the selected messages again"), permissions=["redeliver"])
    def redeliver_selected(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        ended = list(queryset.filter(next_at=None))
        for delivery in ended:
            outbox.redeliver(delivery=delivery, actor=actor(request))
        self.message_user(
            request,
            ngettext(
                "{count} message is sent again.", "{count} messages are sent again.", len(ended)
            ).format(count=len(ended)),
        )

    def has_redeliver_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.change_channel")


@admin.register(SlackIdentity)
class SlackIdentityAdmin(RecordAdmin):
    """Which Slack account belongs to which person here."""

    list_display = ("user", "member", "team")
    list_select_related = ("user",)
    search_fields = ("user__username", "member", "team")
    autocomplete_fields = ("user",)
    fields = ("user", ("team", "member"))

    def save(
        self, request: HttpRequest, row: SlackIdentity, form: forms.ModelForm[SlackIdentity]
    ) -> None:
        outbox.save_slack_identity(identity=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: SlackIdentity) -> None:
        outbox.delete_slack_identity(identity=row, actor=actor(request))
