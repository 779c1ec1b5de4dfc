"""A person's second factor: the secret that their authenticator shares with us, and codes for the
day it is lost."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.sealing import Sealed


class SecondFactor(models.Model):
    """Of one person. Without ``confirmed_at`` it is only being set up, and asks nobody for
    anything."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor"
    )
    sealed_secret = models.TextField(editable=False)
    confirmed_at = models.DateTimeField(null=True, blank=True)
    last_step = models.BigIntegerField(
        default=0,
        help_text=_(
            "Number of the last code that was used. This code and earlier ones are not accepted."
        ),
    )

    secret = Sealed("sealed_secret", str)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"second factor of {self.user_id}"


class RecoveryCode(models.Model):
    """One code that works once in place of the authenticator's. Only its hash is kept; it is as
    random as a token."""

    factor = models.ForeignKey(
        SecondFactor, on_delete=models.CASCADE, related_name="recovery_codes"
    )
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.hash[:8]
