"""The forms of setting a server up: what is pasted, the words that were read from it, who may use
it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelectMultiple
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from mcpregistry.admin.fields import CommandField, WordsField, lines_widget
from mcpregistry.admin.name_filters import FEW
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.pasted import MOST_CHARACTERS
from mcpregistry.domain.formats.pasted.secrets import Secret
from mcpregistry.domain.servers.launch import list_credential_names
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Grant, Server
from mcpregistry.models.confinement import SandboxMode
from mcpregistry.models.server import slug_validator
from mcpregistry.queries.setup_state import agents_of_hosts
from mcpregistry.services.exchange.rows import fill_row
from mcpregistry.services.servers.sandbox import find_default_mode, list_named_paths
from mcpregistry.services.servers.server_setup import ServerDraft

_PAIR = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*[=:]\s*(.*)")


class PasteForm(forms.Form):
    """Anything that a README says."""

    paste = forms.CharField(
        label=_("Installation instructions of the server"),
        max_length=MOST_CHARACTERS,
        strip=False,
        widget=lines_widget(8, "npx -y @modelcontextprotocol/server-everything"),
        help_text=_(
            "For example a command line, an address, claude mcp add …, a block of a host's file (JSON, TOML "
            "or YAML), the link of an “add to” badge, or the name of a registry entry. Nothing is saved or started yet."
        ),
    )


class PairsField(forms.CharField):
    """NAME=value or Name: value, one a line; for values that are no secrets, or name one. Cleans to
    ``dict[str, str]``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(widget=lines_widget(3, ""), required=False, strip=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return (
            "\n".join(f"{name}={text}" for name, text in value.items())
            if isinstance(value, dict)
            else value
        )

    def clean(self, value: Any) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for number, line in enumerate((super().clean(value) or "").splitlines(), 1):
            if line.strip():
                pair = _PAIR.fullmatch(line.strip())
                if pair is None or pair[1] in pairs:
                    raise forms.ValidationError(
                        gettext(
                            "Line {number} is not a NAME=value pair, or its name is used twice."
                        ).format(number=number)
                    )
                pairs[pair[1]] = pair[2]
        return pairs


class WordsForm(forms.Form):
    """What was read, to be read over: the words of the server, and a field for each secret that
    they name.

    ``may_keep``: the person may have secrets kept as credentials; else they are sealed with the
    server.
    """

    slug = forms.CharField(
        label=_("Short name"),
        max_length=63,
        validators=[slug_validator],
        widget=UnfoldAdminTextInputWidget,
        help_text=_(
            "Name of the server on this site. It is the first part of the names of its tools."
        ),
    )

    def __init__(
        self,
        entry: ServerEntry,
        secrets: Sequence[Secret],
        *args: Any,
        may_keep: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.entry = entry
        self.secrets = secrets
        self.may_keep = may_keep
        self.fields["slug"].initial = entry.key
        self._add_words(entry)
        for number, secret in enumerate(secrets):
            self._add_secret(number, secret)

    def _add_words(self, entry: ServerEntry) -> None:
        if entry.transport == "stdio":
            self.fields["command"] = CommandField(
                label=_("Command"),
                initial=[*entry.command],
                rows=max(3, min(len(entry.command), 12)),
                help_text=_("Program and arguments, one per line. They are not passed to a shell."),
            )
            if entry.cwd:
                self.fields["cwd"] = forms.CharField(
                    label=_("Working directory"),
                    initial=entry.cwd,
                    required=False,
                    widget=UnfoldAdminTextInputWidget,
                )
            if find_default_mode() != SandboxMode.OFF:
                self.fields["sandbox_read"] = WordsField(
                    label=_("May read"),
                    rows=2,
                    initial=list_named_paths(entry.command),
                    help_text=_(
                        "The server runs in a sandbox. It can read its own folder and these files and folders, one path "
                        "per line. It can write only to its own folder. To change more, edit the server later."
                    ),
                )
            self.fields["env"] = PairsField(
                label=_("Environment"),
                initial=dict(entry.env),
                help_text=_("One NAME=value per line."),
            )
            return
        self.fields["url"] = forms.CharField(
            label=_("Address"), initial=entry.url, widget=UnfoldAdminTextInputWidget
        )
        self.fields["headers"] = PairsField(
            label=_("Headers"),
            initial=dict(entry.headers),
            help_text=_("One Name: value per line."),
        )
        if network := private_network(entry.url):
            self.fields["network"] = forms.BooleanField(
                label=gettext("Allow the private address {network}").format(network=network),
                initial=True,
                required=False,
                widget=UnfoldBooleanSwitchWidget,
                help_text=_(
                    "If disabled, the site cannot reach the server, because its address is in a private network."
                ),
            )

    def _add_secret(self, number: int, secret: Secret) -> None:
        pasted = bool(secret.value)
        self.fields[f"secret-{number}"] = forms.CharField(
            label=show_invisible_characters(secret.label, 100),
            required=not pasted,
            max_length=20_000,
            strip=True,
            widget=UnfoldAdminPasswordWidget(
                attrs={
                    "autocomplete": "new-password",
                    "placeholder": gettext("as pasted") if pasted else "",
                }
            ),
            help_text=gettext("Used above as {reference}.").format(reference=secret.reference)
            + " "
            + (
                gettext("Leave it empty to keep the pasted value, which is never shown.")
                if pasted
                else gettext("The pasted text contains only a placeholder.")
            ),
        )
        if self.may_keep and secret.sealed_with_server:
            self.fields[f"keep-{number}"] = forms.BooleanField(
                label=gettext("Store {secret} as a credential").format(
                    secret=show_invisible_characters(secret.label, 100)
                ),
                initial=True,
                required=False,
                widget=UnfoldBooleanSwitchWidget,
                help_text=_(
                    "If enabled, the value is stored encrypted under a name, for this server only. If "
                    "disabled, it is stored encrypted with the server."
                ),
            )

    def draft(self) -> ServerDraft:
        """The server with what was read over, not saved."""
        given = self.cleaned_data
        server = Server(slug=given["slug"], sandbox=find_default_mode())
        fill_row(server, self.entry, source="pasted", position=0)
        for name in ("command", "cwd", "sandbox_read", "env", "url", "headers"):
            if name in given:
                setattr(server, name, given[name])
        network = private_network(server.url)
        if (
            given.get("network") and network and network == private_network(self.entry.url)
        ):  # the one that its label names
            server.allowed_networks = [network]
        values = {
            each.name: given[f"secret-{number}"] or each.value
            for number, each in enumerate(self.secrets)
        }
        kept = {
            each.name
            for number, each in enumerate(self.secrets)
            if given.get(f"keep-{number}", not each.sealed_with_server)
        }
        return ServerDraft(server, values, kept)

    def clean(self) -> dict[str, Any]:
        """A secret that no word names any more need not be entered."""
        data = super().clean() or {}
        texts = [*data.get("command", ()), data.get("cwd", ""), data.get("url", "")]
        texts += [*data.get("env", {}).values(), *data.get("headers", {}).values()]
        named = list_credential_names(texts)
        for number, secret in enumerate(self.secrets):
            if secret.name not in named and f"secret-{number}" in self.errors:
                del self.errors[f"secret-{number}"]
                data[f"secret-{number}"] = ""
        return data

    def refuse(self, error: SlipsnisseError) -> None:
        """Show why it was not saved, at the field that it is about."""
        field = "slug" if error.code == "ALREADY_EXISTS" else None
        self.add_error(field, str(error))


def private_network(url: str) -> str:
    """The network of an address that names a private one: its own address alone; empty for every
    other."""
    try:
        host = urlsplit(url).hostname or ""
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return ""
    return f"{address}/{address.max_prefixlen}" if address.is_private or address.is_loopback else ""


# What the pages of grants let people search for.
_GRANTED = {
    "agents": Grant._meta.get_field("agent"),
    "endpoints": Grant._meta.get_field("endpoint"),
}


class AccessForm(forms.Form):
    """Who may use the server, and where it is shown."""

    agents = forms.ModelMultipleChoiceField(
        queryset=Agent.objects.none(),
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        label=_("Agents that can use the server"),
        error_messages={
            "invalid_choice": _(
                "Choose only agents that are enabled and do not belong to expert tools."
            )
        },
    )
    new_agent = forms.CharField(
        required=False,
        max_length=63,
        validators=[slug_validator],
        label=_("New agent"),
        widget=UnfoldAdminTextInputWidget,
        help_text=_("Short name of the agent, for example claude-anna."),
    )
    everything = forms.BooleanField(
        required=False,
        label=_("Include prompts and resources"),
        widget=UnfoldBooleanSwitchWidget,
        help_text=_(
            "If disabled, the agents can use only tools. Later additions are included as soon as they are "
            "approved."
        ),
    )
    endpoints = forms.ModelMultipleChoiceField(
        queryset=Endpoint.objects.none(),
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        label=_("Endpoints that list the server"),
        help_text=_(
            "Select the endpoints that list the server. You can select only endpoints that show only what is "
            "granted to them. All other endpoints show the server automatically."
        ),
        error_messages={
            "invalid_choice": _(
                "Choose only enabled endpoints that show only what is granted to them."
            )
        },
    )

    def __init__(self, *args: Any, may_add: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices: dict[str, Any] = {
            "agents": agents_of_hosts(),
            "endpoints": Endpoint.objects.filter(enabled=True, scope=Endpoint.Scope.LISTED),
        }
        for name, rows in choices.items():
            count = len(rows.values_list("pk", flat=True)[: FEW + 1])
            if count > FEW:
                self.fields[name].widget = AutocompleteSelectMultiple(_GRANTED[name], admin.site)
            self.fields[name].queryset = rows  # type: ignore[attr-defined]
            if not count:
                del self.fields[name]
        if not may_add:
            del self.fields["new_agent"]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not data.get("agents") and not data.get("new_agent") and not self.errors:
            raise forms.ValidationError(
                _("Choose an agent. Without an agent, no host sees the server.")
            )
        if Agent.objects.filter(slug=data.get("new_agent") or "").exists():
            self.add_error(
                "new_agent",
                _(
                    "An agent with this name already exists. Select it above, or choose another name."
                ),
            )
        return data
