"""Named credentials and the site's own settings."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.fields import SecretField, WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.models import Configuration, Credential
from mcpregistry.services.access import credentials
from mcpregistry.services.access.scopes import MAY_SCOPE
from mcpregistry.services.configuration import site


class CredentialForm(RecordForm[Credential]):
    """A credential's fields; a new one needs its value, an old one keeps it when the field is left
    empty."""

    value = SecretField(
        max_length=20_000,
        help_text=_(
            "The secret itself. It is never shown again. Leave this field empty to keep the stored value."
        ),
    )

    scope = WordsField(
        rows=3,
        placeholder="server:github",
        help_text=_(
            "Servers and providers that can use the credential, one per line: server:NAME or provider:NAME. "
            "They do not have to exist yet. If empty, no server or provider can use it. Only administrators "
            "can change this."
        ),
    )

    class Meta:
        model = Credential
        fields = "__all__"
        help_texts = {
            "name": _(
                "Short name. Servers use the credential as ${cred:NAME} in their environment or headers."
            ),
            "description": _("What the credential gives access to, and where to get a new one."),
        }

    def clean_value(self) -> str | None:
        value = self.cleaned_data["value"]
        if value is None and self.instance.needs_value:
            raise forms.ValidationError(_("This credential has no value yet. Enter a value."))
        return value


@admin.register(Credential)
class CredentialAdmin(RecordAdmin):
    """Named secrets. Their values go in and never come out."""

    form = CredentialForm
    list_display = ("name", "description", "shown_scope", "shown_state", "updated_at")
    search_fields = ("name", "description")
    fields = ("name", "description", "value", "scope")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Whoever may only look sees whether there is a value, not a field for one."""
        may_write = (
            self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        )
        if not may_write:
            return ("name", "description", "shown_state", "shown_scope")
        return (
            self.fields
            if request.user.has_perm(MAY_SCOPE)
            else ("name", "description", "value", "shown_scope")
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("shown_state", "shown_scope")

    def save(
        self, request: HttpRequest, row: Credential, form: forms.ModelForm[Credential]
    ) -> None:
        scope = form.cleaned_data.get("scope") if request.user.has_perm(MAY_SCOPE) else None
        credentials.save_credential(
            credential=row, actor=actor(request), value=form.cleaned_data.get("value"), scope=scope
        )

    def remove(self, request: HttpRequest, row: Credential) -> None:
        credentials.delete_credential(credential=row, actor=actor(request))

    @display(description=_("scope"))
    def shown_scope(self, credential: Credential) -> str:
        return ", ".join(credential.scope) or gettext("none: an administrator must set the scope")

    @display(description=_("value"), label={"stored": "success", "missing": "danger"})
    def shown_state(self, credential: Credential) -> str:
        return "missing" if credential.needs_value else "stored"


class ConfigurationForm(RecordForm[Configuration]):
    """The site's settings; roles are chosen among those that there are."""

    second_factor_roles = forms.MultipleChoiceField(
        label=_("Roles that need a second factor"),
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        choices=lambda: [
            (name, name) for name in Group.objects.order_by("id").values_list("name", flat=True)
        ],
        help_text=_(
            "Users with these roles must set up a second factor after they log in, before they can open any "
            "other page."
        ),
    )

    class Meta:
        model = Configuration
        fields = "__all__"
        labels = {
            "keep_payloads_days": _("Keep arguments and results (days)"),
            "keep_calls_days": _("Keep records of calls (days)"),
            "keep_history_days": _("Keep earlier versions (days)"),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        said: bool | None = settings.MCP_AUTO_DISCOVERY
        if said is not None and "auto_discovery" in self.fields:
            field = self.fields["auto_discovery"]
            field.disabled = True  # the row keeps what it says, for when the variable goes away
            field.help_text = (
                gettext(
                    "The environment variable MCP_AUTO_DISCOVERY is true, so this setting is enabled, whatever you "
                    "choose here."
                )
                if said
                else gettext(
                    "The environment variable MCP_AUTO_DISCOVERY is false, so this setting is disabled, whatever you "
                    "choose here."
                )
            )


@admin.register(Configuration)
class ConfigurationAdmin(RecordAdmin):
    """The site's own settings: one row, so its list leads to its page."""

    form = ConfigurationForm
    fields = (
        "keep_payloads_days",
        "keep_calls_days",
        "keep_history_days",
        "sub_agent_enabled",
        "variable_scope",
        "second_factor_roles",
        "auto_discovery",
        "only_listed",
        "revision",
    )
    readonly_fields = ("revision",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = Configuration.load()
        return HttpResponseRedirect(
            reverse("admin:mcpregistry_configuration_change", args=[row.pk])
        )

    def save(
        self, request: HttpRequest, row: Configuration, form: forms.ModelForm[Configuration]
    ) -> None:
        site.save_configuration(configuration=row, actor=actor(request))
