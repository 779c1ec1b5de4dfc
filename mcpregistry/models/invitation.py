"""Invitations: a link with which one person makes an account of their own, with the role that it
names."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

ROLE_CHOICES = [
    ("viewer", _("viewer: can view everything and change nothing")),
    ("operator", _("operator: can also change servers, tools and expert tools")),
    ("approver", _("approver: can also decide on held calls and definitions")),
    ("admin", _("admin: can also change rules, agents, users and the settings of the site")),
]


class Invitation(models.Model):
    """Used once, ends by itself. Only the hash of its text is kept."""

    name = models.CharField(
        _("name"), max_length=200, help_text=_("Name of the invited person, for your own records.")
    )
    role = models.CharField(max_length=20, choices=ROLE_CHOICES)
    hash = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        editable=False,
    )
    expires_at = models.DateTimeField(
        _("expires at"), help_text=_("The link expires at this time, or as soon as it is used.")
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    used_at = models.DateTimeField(null=True, blank=True, editable=False)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        editable=False,
    )

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        """ "open", "used", "withdrawn" or "expired"."""
        if self.used_at:
            return "used"
        if self.revoked_at:
            return "withdrawn"
        return "expired" if self.expires_at <= timezone.now() else "open"
