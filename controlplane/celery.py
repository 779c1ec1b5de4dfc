"""The Celery app. The broker only wakes people up; the database holds the truth."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import beat_init, setup_logging, worker_init
from django.conf import settings
from django.db import connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
if Path(sys.argv[0]).parent.name == "celery" or Path(sys.argv[0]).name == "celery":
    os.environ.setdefault("SLIPSNISSE_PROCESS", "beat" if "beat" in sys.argv else "worker")

# Django's checks would load every page into worker and clock (1 s, 30 MB); `up`, `check` and
# `doctor` run them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

# Only JSON is accepted from the broker, so a worker of root is no more dangerous than root's web
# process.
warnings.filterwarnings("ignore", message="You're running the worker with superuser")

app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")
if settings.PROCESS != "beat":  # the clock sends names and runs nothing
    app.autodiscover_tasks()


@setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Celery configures no logging when somebody listens here; Django's settings did it."""


@worker_init.connect
@beat_init.connect
def _require_a_whole_site(**_: Any) -> None:
    """Worker and clock end at once on a database that lacks triggers or roles. Celery passes on no
    other exception.

    While the database is away they wait here. So what comes after this, such as taking over a dead
    worker's work, finds a database.
    """
    from mcpregistry.services.upkeep import completeness

    try:
        completeness.wait_until_complete()
    except completeness.IncompleteDatabaseError as error:
        raise SystemExit(str(error)) from None
    finally:
        connections.close_all()
