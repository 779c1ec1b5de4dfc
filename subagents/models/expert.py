"""Expert tools: one clean tool for hosts, behind it a cheap model with whitelisted tools."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.models import Agent, Endpoint
from mcpregistry.models.tracked import TrackedModel
from subagents.models.provider import LanguageModel

name_validator = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}\Z",
    _("Use 1 to 60 letters, digits, dashes or underscores, starting with a letter or digit."),
)


class OnDeath(models.TextChoices):
    """What becomes of a run when a server of its whitelist dies."""

    FAIL = "fail", _("The run ends with a ToolExecutionError")
    TELL = "tell", _("The model gets the error and continues")


class ExpertToolQuerySet(models.QuerySet["ExpertTool"]):
    """Expert tools with what lists need of their versions."""

    def with_newest(self) -> ExpertToolQuerySet:
        """Each with ``newest_number`` and ``newest_hash`` of its versions, without reading them."""
        newest = ExpertVersion.objects.filter(expert=OuterRef("pk")).order_by("-number")
        # the class declares both, for whoever reads them
        return self.annotate(  # type: ignore[no-redef]
            newest_number=Subquery(newest.values("number")[:1]),
            newest_hash=Subquery(newest.values("hash")[:1]),
        )


class ExpertTool(TrackedModel):
    """What an operator edits. What runs is the version that a save has made (see ExpertVersion).

    ``agent`` is the identity of its runs: the grants of that agent are the whitelist, and every
    inner call is that agent's call. ``users`` are the agents that may call the expert tool itself.
    """

    name = models.CharField(max_length=60, unique=True, validators=[name_validator])
    description = models.TextField(
        help_text=_("Description of the tool for hosts and their models.")
    )
    arguments = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            'JSON Schema of the arguments, or one entry for each argument: {"query": {"type": "string"}}.'
        ),
    )
    system_prompt = models.TextField(
        blank=True,
        help_text=_("Instructions for the model. If empty, a short default prompt is used."),
    )
    targets = models.ManyToManyField(LanguageModel, through="ExpertTarget", related_name="experts")
    agent = models.OneToOneField(
        Agent, on_delete=models.PROTECT, related_name="expert", editable=False
    )
    users = models.ManyToManyField(
        Agent,
        blank=True,
        related_name="experts",
        help_text=_("Agents that may call this expert tool."),
    )
    endpoints = models.ManyToManyField(
        Endpoint,
        blank=True,
        related_name="experts",
        help_text=_("Endpoints that list this expert tool. If empty, hosts do not see it."),
    )
    awaited_tools = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            'Tools to add as soon as their servers offer them, for example ["git::git_log"]. Until then, the '
            "expert tool does not run."
        ),
    )
    max_steps = models.PositiveSmallIntegerField(
        default=10,
        validators=[MinValueValidator(1), MaxValueValidator(200)],
        help_text=_("Maximum number of model turns in a run."),
    )
    max_seconds = models.PositiveIntegerField(
        default=60,
        validators=[MinValueValidator(1), MaxValueValidator(24 * 3600)],
        help_text=_(
            "Maximum duration of a run in seconds. Waiting for an approval does not count."
        ),
    )
    max_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text=_(
            "Maximum number of input and output tokens of a run. If empty, there is no limit."
        ),
    )
    max_cost = models.DecimalField(
        max_digits=10,
        decimal_places=4,
        null=True,
        blank=True,
        help_text=_("Maximum cost of a run in US dollars. If empty, there is no limit."),
    )
    max_energy = models.FloatField(
        null=True,
        blank=True,
        help_text=_("Maximum number of energy units of a run. If empty, there is no limit."),
    )
    max_calls = models.PositiveIntegerField(
        default=100, help_text=_("Maximum number of tool calls in a run.")
    )
    parallelism = models.PositiveSmallIntegerField(
        _("concurrent tool calls"),
        default=4,
        validators=[MinValueValidator(1), MaxValueValidator(32)],
        help_text=_("Maximum number of tool calls at the same time."),
    )
    parallel = models.BooleanField(
        _("parallel calls"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, calls of one turn that the rules allow without asking are made in parallel, even if "
            "their tools may change something. If disabled, only calls to tools that you have confirmed as "
            "read-only are made in parallel."
        ),
    )
    output_schema = models.JSONField(
        null=True,
        blank=True,
        help_text=_("JSON Schema of the answer. If empty, the answer is text."),
    )
    tool_instructions = models.BooleanField(
        default=True,
        help_text=_("If enabled, the instructions of the servers are added to the prompt once."),
    )
    on_server_death = models.CharField(
        _("if a server fails"), max_length=4, choices=OnDeath.choices, default=OnDeath.TELL
    )
    max_result_bytes = models.PositiveIntegerField(
        default=12_288,
        validators=[MinValueValidator(1_024)],
        help_text=_(
            "Tool results larger than this many bytes are stored, and the model reads them page by page."
        ),
    )
    cache_seconds = models.PositiveIntegerField(
        default=0,
        help_text=_(
            "Number of seconds for which an answer is reused if the same agent calls the expert tool with the"
            " same arguments. An answer is reused only if its run used only read-only tools and the "
            "configuration has not changed. Set to 0 to disable."
        ),
    )
    maintains = models.JSONField(
        _("maintenance requests"),
        default=list,
        db_default=[],
        blank=True,
        help_text=_(
            "Kinds of maintenance requests that the model of this expert tool handles, with the operations of"
            " the background sub-agent as its tools. Each kind can be assigned to one expert tool. All other "
            "kinds follow a fixed plan."
        ),
    )
    temperature = models.FloatField(
        default=0.0, validators=[MinValueValidator(0), MaxValueValidator(2)]
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    newest_number: int | None  # of those read ``with_newest``
    newest_hash: str | None

    objects = ExpertToolQuerySet.as_manager()
    history = HistoricalRecords(m2m_fields=[users, endpoints])

    class Meta:
        ordering = ["name"]
        permissions = [
            ("run_expert", "Can run expert tools"),
            ("steer_run", "Can resume runs and settle unknown calls"),
        ]

    def __str__(self) -> str:
        return self.name


class ExpertTarget(models.Model):
    """A model to ask, in order: the first that answers is used."""

    expert = models.ForeignKey(ExpertTool, on_delete=models.CASCADE, related_name="ordered_targets")
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="+")
    order = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["order", "id"]
        constraints = [models.UniqueConstraint(fields=["expert", "model"], name="each_target_once")]

    def __str__(self) -> str:
        return f"{self.expert} {self.order + 1}: {self.model}"


class ExpertVersion(models.Model):
    """What an expert tool was at one moment; never changes. Runs point here.

    ``body`` is canonical JSON of everything that decides what a run does but the grants, which are
    always those of now: a withdrawn grant binds a running run as well.
    """

    expert = models.ForeignKey(ExpertTool, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    hash = models.CharField(max_length=64)
    body = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["expert", "number"], name="one_version_per_number")
        ]

    def __str__(self) -> str:
        return f"{self.expert} v{self.number}"
