"""Downstream MCP servers: how to start or reach them, and what we saw of them."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.confinement import Confined
from mcpregistry.models.sealing import Sealed
from mcpregistry.models.signing import compute_keyed_digest

# that a server's limits can be set to
MOST_TOOLS = 10_000
MOST_DEFINITION_BYTES = 16 * 1024 * 1024

slug_validator = RegexValidator(
    # Two underscores separate server and tool in exposed names, so a slug may not hold them.
    r"^(?!.*__)[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z",
    _(
        "Use 1 to 63 letters, digits, dots, dashes or single underscores, starting with a letter or digit."
    ),
)


class Transport(models.TextChoices):
    """How a server is reached."""

    STDIO = "stdio", _("Local process (stdio)")
    HTTP = "http", "Streamable HTTP"
    SSE = "sse", _("HTTP with SSE (older)")
    WEBSOCKET = "websocket", "WebSocket"


class Lifecycle(models.TextChoices):
    """Draft until its launch was confirmed, then active; disabled by a person."""

    DRAFT = "draft", _("Draft")
    ACTIVE = "active", _("Active")
    DISABLED = "disabled", _("Disabled")


class ConnectMode(models.TextChoices):
    """When a process connects to the server."""

    LAZY = "lazy", _("At the first call")
    EAGER = "eager", _("At start-up")
    MANUAL = "manual", _("Only with “Connect server”")


class Resend(models.TextChoices):
    """Whether a call may be sent a second time after a failure."""

    NEVER = "never", _("Never")
    SAFE = "safe", _("Only if nothing was sent")
    ALWAYS = "always", _("Also after sending, for tools marked idempotent")


class SharedBy(models.TextChoices):
    """Who uses one connection to the server, and with it one process and what it remembers."""

    EVERYBODY = "everybody", _("All calls")
    AGENT = "agent", _("The calls of one agent")
    SESSION = "session", _("The calls of one host session")


# What a server is allowed unless people agree to more.
MESSAGE_BYTES = 4 * 1024 * 1024
TOOLS = 2000
SESSIONS = 20
DEFINITION_BYTES = 1024 * 1024


class ProtocolMode(models.TextChoices):
    """Which era of MCP is spoken: fixed, or found out when connecting."""

    AUTO = "auto", _("Detect automatically")
    LEGACY = "legacy", _("2025-11-25 and earlier")
    MODERN = "modern", "2026-07-28"


class ServerQuerySet(models.QuerySet["Server"]):
    """Servers by what clocks and the snapshot ask for."""

    def active(self) -> ServerQuerySet:
        """Confirmed and not disabled."""
        return self.filter(lifecycle=Lifecycle.ACTIVE)

    def due_for_check(self, now: object) -> ServerQuerySet:
        """Active servers whose health check is due at ``now`` and not running.

        Servers of project files are not checked: a worker does not have the environment of their
        host.
        """
        checked = self.active().filter(
            Q(check_until=None) | Q(check_until__lt=now), next_check_at__lte=now
        )
        return checked.filter(only_on="")


class Server(Confined):
    """One downstream MCP server. It is inert until a person has confirmed how it is launched."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    slug = models.CharField(
        _("short name"),
        max_length=63,
        unique=True,
        validators=[slug_validator],
        help_text=_("Short name of the server. Hosts see it before the name of each tool."),
    )
    name = models.CharField(
        max_length=200,
        blank=True,
        help_text=_("Name on the pages of this site. If empty, the short name is shown."),
    )
    description = models.TextField(blank=True)
    transport = models.CharField(max_length=10, choices=Transport.choices, default=Transport.STDIO)

    command = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            'Program and arguments as a list, for example ["uvx", "mcp-server-time"]. They are not passed to '
            "a shell."
        ),
    )
    cwd = models.CharField(_("working directory"), max_length=1000, blank=True)
    sealed_env = models.TextField(blank=True, editable=False)
    env = Sealed("sealed_env", dict)
    url = models.CharField("URL", max_length=2000, blank=True)
    sealed_headers = models.TextField(blank=True, editable=False)
    headers = Sealed("sealed_headers", dict)
    allowed_networks = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            'Private networks in which this server can be reached, for example ["127.0.0.1/32"]. If empty, '
            "only public addresses are allowed."
        ),
    )

    connect_mode = models.CharField(
        _("connection"), max_length=10, choices=ConnectMode.choices, default=ConnectMode.LAZY
    )
    resend = models.CharField(
        max_length=10,
        choices=Resend.choices,
        default=Resend.SAFE,
        help_text=_("When a failed call can be sent again automatically."),
    )
    protocol_mode = models.CharField(
        _("protocol"), max_length=10, choices=ProtocolMode.choices, default=ProtocolMode.AUTO
    )
    connect_timeout = models.FloatField(
        default=30.0,
        validators=[MinValueValidator(0.1), MaxValueValidator(600)],
        help_text=_("Seconds to wait for a connection. Default: 30."),
    )
    request_timeout = models.FloatField(
        default=30.0,
        validators=[MinValueValidator(0), MaxValueValidator(86400)],
        help_text=_("Seconds until a call times out. Default: 30. Set to 0 for no timeout."),
    )
    idle_timeout = models.FloatField(
        default=600.0,
        validators=[MinValueValidator(1)],
        help_text=_("Seconds without a call after which the connection is closed. Default: 600."),
    )
    max_message_bytes = models.PositiveIntegerField(
        default=MESSAGE_BYTES,
        validators=[MinValueValidator(1024)],
        help_text=_("Maximum size of a message in bytes. Default: 4,194,304 (4 MiB)."),
    )
    max_concurrency = models.PositiveIntegerField(
        default=8,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text=_("Maximum number of calls at the same time. Further calls wait. Default: 8."),
    )
    max_tools = models.PositiveIntegerField(
        _("tool limit"),
        default=TOOLS,
        db_default=TOOLS,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_TOOLS)],
        help_text=_(
            "Maximum number of tools. If the server offers more, only the first ones (alphabetically) are "
            "used. Default: 2,000."
        ),
    )
    max_definition_bytes = models.PositiveIntegerField(
        _("size limit of definitions"),
        default=DEFINITION_BYTES,
        db_default=DEFINITION_BYTES,
        validators=[MinValueValidator(1024), MaxValueValidator(MOST_DEFINITION_BYTES)],
        help_text=_(
            "Maximum size in bytes of all definitions of the server together (tools, prompts, resources). If "
            "they are larger, only the first ones (alphabetically) are used. The server's page and its tests "
            "list what is left out. Default: 1,048,576 (1 MiB)."
        ),
    )
    shared_by = models.CharField(
        max_length=10,
        choices=SharedBy.choices,
        default=SharedBy.EVERYBODY,
        db_default=SharedBy.EVERYBODY,
        help_text=_(
            "Which calls use the same connection and process. Choose one agent or one host session for servers "
            "that keep state, such as browsers, shells and databases."
        ),
    )
    max_sessions = models.PositiveIntegerField(
        _("connection limit"),
        default=SESSIONS,
        db_default=SESSIONS,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text=_(
            "Maximum number of connections in each process of this site, if agents or host sessions have "
            "connections of their own. If the limit is exceeded, the connection that has been idle the "
            "longest is closed. Default: 20."
        ),
    )
    asks_elicitation = models.BooleanField(
        _("may ask the user"),
        default=True,
        db_default=True,
        help_text=_(
            "The server may ask the user of the calling host to fill in a form or to open a page (elicitation)."
        ),
    )
    asks_sampling = models.BooleanField(
        _("may ask the model"),
        default=True,
        db_default=True,
        help_text=_(
            "The server may ask the model of the calling host (sampling). The host pays for the answers."
        ),
    )
    sampling_expert = models.CharField(
        _("expert tool for sampling"),
        max_length=60,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Name of an expert tool whose model answers instead of the host's model. The calling agent pays for the "
            "answers. The expert tool must take one text argument and use no tools. If empty, the host's model answers."
        ),
    )
    asks_roots = models.BooleanField(
        _("may ask for folders"),
        default=False,
        db_default=False,
        help_text=_(
            "The server may read the list of folders that the calling host works in (roots). Some servers then "
            "use these folders instead of the ones in their command line."
        ),
    )
    check_interval = models.PositiveIntegerField(
        default=300,
        validators=[MinValueValidator(10)],
        help_text=_("Seconds between two health checks. Default: 300."),
    )

    mcp_apps = models.BooleanField(
        "MCP Apps",
        default=True,
        db_default=True,
        help_text=_(
            "Tools may show pages of the server (ui:// resources) in hosts. If disabled, these pages are "
            "removed from results."
        ),
    )
    trial_hours = models.PositiveIntegerField(
        _("hours between trials"),
        default=0,
        db_default=0,
        validators=[MaxValueValidator(8760)],
        help_text=_(
            "Hours between two trials in the sandbox. A trial calls the tools that claim to be read-only. An "
            "additional trial runs when the server reports a different version. Set to 0 to disable."
        ),
    )

    lifecycle = models.CharField(
        max_length=10, choices=Lifecycle.choices, default=Lifecycle.DRAFT, editable=False
    )
    revision = models.PositiveIntegerField(
        default=1, editable=False, help_text=_("Increases when the launch or the limits change.")
    )
    launch_by = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("Users who changed the launch since its confirmation."),
    )
    confirmed_launch = models.CharField(max_length=64, blank=True, editable=False)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        editable=False,
    )
    confirmed_at = models.DateTimeField(null=True, blank=True, editable=False)

    # What was seen. Written by checks and connections, never by hand, and no part of the revision.
    last_ok_at = models.DateTimeField(_("last answered at"), null=True, blank=True, editable=False)
    last_error = models.TextField(blank=True, editable=False)
    last_error_code = models.CharField(max_length=40, blank=True, editable=False)
    last_error_at = models.DateTimeField(null=True, blank=True, editable=False)
    consecutive_failures = models.PositiveIntegerField(default=0, editable=False)
    unavailable_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("Set after repeated failures, cleared by the first success."),
    )
    next_check_at = models.DateTimeField(null=True, blank=True, editable=False, db_index=True)
    # while a check runs: its longest end
    check_until = models.DateTimeField(null=True, blank=True, editable=False)
    # a worker
    check_by = models.CharField(
        max_length=100, blank=True, default="", db_default="", editable=False
    )
    protocol_era = models.CharField(
        _("protocol version"), max_length=20, blank=True, editable=False
    )
    server_info = models.JSONField(default=dict, blank=True, editable=False)
    server_instructions = models.TextField(blank=True, editable=False)
    refreshed_at = models.DateTimeField(_("tools read at"), null=True, blank=True, editable=False)
    features = models.JSONField(
        default=list,
        blank=True,
        db_default=[],
        editable=False,
        help_text=_(
            "Features besides tools, prompts and resources: completions, logging, subscriptions."
        ),
    )
    left_out = models.TextField(
        _("tools left out"),
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("Definitions that are left out, with the reason, one per line."),
    )
    last_connected_at = models.DateTimeField(null=True, blank=True, editable=False)
    sealed_extra = models.TextField(blank=True, editable=False)
    # what imported files say that has no field here; may hold secrets
    extra = Sealed("sealed_extra", dict)
    only_on = models.CharField(
        _("only on endpoint"),
        max_length=63,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_(
            "Short name of the only endpoint that lists the server. If empty, every endpoint can list it."
        ),
    )
    source = models.CharField(
        max_length=40,
        blank=True,
        editable=False,
        help_text=_("How the server was added: admin, api, or the format of a file."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ServerQuerySet.as_manager()
    history = HistoricalRecords(
        excluded_fields=[
            "last_ok_at",
            "last_error",
            "last_error_code",
            "last_error_at",
            "consecutive_failures",
            "unavailable_since",
            "next_check_at",
            "check_until",
            "check_by",
            "protocol_era",
            "server_info",
            "server_instructions",
            "refreshed_at",
            "updated_at",
            "left_out",
            "last_connected_at",
            "launch_by",
            "features",
        ]
    )

    class Meta:
        ordering = ["slug"]
        permissions = [
            ("confirm_server", "Can confirm the launch of a server"),
            ("test_server", "Can test, refresh and reconnect a server"),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def title(self) -> str:
        return self.name or self.slug

    @property
    def questions(self) -> frozenset[str]:
        """The kinds of questions that it may put to hosts, as MCP calls them."""
        return frozenset(
            kind for kind in ("elicitation", "sampling", "roots") if getattr(self, f"asks_{kind}")
        )

    @property
    def enabled(self) -> bool:
        return self.lifecycle != Lifecycle.DISABLED

    def texts(self) -> list[str]:
        """Everything in which a secret may be named. Raises ConfigInvalid where the sealed part no
        longer opens."""
        return [*self.command, self.cwd, self.url, *self.env.values(), *self.headers.values()]

    def launch_facts(self) -> dict[str, Any]:
        """What a person confirms: enough to know what will run or be reached, no secret in it."""
        if self.transport == Transport.STDIO:
            facts = {
                "transport": "stdio",
                "command": self.command,
                "cwd": self.cwd,
                "env": sorted(self.env),
            }
            if (policy := self.sandbox_policy()).enforced:
                facts["sandbox"] = policy.facts()
        else:
            facts = {
                "transport": self.transport,
                "url": self.url,
                "headers": sorted(self.headers),
                "networks": self.allowed_networks,
            }
        # some servers then work in these folders instead of those that were confirmed
        if self.asks_roots:
            facts["may_ask_for_folders"] = True
        return facts | ({"limits": limits} if (limits := self.list_raised_limits()) else {})

    def list_raised_limits(self) -> dict[str, int]:
        """Bounds that are wider than their default: how much one server may make this site hold is
        confirmed, too."""
        usual = {"max_message_bytes": MESSAGE_BYTES, "max_tools": TOOLS, "max_sessions": SESSIONS}
        usual |= {"max_definition_bytes": DEFINITION_BYTES}
        raised = {
            name: getattr(self, name) for name, most in usual.items() if getattr(self, name) > most
        }
        return raised | (self.list_raised_bounds() if self.transport == Transport.STDIO else {})

    def launch_hash(self) -> str:
        """Keyed hash of the launch facts and of the secret values behind them: it is stored and
        shown, they are not."""
        whole = [self.launch_facts(), self.env, self.headers]
        return compute_keyed_digest(
            "launch", msgspec.json.encode(whole, order="deterministic").decode()
        )

    @property
    def launch_confirmed(self) -> bool:
        return bool(self.confirmed_launch) and self.confirmed_launch == self.launch_hash()


class Connection(models.Model):
    """The live connection of one process to one server, as that process last reported it."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="connections")
    process = models.CharField(
        max_length=100,
        help_text=_("Kind, host and process ID of the process, for example web@box:4711."),
    )
    state = models.CharField(max_length=14)
    protocol_era = models.CharField(_("protocol version"), max_length=20, blank=True)
    pid = models.IntegerField(
        _("process ID"), null=True, blank=True, help_text=_("Process ID of a local server.")
    )
    since = models.DateTimeField()
    connected_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When this process last connected.")
    )
    attempts = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text=_("Number of consecutive failures since the last answered call."),
    )
    sessions = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text=_("Number of open connections that belong to one agent or host session."),
    )
    last_error = models.TextField(blank=True)
    stderr_tail = models.TextField(blank=True)
    log_tail = models.TextField(
        _("log lines"),
        blank=True,
        default="",
        db_default="",
        help_text=_("Newest log messages that the server sent over MCP."),
    )
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["server", "process"]
        constraints = [
            models.UniqueConstraint(fields=["server", "process"], name="one_connection_per_process")
        ]

    def __str__(self) -> str:
        return f"{self.server.slug} from {self.process}"


class ServerEvent(models.Model):
    """One thing that happened to a server: a change of state, a failure, changed tools."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(_("time"), db_index=True)
    kind = models.CharField(max_length=30)
    message = models.TextField(blank=True)
    process = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return show_invisible_characters(self.message or self.kind, 200)
