from __future__ import annotations

from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        # Makes our Celery app the current one, so that `task.delay()` finds the broker in every process.
        from controlplane import celery, checks  # noqa: F401
