"""Who may call what: agents and their tokens, endpoints, grants, workspaces."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.models.server import Server, slug_validator
from mcpregistry.models.tool import Tool
from mcpregistry.models.tracked import TrackedModel

HOLD_HELP = _(
    'Seconds that a host waits for the approval of a call. After that, the host gets the answer "pending" and can '
    "ask again. Set to 0 to answer immediately. If empty, the wait depends on the host."
)


def _hold_seconds() -> models.PositiveIntegerField[int | None, int | None]:
    """The field of agents and endpoints alike; the smallest of all that say something counts."""
    return models.PositiveIntegerField(
        _("longest wait for an approval"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(3600)],
        help_text=HOLD_HELP,
    )


def everything() -> list[str]:
    """Default of ``Agent.capabilities``: any server that is granted."""
    return ["mcp_integration"]


class Agent(TrackedModel):
    """A principal that calls tools. A host on stdio is an agent too (``runmcp --agent``)."""

    slug = models.CharField(
        _("short name"), max_length=63, unique=True, validators=[slug_validator]
    )
    name = models.CharField(max_length=200, blank=True)
    description = models.TextField(blank=True)
    enabled = models.BooleanField(default=True)
    capabilities = models.JSONField(
        default=everything,
        blank=True,
        help_text=_(
            'Limits what can be granted to this agent: ["mcp_integration"] for every server, ["mcp_github::*"] for '
            'one server, ["mcp_github::create_issue"] for one tool. If empty, the agent sees no tools.'
        ),
    )
    calls_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text=_("Maximum number of calls per minute. If empty, there is no limit."),
    )
    energy_pool = models.ForeignKey(
        "mcpregistry.EnergyPool",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="agents",
        help_text=_(
            "Energy pool that pays for the calls of this agent. If empty, calls cost no energy."
        ),
    )
    hold_seconds = _hold_seconds()
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="agents",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    history = HistoricalRecords()

    class Meta:
        ordering = ["slug"]
        permissions = [("call_tool", "Can call tools as an agent")]

    def __str__(self) -> str:
        return self.slug


class Token(models.Model):
    """A bearer token of an agent (MCP, tool calls) or of a person (REST). Only its hash is kept."""

    agent = models.ForeignKey(
        Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens"
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="tokens",
    )
    name = models.CharField(
        max_length=200, help_text=_("What the token is for, for example the program.")
    )
    prefix = models.CharField(
        max_length=16,
        editable=False,
        help_text=_("First characters of the token, which identify it."),
    )
    hash = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(agent__isnull=False, user__isnull=True)
                | Q(agent__isnull=True, user__isnull=False),
                name="token_of_agent_or_user",
            )
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"


class NamingStyle(models.TextChoices):
    """How an endpoint builds the names of tools; see ``domain.definitions.naming``."""

    DOUBLE = "double", "server__tool"
    SINGLE = "single", "server_tool"
    MCP_SINGLE = "mcp_single", "mcp_server_tool"
    MCP_DOUBLE = "mcp_double", "mcp__server__tool"
    PLAIN = "plain", _("tool")


class DescriptionStyle(models.TextChoices):
    """What an endpoint puts before a tool's description."""

    NONE = "none", _("No prefix")
    BRACKET = "bracket", _("[server] …")
    MCP_BRACKET = "mcp_bracket", _("[MCP:server] …")


class Endpoint(TrackedModel):
    """One MCP server that we show to hosts."""

    class Scope(models.TextChoices):
        """Whether the endpoint narrows what an agent is granted."""

        GRANTED = "granted", _("All tools that the agent is granted")
        LISTED = "listed", _("Granted tools that are also listed here")

    slug = models.CharField(
        _("short name"), max_length=63, unique=True, validators=[slug_validator]
    )
    name = models.CharField(max_length=200, blank=True)
    instructions = models.TextField(
        blank=True,
        help_text=_(
            "Instructions for the model, in addition to those of the servers. Some hosts ignore them."
        ),
    )
    instructions_limit = models.PositiveIntegerField(
        _("server instructions limit"),
        default=4_000,
        db_default=4_000,
        validators=[MaxValueValidator(100_000)],
        help_text=_(
            "Maximum number of characters of the approved instructions of servers. They are added after the "
            "instructions of the endpoint. Set to 0 to add none."
        ),
    )
    enabled = models.BooleanField(default=True)
    scope = models.CharField(
        _("visible tools"), max_length=10, choices=Scope.choices, default=Scope.GRANTED
    )
    naming_style = models.CharField(
        max_length=12, choices=NamingStyle.choices, default=NamingStyle.DOUBLE
    )
    description_style = models.CharField(
        max_length=12, choices=DescriptionStyle.choices, default=DescriptionStyle.NONE
    )
    hide_unavailable = models.BooleanField(
        _("hide unavailable tools"),
        default=True,
        help_text=_(
            "If enabled, the tools of failed servers are hidden. Tools of servers that are not started yet "
            "stay visible."
        ),
    )
    maintenance_tools = models.BooleanField(
        _("sub-agent tools"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, agents can use the tools of the background sub-agent here, to request a server and "
            "to follow the request."
        ),
    )
    tell_energy = models.BooleanField(
        _("energy in results"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, each result includes the energy that its call has used, and the level of the "
            "agent's energy pool."
        ),
    )
    hold_seconds = _hold_seconds()
    created_at = models.DateTimeField(auto_now_add=True)

    history = HistoricalRecords()

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


_PARTS = [
    (Tool.Kind.TOOL.value, _("tools")),
    (Tool.Kind.PROMPT.value, _("prompts")),
    (Tool.Kind.RESOURCE.value, _("resources")),
    (Tool.Kind.TEMPLATE.value, _("resource templates")),
    ("", _("everything")),
]


class Grant(TrackedModel):
    """A whitelist row: an agent may use what a server offers, or one tool or prompt; or an endpoint
    lists it.

    A call needs a grant of its agent, and where the endpoint shows only what is listed, one of the
    endpoint as well.
    """

    agent = models.ForeignKey(
        Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    endpoint = models.ForeignKey(
        Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    kind = models.CharField(
        _("included parts"),
        max_length=10,
        choices=_PARTS,
        default=Tool.Kind.TOOL,
        db_default=Tool.Kind.TOOL.value,
        blank=True,
        help_text=_(
            "What the grant of a server includes. Later additions are included as soon as they are approved."
        ),
    )
    uri = models.CharField(
        "URIs",
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Limits the grant to resources whose URI matches, for example file:///docs/*. The character * "
            "matches any text."
        ),
    )
    tool = models.ForeignKey(
        Tool, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    argument_pins = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            'Arguments that must have exactly these values, as a JSON object, for example {"repo": "docs"}. '
            "Calls with other values are refused."
        ),
    )
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the grant expires. If empty, it does not expire.")
    )
    note = models.CharField(max_length=500, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        editable=False,
    )
    created_at = models.DateTimeField(auto_now_add=True)

    history = HistoricalRecords()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(agent__isnull=False, endpoint__isnull=True)
                | Q(agent__isnull=True, endpoint__isnull=False),
                name="grant_to_agent_or_endpoint",
                violation_error_message=_("Choose either an agent or an endpoint."),
            ),
            models.CheckConstraint(
                condition=Q(server__isnull=False, tool__isnull=True)
                | Q(server__isnull=True, tool__isnull=False),
                name="grant_of_server_or_tool",
                violation_error_message=_("Choose either a server or one tool."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent or self.endpoint} → {self.tool or self.whole}"

    @property
    def whole(self) -> str:
        """What it is about if it is not about one tool or prompt."""
        return (
            f"{self.server}"
            if self.kind == Tool.Kind.TOOL
            else f"{self.server} ({self.kind or 'everything'})"
        )

    def clean(self) -> None:
        """Refuse pins that are no object, and URIs that would narrow nothing; the two either-or
        rules are database constraints.
        """
        if not isinstance(self.argument_pins, dict):
            raise ValidationError(
                {"argument_pins": _('Use a JSON object, for example {"repo": "docs"}.')}
            )
        if self.uri and (self.tool.kind if self.tool else self.kind) in (
            Tool.Kind.TOOL,
            Tool.Kind.PROMPT,
        ):
            raise ValidationError(
                {
                    "uri": _(
                        "URI patterns apply only to resources. Grant the server's resources, its resource templates or "
                        "everything. Or leave the field “URIs” empty."
                    )
                }
            )


class Workspace(TrackedModel):
    """Which endpoint and agent ``runmcp --cwd`` uses below a directory; the longest match wins."""

    directory = models.CharField(
        max_length=1000, unique=True, help_text=_("Absolute path of the workspace directory.")
    )
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="workspaces")
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="workspaces")

    history = HistoricalRecords()

    class Meta:
        ordering = ["directory"]

    def __str__(self) -> str:
        return self.directory

    def clean(self) -> None:
        """Refuse a directory that is not absolute."""
        if not self.directory.startswith("/"):
            raise ValidationError(
                {"directory": _("Use an absolute path, for example /home/ann/project.")}
            )


class _Changes(HistoricalRecords):
    """Without the first version, which every site has before anybody has set anything."""

    def post_save(self, instance: Any, created: bool, **more: Any) -> None:
        """Called by the signal of this name."""
        if not created:
            super().post_save(instance, created, **more)


class Configuration(TrackedModel):
    """The one row that says how often the live configuration has changed, and the site's settings.

    Database triggers raise ``revision`` on every change of a configuration table (see guards), so
    that no way of editing is forgotten; running processes watch it.
    """

    revision = models.BigIntegerField(default=1, editable=False)
    # The version whose `migrate` has made all triggers and roles; empty while one is at work, or
    # after one was interrupted.
    complete_for = models.CharField(
        max_length=40, default="", db_default="", blank=True, editable=False
    )
    default_outcome = models.CharField(
        _("default decision"),
        max_length=5,
        choices=[("ask", _("ask an approver")), ("allow", _("allow")), ("deny", _("deny"))],
        default="ask",
        help_text=_("Decision for a granted call that no rule matches."),
    )
    keep_payloads_days = models.PositiveIntegerField(
        default=30,
        validators=[MinValueValidator(1)],
        help_text=_(
            "Arguments and results of calls are deleted after this many days. Default: 30."
        ),
    )
    keep_calls_days = models.PositiveIntegerField(
        default=365,
        validators=[MinValueValidator(1)],
        help_text=_("Records of calls are deleted after this many days. Default: 365."),
    )
    variable_scope = models.JSONField(
        _("scope of variables"),
        default=dict,
        db_default={},
        blank=True,
        help_text=_(
            "Which servers and providers may use the variables of SLIPSNISSE_PASS_ENV, for example "
            '{"GITHUB_TOKEN": ["server:github"]}. Variables that are not listed here are not used.'
        ),
    )
    sub_agent_enabled = models.BooleanField(
        _("background sub-agent"),
        default=True,
        db_default=True,
        help_text=_(
            "If disabled, requests to the background sub-agent stay queued, and running work is paused until "
            "it is enabled again."
        ),
    )
    second_factor_roles = models.JSONField(
        _("roles that need a second factor"),
        default=list,
        db_default=[],
        blank=True,
        help_text=_(
            "Users with these roles must set up a second factor after they log in, before they can open any "
            "other page."
        ),
    )

    auto_discovery = models.BooleanField(
        _("automatic registry search"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, the sub-agent searches the registries of this site by name and purpose when an "
            "agent requests a server. If disabled, an agent must give the exact name. Searches by users are not "
            "affected."
        ),
    )

    only_listed = models.BooleanField(
        _("only listed packages"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, only packages that a registry of this site lists can be installed. Packages that were "
            "withdrawn from a registry are refused too."
        ),
    )

    keep_history_days = models.PositiveIntegerField(
        default=365,
        db_default=365,
        validators=[MinValueValidator(1)],
        help_text=_(
            "Earlier versions of the configuration are deleted after this many days. The latest version of "
            "each record is kept. Default: 365."
        ),
    )

    history = _Changes(excluded_fields=["revision", "complete_for"])

    class Meta:
        verbose_name_plural = _("configuration")
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_configuration")]

    def __str__(self) -> str:
        return "configuration of the site"

    @property
    def discovers(self) -> bool:
        """Whether the sub-agent searches registries unasked; the environment's word counts before
        the row's."""
        said: bool | None = settings.MCP_AUTO_DISCOVERY
        return self.auto_discovery if said is None else said

    @classmethod
    def load(cls) -> Configuration:
        """The one row, created if it is not there yet."""
        return cls.objects.get_or_create(id=1)[0]

    @classmethod
    def load_for_update(cls) -> Configuration:
        """The same for who will write it: nobody else does until this transaction ends, so no
        change is lost."""
        return cls.objects.select_for_update().get_or_create(id=1)[0]


class AccessFinding(models.Model):
    """What the access analyzer found of a grant, for each period that pages offer
    (``services.policy.findings``).

    The clock refreshes these rows. If ``facts`` differ from those of the grant, the row is out of
    date.
    """

    grant = models.OneToOneField(
        Grant, primary_key=True, on_delete=models.CASCADE, related_name="finding"
    )
    made_at = models.DateTimeField(db_index=True)
    facts = models.CharField(max_length=64, help_text=_("Digest of the grant that was analyzed."))
    body = models.JSONField(
        default=dict,
        help_text=_(
            "The proposal for each period. The key is the length of the period in days. A period without a "
            "proposal is left out."
        ),
    )

    def __str__(self) -> str:
        return f"{self.grant_id} at {self.made_at:%Y-%m-%d %H:%M}"
