"""The form of a server: its fields by transport, its secrets write-only, every refusal at its
field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminTextInputWidget

from mcpregistry.admin.fields import MASK, CommandField, NumbersField, SecretsField, WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import (
    check_command,
    check_env,
    check_networks,
    check_pairs,
    check_url,
)
from mcpregistry.domain.servers.sandbox import check_paths, check_ports
from mcpregistry.models import Server
from mcpregistry.models.server import Transport
from mcpregistry.services.servers.lifecycle import BOUNDS, SCHEMES
from mcpregistry.services.servers.sandbox import find_default_mode

# What belongs to one kind of transport only; the page hides the rest, and saving empties it.
LOCAL: dict[str, Callable[[], Any]] = {
    "command": list,
    "cwd": str,
    "env": dict,
    "sandbox": lambda: "off",
    "sandbox_network": lambda: "all",
    "sandbox_read": list,
    "sandbox_write": list,
    "sandbox_connect": list,
    "sandbox_listen": list,
    **dict.fromkeys(BOUNDS, int),
}
REMOTE: dict[str, Callable[[], Any]] = {"url": str, "headers": dict, "allowed_networks": list}


class ServerForm(RecordForm[Server]):
    """A server's fields. Those of the other kind of transport are emptied; sealed values are never
    shown."""

    command = CommandField(
        placeholder="uvx\nmcp-server-time",
        help_text=_(
            'Program and arguments, one per line, or a JSON list such as ["uvx", "mcp-server-time"]. A single'
            " pasted line is split at its spaces. Nothing is passed to a shell: quotes, spaces and $ have no "
            "special meaning."
        ),
    )
    env = SecretsField(
        label=_("Environment"),
        placeholder="API_KEY=${cred:name}",
        help_text=format_lazy(
            _(
                "One NAME=value per line. Stored values are never shown. Leave {mask} in a line to keep its "
                "value, or remove the line to delete the value. ${{VAR}} inserts a variable that "
                "SLIPSNISSE_PASS_ENV lists, and ${{cred:NAME}} inserts a stored credential."
            ),
            mask=MASK,
        ),
    )
    headers = SecretsField(
        label=_("Headers"),
        placeholder="Authorization: Bearer ${cred:name}",
        help_text=format_lazy(
            _(
                "One Name: value per line, sent with every request. Stored values are never shown. Leave {mask} "
                "in a line to keep its value."
            ),
            mask=MASK,
        ),
    )
    allowed_networks = WordsField(
        rows=2,
        placeholder="10.0.0.0/8",
        help_text=_(
            "Private networks in which this server can be reached, one per line. If empty, only public "
            "addresses are allowed."
        ),
    )

    sandbox_read = WordsField(
        rows=2,
        label=_("May read"),
        placeholder="/srv/docs",
        help_text=_(
            "Files and folders that the server can read, one absolute path per line. It can always read its "
            "own folder, its program and the libraries of the system."
        ),
    )
    sandbox_write = WordsField(
        rows=2,
        label=_("May write"),
        placeholder="/srv/docs/drafts",
        help_text=_(
            "Files and folders that the server can also change, one absolute path per line. It can always "
            "write to its own folder."
        ),
    )

    sandbox_connect = NumbersField(
        label=_("Ports to connect to"),
        placeholder="443 53",
        help_text=_(
            "TCP ports that the server may connect to, if the network is limited to ports. Add 53 to resolve "
            "names over TCP. UDP is always blocked."
        ),
    )
    sandbox_listen = NumbersField(
        label=_("Ports to listen on"),
        placeholder="8080",
        help_text=_("TCP ports that the server may listen on, if the network is limited to ports."),
    )

    class Meta:
        model = Server
        fields = "__all__"
        widgets = {
            "url": UnfoldAdminTextInputWidget(attrs={"placeholder": "https://example.com/mcp"})
        }
        help_texts = {
            "transport": _(
                "How this site starts or reaches the server. When you save, the fields of the other transports "
                "are cleared."
            ),
            "cwd": _(
                "Folder in which the program starts. If empty, a server in the sandbox starts in its own folder, "
                "and a server without a sandbox starts in the folder of this site."
            ),
            "sandbox": _(
                "Enforced: the server can read and write only the files listed here. Strict: in addition, it "
                "cannot see any other files or processes (requires bubblewrap). In both modes the server does not"
                " start if the sandbox is not available. Off: the server has the same rights as this site. If you"
                " choose a less strict mode, the launch must be confirmed again."
            ),
            "sandbox_network": _(
                "Ports: the server can use only the TCP ports listed below, and no UDP. None: the server has no "
                "network and cannot resolve names."
            ),
            "url": _(
                "Address of the server, without passwords or tokens. Put those into the headers."
            ),
            "description": _(
                "What the server is for. This text is shown on the pages of this site."
            ),
            "connect_mode": _("The time at which this site opens a connection to the server."),
            "protocol_mode": (
                _(
                    "The version of MCP to use. If a server supports both versions, the site may open a second "
                    "connection, which the server needs to send questions to older hosts. To prevent a second "
                    "connection, choose one version."
                )
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance._state.adding:
            self.initial.setdefault("sandbox", find_default_mode())
        for name in ("env", "headers"):
            if name in self.fields:
                stored = self._load_pairs(name)
                self.fields[name].stored = stored  # type: ignore[attr-defined]
                self.initial[name] = stored

    def _load_pairs(self, name: str) -> dict[str, str]:
        """The sealed pairs; none when they no longer open, so that they can be entered again."""
        try:
            return dict(getattr(self.instance, name))
        except ConfigInvalid:
            return {}

    def clean(self) -> dict[str, Any]:
        """Empty the fields of the other kind of transport."""
        data = super().clean() or {}
        others = REMOTE if data.get("transport") == Transport.STDIO else LOCAL
        for name, empty in others.items():
            data[name] = empty()
            self.errors.pop(name, None)  # nobody can mend a field that the page hides
        return data

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        for name in ("env", "headers"):
            # Sealing the same pairs anew would look like a change.
            if name in self.cleaned_data and self.cleaned_data[name] != self.initial.get(name):
                setattr(self.instance, name, self.cleaned_data[name])
        for name, check in self._checks().items():
            if name in self.fields and name not in self.errors:
                self._check(name, check)

    def _checks(self) -> dict[str, Callable[[Any], object]]:
        transport = self.cleaned_data.get("transport")
        if transport is None:
            return {}
        if transport == Transport.STDIO:
            return {
                "command": check_command,
                "env": check_env,
                "sandbox_read": check_paths,
                "sandbox_write": check_paths,
                "sandbox_connect": check_ports,
                "sandbox_listen": check_ports,
            }
        schemes = SCHEMES[Transport(transport)]
        return {
            "url": lambda url: check_url(url, schemes),
            "headers": lambda pairs: check_pairs(pairs, "Headers"),
            "allowed_networks": check_networks,
        }

    def _check(self, name: str, check: Callable[[Any], object]) -> None:
        try:
            check(self.cleaned_data.get(name))
        except ConfigInvalid as error:
            self.add_error(name, str(error))
