"""The configuration file of one directory, as ``runmcp --workspace`` has read it, and its
confirmation by a person.

There is one row per directory. No server of the file runs before ``confirmed`` equals ``content``.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.sealing import Sealed

SHORT = 12  # shown characters of a hash


class ProjectFile(models.Model):
    """The content of a directory's file, and the content that a person has confirmed.

    Endpoint and agent are names instead of references: the servers of the file keep to this
    endpoint, also while it is being replaced.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    directory = models.CharField(
        max_length=1000, unique=True, help_text=_("Directory in which a host was started.")
    )
    path = models.CharField(
        _("file"), max_length=1000, blank=True, help_text=_("File that was read.")
    )
    endpoint_slug = models.CharField(
        _("endpoint"),
        max_length=63,
        help_text=_("The only endpoint that lists the servers of the file."),
    )
    agent_slug = models.CharField(
        _("agent"), max_length=63, help_text=_("Hosts in this directory act as this agent.")
    )
    content = models.CharField(
        max_length=64,
        blank=True,
        help_text=_("Keyed hash of the servers in the file. Empty if the file cannot be read."),
    )
    summary = models.JSONField(
        default=list, blank=True, help_text=_("Servers of the file, one per line, without secrets.")
    )
    variables = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            "Variables in commands and addresses, with the values that the host had. They are part of the hash."
        ),
    )
    problem = models.TextField(
        blank=True, help_text=_("What is wrong with the file or its servers, and what to do.")
    )
    seen_at = models.DateTimeField(
        _("changed at"), help_text=_("When the last change to the file was detected.")
    )

    confirmed = models.CharField(
        _("confirmed content"),
        max_length=64,
        blank=True,
        help_text=_("Hash of the content that a user has confirmed."),
    )
    confirmed_at = models.DateTimeField(null=True, blank=True)
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("account"),
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
    )
    confirmed_as = models.CharField(
        _("confirmed by"),
        max_length=200,
        blank=True,
        help_text=_("Name of the user in the audit log."),
    )
    # The entries that were read and those that were confirmed, by their keys: digest and launch.
    # They are sealed, because a launch may hold a secret, and a short one could be guessed from its
    # digest.
    sealed_entries = models.TextField(blank=True, editable=False)
    entries = Sealed("sealed_entries", dict)
    sealed_confirmed_entries = models.TextField(blank=True, editable=False)
    confirmed_entries = Sealed("sealed_confirmed_entries", dict)
    offered = models.JSONField(
        default=list,
        db_default=[],
        editable=False,
        help_text=_(
            "Entries that were confirmed and whose tools were then approved and granted automatically. This "
            "is done only once for each entry."
        ),
    )
    served = models.CharField(
        max_length=64,
        blank=True,
        help_text=_("Hash of the confirmed content for which servers have been set up."),
    )

    class Meta:
        ordering = ["directory"]

    def __str__(self) -> str:
        return self.directory

    @property
    def state(self) -> str:
        """ "unusable", "waiting", "starting" or "confirmed"."""
        if not self.content:
            return "unusable"
        if self.content != self.confirmed:
            return "waiting"
        return "confirmed" if self.served == self.content else "starting"
