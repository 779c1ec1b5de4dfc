"""Settings of the site. Every value a deployment may change comes from ``controlplane/env.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from controlplane import env, keys
from controlplane.databases import settings_for

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(env.text("SLIPSNISSE_VAR")) if env.text("SLIPSNISSE_VAR") else BASE_DIR / "var"
VAR_DIR = VAR_DIR if VAR_DIR.is_absolute() else BASE_DIR / VAR_DIR

# Which process this is: "" (web, commands), "runmcp" (lean: a host is waiting), "worker".
PROCESS = os.environ.get("SLIPSNISSE_PROCESS", "")
LEAN = PROCESS == "runmcp"

_ring = keys.load(VAR_DIR)
SECRET_KEY = _ring.secret_key
SLIPSNISSE_KEYS = _ring.sealing

DEBUG = env.flag("SLIPSNISSE_DEBUG")
ALLOWED_HOSTS = env.words("SLIPSNISSE_HOSTS")
SITE_URL = env.text("SLIPSNISSE_URL").rstrip("/")
MCP_ALLOWED_ORIGINS = [SITE_URL, *env.words("SLIPSNISSE_ORIGINS")]
STDIO_ENABLED = env.flag("SLIPSNISSE_STDIO")

_ground = ["django.contrib.auth", "django.contrib.contenttypes", "simple_history", "mcpregistry"]
INSTALLED_APPS = (
    _ground
    if LEAN
    else [
        "unfold",
        "unfold.contrib.filters",
        "unfold.contrib.simple_history",
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "servestatic",
        "django.contrib.staticfiles",
        "simple_history",
        "ninja",
        "controlplane",
        "mcpregistry",
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
            ]
        },
    }
]

DATABASES = {"default": settings_for(env.text("DATABASE_URL"), VAR_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "admin:login"

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG
