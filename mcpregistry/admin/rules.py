"""Policy rules and permits: what runs at once, what people are asked about, what is refused."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.bulk_actions import asks_first
from mcpregistry.admin.disable_confirmation import AsksWhenSwitchedOff
from mcpregistry.admin.fields import lines_widget
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.name_filters import by_name
from mcpregistry.admin.try_rule import MAY_SEE_CALLS, TryRulePage
from mcpregistry.admin.why_page import WhyPage
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.policy.conditions import ConditionInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Invocation, Permit, PolicyRule
from mcpregistry.queries import consequences
from mcpregistry.services.policy import permits, rules
from mcpregistry.services.policy.drafts import draft_rule_like_call

OUTCOME_COLOURS = {"allow": "success", "ask": "warning", "deny": "danger"}
FAILURES_SHOWN = 10


class PolicyRuleForm(RecordForm[PolicyRule]):
    """A rule's fields; ``clean`` asks the service, so that a refusal stands at its field."""

    class Meta:
        model = PolicyRule
        fields = "__all__"
        widgets = {
            "condition": lines_widget(4, ""),
        }
        help_texts = {
            "name": _("Shown to agents and approvers when the rule decides."),
            "enabled": _(
                "If disabled, the rule has no effect. You can still try it on past calls."
            ),
            "draft": _(
                "A draft has no effect until you enable it. After you save it, you see what it would change."
            ),
            "tool": _(
                "The tool that the rule is for. If empty, the rule applies to all tools of the selected server, "
                "or to the tools of all servers if no server is selected."
            ),
        }

    def clean(self) -> dict[str, Any]:
        """What the services would refuse is said at the field, and nothing typed is lost."""
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                rules.check_rule(_with(PolicyRule(pk=self.instance.pk), cleaned))
            except SlipsnisseError as error:
                broken = isinstance(error, ConditionInvalid)
                self.add_error("condition" if broken else None, str(error))
        return cleaned


def initial_of(rule: PolicyRule) -> dict[str, Any]:
    """An unsaved rule as the form of a new one begins with it."""
    names = ("name", "draft", "outcome", "priority", "condition")
    related = ("agent", "endpoint", "server", "tool")
    return {name: getattr(rule, name) for name in names} | {
        name: getattr(rule, f"{name}_id") for name in related
    }


def _with(rule: PolicyRule, values: dict[str, Any]) -> PolicyRule:
    for name, value in values.items():
        setattr(rule, name, value)
    return rule


def _make_live(request: HttpRequest, rule: PolicyRule) -> str:
    rules.make_live(rule=rule, actor=actor(request))
    return gettext(
        'The rule "{name}" is enabled. This takes effect in all processes within a second.'
    ).format(name=show_invisible_characters(rule.name, 200))


def _switch(request: HttpRequest, rule: PolicyRule, enabled: bool) -> str:
    rules.switch_rule(rule=rule, enabled=enabled, actor=actor(request))
    if enabled:
        text = gettext(
            'The rule "{name}" is enabled. This takes effect in all processes within a second.'
        )
    else:
        text = gettext(
            'The rule "{name}" is disabled. This takes effect in all processes within a second.'
        )
    return text.format(name=show_invisible_characters(rule.name, 200))


@admin.register(PolicyRule)
class PolicyRuleAdmin(AsksWhenSwitchedOff):
    """Policy rules, with pages to try one on past calls and to ask why a call would be decided
    so."""

    form = PolicyRuleForm
    list_display = ("name", "shown_outcome", "priority", "about", "shown_condition", "shown_use")
    list_filter = (
        "outcome",
        "enabled",
        "draft",
        by_name("server", nobody=_("All servers, or one tool")),
        by_name("agent", nobody=_("All agents")),
    )
    list_select_related = ("agent", "endpoint", "server", "tool__server", "approvers")
    search_fields = ("name", "condition", "note", "server__slug", "tool__name")
    autocomplete_fields = ("agent", "endpoint", "server", "tool")
    actions = ("enable_selected", "disable_selected")
    list_before_template = "admin/mcpregistry/rules.html"
    change_form_outer_before_template = "admin/mcpregistry/rule.html"
    fieldsets = (
        (None, {"fields": ("name", ("enabled", "draft"), ("outcome", "priority"))}),
        (
            _("Matching calls"),
            {"fields": (("server", "tool"), ("agent", "endpoint"), "expert", "condition")},
        ),
        (
            _("Approval"),
            {
                "fields": (
                    ("approvers", "quorum"),
                    ("decide_seconds", "execute_seconds"),
                    "refusal_seconds",
                    "requester_may_confirm",
                    "run_if_caller_left",
                )
            },
        ),
        (_("Note"), {"fields": ("note",)}),
    )
    verbs = (
        Verb(
            "try",
            _("Try on past calls"),
            "view_policyrule",
            "replay",
            _("Show which past calls the rule would have held, denied or allowed."),
            page="mcpregistry_policyrule_try_one",
        ),
        Verb(
            "live",
            _("Enable draft"),
            "change_policyrule",
            "play_arrow",
            _("Let the draft take effect."),
            _make_live,
            applies=lambda rule: rule.draft,
        ),
        Verb(
            "enable",
            _("Enable rule"),
            "change_policyrule",
            "play_arrow",
            _("Let the rule take effect."),
            lambda request, rule: _switch(request, rule, True),
            applies=lambda rule: not rule.enabled and not rule.draft,
        ),
        Verb(
            "disable",
            _("Disable rule"),
            "change_policyrule",
            "block",
            _("The rule has no effect until you enable it again."),
            lambda request, rule: _switch(request, rule, False),
            applies=lambda rule: rule.live,
            asks=lambda rule: consequences.switching_off([rule]),
        ),
    )

    def may(self, request: HttpRequest, verb: Verb, row: Any) -> bool:
        """Trying a rule shows arguments of calls."""
        return super().may(request, verb, row) and (
            verb.name != "try" or request.user.has_perm(MAY_SEE_CALLS)
        )

    def switching_off(self, row: PolicyRule) -> list[str]:
        return consequences.switching_off([row]) if row.live else []

    def get_urls(self) -> list[URLPattern]:
        secured = self.admin_site.admin_view
        return [
            path("try/", secured(TryRulePage(self)), name="mcpregistry_policyrule_try"),
            path("why/", secured(WhyPage(self)), name="mcpregistry_policyrule_why"),
            path("starter/", secured(self.starter_view), name="mcpregistry_policyrule_starter"),
            path(
                "<int:object_id>/try/",
                secured(TryRulePage(self)),
                name="mcpregistry_policyrule_try_one",
            ),
            *super().get_urls(),
        ]

    def starter_view(self, request: HttpRequest) -> HttpResponse:
        """POST adds the starter rules that are not there."""
        back = HttpResponseRedirect(reverse("admin:mcpregistry_policyrule_changelist"))
        if request.method != "POST" or not self.has_add_permission(request):
            return back
        try:
            added = rules.add_starter_rules(actor=actor(request))
        except SlipsnisseError as error:
            return self._redirect_with_error(request, error, back.url)
        self.message_user(
            request,
            ngettext(
                "{count} starter rule added.", "{count} starter rules added.", len(added)
            ).format(count=len(added)),
            messages.SUCCESS,
        )
        return back

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and db_field.name == "condition":
            field.widget.attrs |= {"rows": 4, "spellcheck": "false", "autocomplete": "off"}
        return field

    def save(
        self, request: HttpRequest, row: PolicyRule, form: forms.ModelForm[PolicyRule]
    ) -> None:
        rules.save_rule(rule=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: PolicyRule) -> None:
        rules.delete_rule(rule=row, actor=actor(request))

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Also what a call says (`?call=`): a draft about exactly such calls, which its author then
        widens."""
        call = Invocation.objects.filter(pk=request.GET.get("call", "")).first()
        if call is None or not request.user.has_perm("mcpregistry.view_invocation"):
            return dict(super().get_changeform_initial_data(request))
        return initial_of(draft_rule_like_call(call))

    def response_add(
        self, request: HttpRequest, obj: PolicyRule, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        return self._on_to_trying(request, obj) or super().response_add(
            request, obj, *args, **kwargs
        )

    def response_change(self, request: HttpRequest, obj: PolicyRule) -> HttpResponse:
        return self._on_to_trying(request, obj) or super().response_change(request, obj)

    def _on_to_trying(self, request: HttpRequest, rule: PolicyRule) -> HttpResponse | None:
        if not rule.draft or not request.user.has_perm(MAY_SEE_CALLS):
            return None
        return HttpResponseRedirect(reverse("admin:mcpregistry_policyrule_try_one", args=[rule.pk]))

    def overview(self, request: HttpRequest, row: PolicyRule) -> dict[str, Any]:
        return {"rule": row, "failures": rules.select_failures(row)[:FAILURES_SHOWN]}

    @display(
        description=_("state"),
        ordering="enabled",
        label={"enabled": "success", "draft": "info", "disabled": ""},
    )
    def shown_use(self, rule: PolicyRule) -> str:
        if rule.draft:
            return "draft"
        return "enabled" if rule.enabled else "disabled"

    @display(description=_("decision"), ordering="outcome", label=OUTCOME_COLOURS)
    def shown_outcome(self, rule: PolicyRule) -> str:
        return rule.outcome

    @display(description=_("scope"))
    def about(self, rule: PolicyRule) -> str:
        scope = [
            str(each)
            for each in (rule.tool or rule.server, rule.agent, rule.endpoint, rule.expert)
            if each
        ]
        return show_invisible_characters(", ".join(scope), 120) or gettext("every call")

    @display(description=_("condition"))
    def shown_condition(self, rule: PolicyRule) -> str:
        return show_invisible_characters(" ".join(rule.condition.split()), 90) or gettext("always")

    @admin.action(description=_("Enable the selected rules"), permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[PolicyRule]) -> None:
        self._run_on_each(request, queryset, enabled=True)

    @admin.action(description=_("Disable the selected rules"), permissions=["change"])
    @asks_first(consequences.switching_off, label=_("Disable rules"))
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[PolicyRule]) -> None:
        self._run_on_each(request, queryset, enabled=False)

    def _run_on_each(
        self, request: HttpRequest, queryset: QuerySet[PolicyRule], *, enabled: bool
    ) -> None:
        for rule in queryset:
            try:
                self.message_user(request, _switch(request, rule, enabled), messages.SUCCESS)
            except SlipsnisseError as error:
                self.message_user(
                    request, f"{show_invisible_characters(rule.name, 200)}: {error}", messages.ERROR
                )


class UsableFilter(admin.SimpleListFilter):
    """Permits that may still be used, or the others."""

    title = _("validity")
    parameter_name = "usable"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", gettext("Valid")), ("no", gettext("Ended"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Permit]) -> QuerySet[Permit]:
        usable = Q(revoked_at=None, expires_at__gt=timezone.now()) & ~Q(uses_left=0)
        if self.value() == "yes":
            return queryset.filter(usable)
        return queryset.exclude(usable) if self.value() == "no" else queryset


def _usable(permit: Permit) -> bool:
    return (
        permit.revoked_at is None and permit.expires_at > timezone.now() and permit.uses_left != 0
    )


def _revoke(request: HttpRequest, permit: Permit) -> str:
    permits.revoke(permit=permit, actor=actor(request))
    return gettext("The permit is revoked. The next call of this kind is held again.")


@admin.register(Permit)
class PermitAdmin(ReadOnlyAdmin):
    """Approvals given ahead. They come from the approval page; here they are seen and revoked."""

    list_display = (
        "agent",
        "shown_tool",
        "shown_pins",
        "shown_state",
        "expires_at",
        "uses_left",
        "created_by",
    )
    list_filter = (UsableFilter, by_name("agent"))
    list_select_related = ("agent", "tool__server", "created_by")
    search_fields = ("agent__slug", "tool__name", "tool__server__slug")
    fields = (
        "agent",
        "shown_tool",
        "shown_pins",
        "expires_at",
        "uses_left",
        "request",
        "created_by",
        "created_at",
        "revoked_at",
    )
    actions = ("revoke_selected",)
    verbs = (
        Verb(
            "revoke",
            _("Revoke permit"),
            "decide_approval",
            "block",
            _("Hold such calls again from now on."),
            _revoke,
            applies=_usable,
            style="danger",
            asks=consequences.revoking_permit,
        ),
    )

    @display(description=_("tool"), ordering="tool__name")
    def shown_tool(self, permit: Permit) -> str:
        return show_invisible_characters(str(permit.tool), 120)

    @display(description=_("arguments"))
    def shown_pins(self, permit: Permit) -> str:
        pins = ", ".join(
            f"{name} = {encode_canonical_json(value)}"
            for name, value in permit.argument_pins.items()
        )
        return show_invisible_characters(pins, 200) or gettext("any arguments")

    @display(description=_("state"), label={"valid": "success", "ended": ""})
    def shown_state(self, permit: Permit) -> str:
        return "valid" if _usable(permit) else "ended"

    @admin.action(description=_("Revoke the selected permits"), permissions=["decide"])
    @asks_first(consequences.revoking_permits, label=_("Revoke permits"))
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Permit]) -> None:
        count = queryset.count()
        for permit in queryset:
            permits.revoke(permit=permit, actor=actor(request))
        self.message_user(
            request,
            ngettext("{count} permit revoked.", "{count} permits revoked.", count).format(
                count=count
            ),
            messages.SUCCESS,
        )

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("mcpregistry.decide_approval")
