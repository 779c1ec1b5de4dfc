"""Settings of the site. Every value a deployment may change comes from ``controlplane/env.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from controlplane import embedded_broker, env, keys, site_address
from controlplane.databases import settings_for
from controlplane.unfold import UNFOLD  # noqa: F401  (the look of the admin)

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / (env.text("SLIPSNISSE_VAR") or "var")  # an absolute path replaces BASE_DIR

# Which process this is: "" (commands), "web", "worker", "beat", "runmcp" or "connect".
PROCESS = os.environ.get("SLIPSNISSE_PROCESS", "")
# the dead process that this one replaces, if any
PREDECESSOR = int(os.environ.get("SLIPSNISSE_PREDECESSOR", "0"))
# No pages, no admin: a host waits for runmcp, runs wait for the worker, and the clock only sends
# names.
LEAN = PROCESS in {"runmcp", "worker", "beat"}

# these report a folder without keys
_ring = keys.load(VAR_DIR, make=PROCESS not in {"runmcp", "command"})
SECRET_KEY = _ring.secret_key
SLIPSNISSE_KEYS = _ring.sealing
SLIPSNISSE_AUDIT_KEYS = _ring.audit
AUDIT_FILE = env.text("SLIPSNISSE_AUDIT_FILE")
AUDIT_SYSLOG = env.text("SLIPSNISSE_AUDIT_SYSLOG")
AUDIT_WEBHOOK = env.text("SLIPSNISSE_AUDIT_WEBHOOK")
AUDIT_WEBHOOK_SECRET = env.text("SLIPSNISSE_AUDIT_WEBHOOK_SECRET")
AUDIT_BUCKET = env.text("SLIPSNISSE_AUDIT_BUCKET")
AUDIT_BUCKET_REGION = env.text("SLIPSNISSE_AUDIT_BUCKET_REGION")
AUDIT_BUCKET_KEY_ID = env.text("SLIPSNISSE_AUDIT_BUCKET_KEY_ID")
AUDIT_BUCKET_SECRET = env.text("SLIPSNISSE_AUDIT_BUCKET_SECRET")
AUDIT_NETWORKS = env.words("SLIPSNISSE_AUDIT_NETWORKS")

DEBUG = env.flag("SLIPSNISSE_DEBUG")
ALLOWED_HOSTS = env.words("SLIPSNISSE_HOSTS")
KEPT_ADDRESS = site_address.last(VAR_DIR).rstrip("/")
SITE_URL = (env.text("SLIPSNISSE_URL") or KEPT_ADDRESS).rstrip("/")
MCP_ALLOWED_ORIGINS = [SITE_URL, *env.words("SLIPSNISSE_ORIGINS")]
MCP_DOORS = frozenset(env.words("SLIPSNISSE_DOORS"))
STDIO_ENABLED = env.flag("SLIPSNISSE_STDIO")
MAINTENANCE_KINDS = env.words("SLIPSNISSE_MAINTENANCE")
PASS_ENV = env.words("SLIPSNISSE_PASS_ENV")
REGISTRY_PUBLIC = env.flag("SLIPSNISSE_REGISTRY_PUBLIC")
FOUR_EYES = env.flag("SLIPSNISSE_FOUR_EYES")
PYPI_INDEX = env.text("SLIPSNISSE_PYPI_INDEX")
NPM_REGISTRY = env.text("SLIPSNISSE_NPM_REGISTRY")
METRICS_LOCAL = env.flag("SLIPSNISSE_METRICS_LOCAL")
PEER_ADDRESS = env.host_and_ports("SLIPSNISSE_PEER_ADDRESS")
MAX_CONNECTIONS = env.number("SLIPSNISSE_MAX_CONNECTIONS")
# empty: people are asked
MCP_TOOL_APPROVAL = not env.text("MCP_TOOL_APPROVAL") or env.flag("MCP_TOOL_APPROVAL")
MCP_AUTO_DISCOVERY = env.flag("MCP_AUTO_DISCOVERY") if env.text("MCP_AUTO_DISCOVERY") else None
GRACE_SECONDS = float(env.number("SLIPSNISSE_GRACE"))
MCP_HOLD_SECONDS = env.seconds("SLIPSNISSE_HOLD")

_ground = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "simple_history",
    "mcpregistry",
    "subagents",
]
if PROCESS == "worker":
    _ground.append("controlplane")  # it needs our Celery app, however it is started
INSTALLED_APPS = (
    _ground
    if LEAN
    else [
        "unfold.apps.BasicAppConfig",
        "unfold.contrib.filters",
        "unfold.contrib.simple_history",
        "controlplane.admin_config.AdminConfig",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "servestatic",
        "django.contrib.staticfiles",
        "simple_history",
        "django_htmx",
        "ninja",
        "controlplane",
        "mcpregistry",
        "subagents",
    ]
)

MIDDLEWARE = (
    []
    if LEAN
    else [
        "django.middleware.security.SecurityMiddleware",
        "servestatic.middleware.ServeStaticMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "mcpregistry.web.second_factor.middleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
        "simple_history.middleware.HistoryRequestMiddleware",
    ]
)

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.history.pages.latest",
            ]
        },
    }
]

DATABASES = {
    "default": settings_for(
        env.text("DATABASE_URL"), VAR_DIR, env.number("SLIPSNISSE_DATABASE_POOL", least=4)
    )
}
CONNECTIONS_PER_ADDRESS = env.number("SLIPSNISSE_CONNECTIONS_PER_ADDRESS")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTHENTICATION_BACKENDS = ["mcpregistry.web.second_factor.Backend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
    )
]
LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "admin:index"

LANGUAGE_CODE = "en-gb"
FORMAT_MODULE_PATH = "controlplane.formats"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG

DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024  # bytes of a request, over REST and MCP alike

# --- Behind a TLS proxy -------------------------------------------------------------------------
HTTPS = env.flag("SLIPSNISSE_HTTPS")
CSRF_TRUSTED_ORIGINS = MCP_ALLOWED_ORIGINS
CSRF_FAILURE_VIEW = "mcpregistry.web.error_pages.stale_form"
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
# another site on localhost, other port, would share the default name
SESSION_COOKIE_NAME = "slipsnisse"
X_FRAME_OPTIONS = "DENY"

# --- Logs ---------------------------------------------------------------------------------------
LOGGING_CONFIG = "controlplane.logging.configure"
LOGGING = {
    "level": env.choice("SLIPSNISSE_LOG_LEVEL", "DEBUG", "INFO", "WARNING", "ERROR"),
    "format": env.choice("SLIPSNISSE_LOG_FORMAT", "auto", "text", "json"),
    "process": PROCESS or "command",
}

# --- E-mail -------------------------------------------------------------------------------------
MAIL_CONFIGURED = bool(env.text("EMAIL_URL"))
vars().update(env.mail("EMAIL_URL") if MAIL_CONFIGURED else {})
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.text("SLIPSNISSE_MAIL_FROM")

# --- Background work ----------------------------------------------------------------------------
CELERY_BROKER_URL = env.text("CELERY_BROKER_URL") or embedded_broker.broker_url(VAR_DIR)
if CELERY_BROKER_URL.startswith("redis"):
    # With kombu's default throttle a lost worker's task is looked for only once in 100 s.
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "visibility_timeout": 900,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        # Whoever sends a task while the broker is away hears it at once, not after six seconds.
        "max_retries": 1,
        "interval_start": 0,
    }
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Celery's stand-in for stderr has no fileno(), without which no stdio server can be started.
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "controlplane.schedule:Clock"

# Clocks: task name -> seconds. Each looks at due rows, so a missed or doubled tick harms nothing.
TICKS = {
    "mcpregistry.tasks.check_due_servers": 15,
    "mcpregistry.tasks.run_ready": 2,
    "mcpregistry.tasks.reap": 10,
    "mcpregistry.tasks.sweep_installs": 30,
    "mcpregistry.tasks.count_usage": 60,
    "mcpregistry.tasks.count_calls": 300,
    "mcpregistry.tasks.analyze_access": 60,
    "mcpregistry.tasks.sync_due_registries": 60,
    "mcpregistry.tasks.deliver_notifications": 5,
    "mcpregistry.tasks.seal_audit": 30,
    "mcpregistry.tasks.verify_audit": 600,
    "mcpregistry.tasks.prune": 3600,
    "subagents.tasks.advance_due": 2,
    "subagents.tasks.sweep_headends": 15,
    "subagents.tasks.regulate_energy": 2,
    "subagents.tasks.try_due": 60,
    "subagents.tasks.propose_images": 600,
    "subagents.tasks.prune_runs": 3600,
}
# A tick that waited longer than its own interval has a successor: without expiry they pile up while
# no worker runs.
CELERY_BEAT_SCHEDULE = {
    task: {"task": task, "schedule": seconds, "options": {"expires": seconds}}
    for task, seconds in TICKS.items()
}
