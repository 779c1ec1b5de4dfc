"""The app that makes this project's Celery app and system checks known to Django."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ControlPlaneConfig(AppConfig):
    """Django's configuration of the project's own app."""

    name = "controlplane"
    verbose_name = _("Control plane")

    def ready(self) -> None:
        """Load the Celery app and the system checks; begin to say in each version from where it
        came."""
        # Makes our Celery app the current one, so that `task.delay()` finds the broker in every
        # process.
        from controlplane import celery, checks  # noqa: F401
        from controlplane.history import version_recording

        version_recording.listen()
