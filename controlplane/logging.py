"""Logs of every process, always on stderr: text on a terminal, one JSON object per line otherwise.

Invariant: no secret reaches a log; ``mcpregistry.domain.text.redaction.mask_log_event`` says what
is taken for one.
"""

from __future__ import annotations

import logging
import logging.config
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from controlplane.light_structlog import structlog
from mcpregistry.domain.text.redaction import mask_log_event

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_NAME = re.compile(r"[a-z_.]+")  # of an event that is not a sentence


def scrub(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: masks secrets by key and by shape."""
    return mask_log_event(event)


def hide_query(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: replaces the request that Django adds to a record with its method and
    path.

    The query can hold text that people typed, for example guesses at a secret in the filter of a
    list.
    """
    request = event.get("request")
    if request is not None and not isinstance(request, str):
        event["request"] = (
            f"{getattr(request, 'method', '')} {getattr(request, 'path', '')}".strip()
        )
    return event


def configure(options: dict[str, str]) -> None:
    """Django calls this with ``settings.LOGGING``: ``level``, ``format`` (auto, text, json),
    ``process``."""
    as_text = options["format"] == "text" or (options["format"] == "auto" and sys.stderr.isatty())
    shared = _build_shared_processors(options["process"])
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(
        _configure_standard_library(
            options["level"], shared, _build_renderers(as_text), as_text=as_text
        )
    )
    logging.captureWarnings(True)


def _build_shared_processors(process: str) -> list[Processor]:
    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_process,
    ]


def _build_renderers(as_text: bool) -> list[Processor]:
    if as_text:
        plain = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ,
            exception_formatter=structlog.dev.plain_traceback,
            pad_event_to=0,
            pad_level=False,
        )
        return [readable, structlog.processors.format_exc_info, scrub, plain]
    return [
        structlog.processors.format_exc_info,
        scrub,
        structlog.processors.JSONRenderer(default=repr),
    ]


def readable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor for a terminal: a request becomes one sentence, and what its reader
    knows is left out."""
    shown = {
        key: value for key, value in event.items() if value not in ("", None) and key != "process"
    }
    shown["timestamp"] = event["timestamp"][11:19]
    if event.get("level") == "info":  # the rest says where to look and how grave it is
        shown.pop("level")
        shown.pop("logger", None)
    if "path" in event and "ms" in event:
        method = event["event"]
        status = event.get("status") or "no answer"
        shown["event"] = f"{method} {shown.pop('path')}: {status}, {shown.pop('ms'):,.0f} ms"
        shown.pop("status", None)
        if (event.get("status") or 500) < 500:  # the id finds other lines about a failure
            shown.pop("request_id", None)
    elif _NAME.fullmatch(str(event["event"])):
        shown["event"] = re.sub(r"[._]", " ", event["event"])
    return shown


def is_static(record: logging.LogRecord) -> bool:
    """Whether the record is about a file of a page that was sent as it should be."""
    said = record.msg if isinstance(record.msg, dict) else {}
    return str(said.get("path", "")).startswith("/static/") and (said.get("status") or 500) < 400


class _WithoutStatic(logging.Filter):
    """On a terminal the files of a page hide the page."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not is_static(record)


def _configure_standard_library(
    level: str, shared: list[Processor], renderers: list[Processor], *, as_text: bool
) -> dict[str, Any]:
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": [structlog.stdlib.ExtraAdder(), hide_query, *shared],
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    }
    quiet = {"handlers": [], "level": "WARNING", "propagate": True}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structlog": formatter},
        "filters": {"without_static": {"()": _WithoutStatic}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "structlog",
                "filters": ["without_static"] if as_text else [],
            }
        },
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            # Our own access log says it already; below a warning these only repeat themselves.
            "django.server": quiet,
            "django.request": {"handlers": [], "level": "ERROR", "propagate": True},
            "uvicorn": quiet,
            "celery.beat": quiet,
            "celery.worker.strategy": quiet,
            "celery.app.trace": quiet,
            "httpx2": quiet,
            "mcp": quiet,
        },
    }
