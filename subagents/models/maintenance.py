"""Work for the background sub-agent: requests, what it tells of them, and what it proposes."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from mcpregistry.models import Install, Server
from mcpregistry.models.visibility import VisibleQuerySet
from subagents.domain.maintenance import (
    ControlRequest,
    Kind,
    Priority,
    ProposalState,
    RequestMessageKind,
    State,
    Substate,
)
from subagents.models.leased import Leased

# the change feed's topic of requests: how far they are, and what people wish
MAINTENANCE_TOPIC = "maintenance"


def _new_id() -> str:
    return uuid.uuid4().hex


class MaintenanceRequestQuerySet(VisibleQuerySet["MaintenanceRequest"]):
    """Requests by what pages and workers ask for. An agent sees its own."""

    own_by = "agent"

    def open(self) -> MaintenanceRequestQuerySet:
        """Those without an end."""
        return self.filter(finished_at=None)


class MaintenanceRequest(Leased):
    """One thing that the background sub-agent is asked to do. It only proposes what would start or
    serve something."""

    id = models.CharField(primary_key=True, max_length=32, default=_new_id, editable=False)
    kind = models.CharField(
        _("type"), max_length=20, choices=[(kind.value, kind.value) for kind in Kind]
    )
    params = models.JSONField(default=dict, blank=True)
    priority = models.PositiveSmallIntegerField(
        choices=[(priority.value, priority.name.lower()) for priority in Priority],
        default=Priority.MEDIUM,
    )
    state = models.CharField(
        max_length=12, choices=[(state.value, state.value) for state in State], default=State.QUEUED
    )
    substate = models.CharField(
        max_length=10, blank=True, choices=[(each.value, each.value) for each in Substate if each]
    )
    wish = models.CharField(
        max_length=10,
        blank=True,
        choices=[
            (wish.value, wish.value) for wish in (ControlRequest.PAUSE, ControlRequest.CANCEL)
        ],
    )
    wish_reason = models.CharField(max_length=500, blank=True)
    progress = models.PositiveSmallIntegerField(
        default=0, help_text=_("Progress in percent, from 0 to 100.")
    )
    step = models.PositiveSmallIntegerField(
        default=0, help_text=_("Number of completed steps. The work continues after them.")
    )
    message = models.CharField(max_length=500, blank=True)
    notes = models.JSONField(
        default=dict, blank=True, help_text=_("What the completed steps have found.")
    )
    result = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True)
    energy_total = models.FloatField(_("energy"), default=0)
    energy_unreported = models.FloatField(
        default=0, help_text=_("Energy that has not been charged to an energy pool yet.")
    )
    server_slug = models.CharField(_("server"), max_length=63, blank=True)
    working_on = models.CharField(
        max_length=63,
        null=True,
        blank=True,
        unique=True,
        help_text=_(
            "The server that the request is for. Set only while a worker is working on the request."
        ),
    )
    agent = models.CharField(
        max_length=63,
        blank=True,
        help_text=_("The agent that made the request. Empty if a user made it."),
    )
    supervisor = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "The hosted agent that supervises the request. While this agent does not run, the "
            "request is paused too. If empty, the hosted agent that supervises the whole site is used, if "
            "there is one."
        ),
    )
    conversation = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text=_("ID of the conversation in which the agent made the request."),
    )
    requested_by = models.CharField(
        max_length=200, help_text=_("Who made the request, as in the audit log.")
    )
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)

    objects = MaintenanceRequestQuerySet.as_manager()

    class Meta:
        verbose_name = _("maintenance request")
        verbose_name_plural = _("maintenance requests")
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(progress__lte=100), name="maintenance_progress_to_100"
            )
        ]
        indexes = [
            models.Index(
                fields=["-priority", "created_at"],
                name="maintenance_queue",
                condition=Q(finished_at=None),
            ),
            models.Index(fields=["-created_at", "-id"], name="maintenance_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.server_slug}".strip()


class MaintenanceMessage(models.Model):
    """What the sub-agent tells whoever asked; each is handed out once, and stays to be read."""

    request = models.ForeignKey(
        MaintenanceRequest, on_delete=models.CASCADE, related_name="messages"
    )
    kind = models.CharField(
        _("type"), max_length=20, choices=[(kind.value, kind.value) for kind in RequestMessageKind]
    )
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["id"], name="maintenance_undelivered", condition=Q(delivered_at=None)
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.request_id[:8]}"


class Proposal(models.Model):
    """A change of the configuration that waits for a person. Until then it changes nothing."""

    request = models.OneToOneField(
        MaintenanceRequest, on_delete=models.CASCADE, related_name="proposal"
    )
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    install = models.ForeignKey(
        Install,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text=_("The package from which the new server is made."),
    )
    server_revision = models.PositiveIntegerField(
        default=0, help_text=_("Revision of the server when the change was proposed.")
    )
    server_saved_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_(
            "Time of the last change that a user made to the server before this change was proposed."
        ),
    )
    fields = models.JSONField(
        default=dict, blank=True, help_text=_("New values of the fields of the server.")
    )
    reason = models.TextField(blank=True)
    state = models.CharField(
        max_length=10,
        choices=[(state.value, state.value) for state in ProposalState],
        default=ProposalState.WAITING,
    )
    decided_by = models.CharField(max_length=200, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        permissions = [("decide_proposal", "Can apply or decline proposals of the sub-agent")]

    def __str__(self) -> str:
        return str(self.request)

    def fits(self, server: Server | None) -> bool:
        """Whether the server is as it was when this was proposed: by its columns, and by secrets
        that it refers to."""
        return server is not None and (server.revision, server.updated_at) == (
            self.server_revision,
            self.server_saved_at,
        )
