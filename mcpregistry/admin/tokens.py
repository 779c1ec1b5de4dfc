"""Tokens of agents and people: looked at, rotated, revoked; and everybody adds one of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.admin import TabularInline
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.bulk_actions import asks_first
from mcpregistry.admin.issue_token import own_token
from mcpregistry.admin.name_filters import by_name
from mcpregistry.admin.rotate_token import RotateTokenPage, may_be_shown
from mcpregistry.models import Token
from mcpregistry.queries import consequences
from mcpregistry.queries.overview import SOON, query_ending_soon
from mcpregistry.services.access import tokens

TOKEN_COLOURS = {
    "valid": "success",
    "expires soon": "warning",
    "expired": "info",
    "revoked": "danger",
}


def token_state(token: Token) -> str:
    """ "valid", "expires soon", "expired" or "revoked"; the keys of ``TOKEN_COLOURS``."""
    if token.revoked_at:
        return "revoked"
    left = token.expires_at - timezone.now() if token.expires_at else SOON
    if left <= timedelta():
        return "expired"
    return "expires soon" if left < SOON else "valid"


class ExpiryFilter(admin.SimpleListFilter):
    """Tokens and grants by whether they hold; "soon" are those that the overview counts."""

    title = _("validity")
    parameter_name = "validity"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("live", gettext("Valid")),
            ("soon", gettext("Expires within two weeks")),
            ("expired", gettext("Expired")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        value = self.value()
        if value == "soon":
            kind = "tokens" if queryset.model is Token else "grants"
            return queryset.filter(
                pk__in=query_ending_soon(now, cast(User, request.user))[kind].values("pk")
            )
        expired = Q(expires_at__lte=now)
        gone = expired | Q(revoked_at__isnull=False) if queryset.model is Token else expired
        return {"live": queryset.exclude(gone), "expired": queryset.filter(expired)}.get(
            value or "", queryset
        )


def _revoke(request: HttpRequest, token: Token) -> str:
    tokens.revoke_token(token=token, actor=actor(request))
    return gettext("The token {token}… stops working in all processes within a second.").format(
        token=token.prefix
    )


class TokenInline(TabularInline):
    """The agent's tokens, read-only; issuing and revoking are buttons."""

    model = Token
    fields = ("link", "name", "shown_state", "expires_at", "last_used_at")
    readonly_fields = fields
    extra = 0
    can_delete = False
    hide_title = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description=_("first characters"))
    def link(self, token: Token) -> str:
        page = reverse("admin:mcpregistry_token_change", args=[token.pk])
        return format_html('<a class="sn-link" href="{}">{}…</a>', page, token.prefix)

    @display(description=_("state"), label=TOKEN_COLOURS)
    def shown_state(self, token: Token) -> str:
        return token_state(token)


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    """Tokens of agents and people. Their text is nowhere; revoking is the only change. Everybody
    may add one of their own."""

    list_display = (
        "shown_prefix",
        "holder",
        "name",
        "shown_state",
        "expires_at",
        "last_used_at",
        "created_at",
    )
    list_filter = (ExpiryFilter, by_name("agent", nobody=_("No agent (token of a user)")))
    list_select_related = ("agent", "user")
    search_fields = ("prefix", "name", "agent__slug", "user__username")
    fields = (
        "shown_prefix",
        "holder",
        "name",
        "shown_state",
        "created_at",
        "expires_at",
        "last_used_at",
        "revoked_at",
    )
    verbs = (
        Verb(
            "rotate",
            _("Rotate token"),
            "add_token",
            "sync",
            _("Create a new token in its place. Both tokens work until the old one expires."),
            page="mcpregistry_token_rotate",
            applies=lambda token: token_state(token) in ("valid", "expires soon"),
            style="primary",
        ),
        Verb(
            "revoke",
            _("Revoke token"),
            "change_token",
            "block",
            _("Refuse the token from now on. This cannot be undone."),
            _revoke,
            applies=lambda token: token.revoked_at is None,
            style="danger",
            asks=consequences.revoking_token,
        ),
    )
    actions = ("revoke_selected",)

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return request.user.has_perm("mcpregistry.view_token")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        return own_token(request, self)

    def may(self, request: HttpRequest, verb: Verb, row: Any) -> bool:
        """Whoever has made a token of their own may revoke it as well."""
        return super().may(request, verb, row) or (
            verb.name == "revoke" and row.user_id == request.user.pk
        )

    def verbs_for(self, request: HttpRequest, row: Any) -> list[tuple[Verb, str]]:
        """The buttons of a token; another person's is not rotated, because the page shows the new
        one's text."""
        found = super().verbs_for(request, row)
        return [each for each in found if each[0].name != "rotate" or may_be_shown(row, request)]

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(RotateTokenPage(self))
        return [
            path("<path:object_id>/rotate/", page, name="mcpregistry_token_rotate"),
            *super().get_urls(),
        ]

    @display(description=_("first characters"), ordering="prefix")
    def shown_prefix(self, token: Token) -> str:
        return f"{token.prefix}…"

    @display(description=_("owner"))
    def holder(self, token: Token) -> str:
        return f"agent {token.agent}" if token.agent else f"{token.user}"

    @display(description=_("state"), label=TOKEN_COLOURS)
    def shown_state(self, token: Token) -> str:
        return token_state(token)

    @admin.action(description=_("Revoke the selected tokens"), permissions=["revoke"])
    @asks_first(consequences.revoking_tokens, label=_("Revoke tokens"))
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        for token in queryset.filter(revoked_at__isnull=True):
            self.message_user(request, _revoke(request, token))

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.change_token")
