"""The pictures of the docs, taken anew from the real pages: ``make pictures``.

A site of its own is filled as tests fill one (``tests/fakes``), served, and looked at by a browser.
What comes out is looked at by a person before it is committed: faces of pages change slowly, and a
picture that is the same is not written anew.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE = (1280, 860)
PHONE = (390, 844)


@dataclass(frozen=True, slots=True)
class Picture:
    """One file of ``docs/images``: the page's address, made when there are rows; ``whole``: also
    what is scrolled to."""

    name: str
    address: Callable[[], str]
    who: str = "root"
    size: tuple[int, int] = WIDE
    whole: bool = False


def _named(url: str, **query: str) -> Callable[[], str]:
    from django.urls import reverse
    from django.utils.http import urlencode

    return lambda: reverse(url) + (f"?{urlencode(query)}" if query else "")


def _server() -> str:
    from django.urls import reverse

    from mcpregistry.models import Server

    return reverse("admin:mcpregistry_server_change", args=[Server.objects.get(slug="github").pk])


def _held() -> str:
    from django.urls import reverse

    from mcpregistry.models import ApprovalRequest

    held = ApprovalRequest.objects.filter(call__tool_name="git_push", decided_at=None, quorum=2)
    return reverse("approvals:detail", args=[held.latest("asked_at").pk])


def _run() -> str:
    from django.urls import reverse

    from subagents.models import Run

    return reverse(
        "admin:subagents_run_change", args=[Run.objects.exclude(answer="").latest("created_at").pk]
    )


def _project_file() -> str:
    from django.urls import reverse

    from mcpregistry.models import ProjectFile

    return reverse("admin:mcpregistry_projectfile_confirm", args=[ProjectFile.objects.get().pk])


def _version() -> str:
    from django.urls import reverse

    from mcpregistry.models import PolicyRule

    first = PolicyRule.history.filter(name="Pushes ask").earliest("history_date")
    return reverse("history-version", args=["mcpregistry.policyrule", first.history_id])


PICTURES = (
    Picture("dashboard", _named("admin:index"), size=(1280, 900)),
    Picture("server", _server),
    Picture("add-server", _named("admin:mcpregistry_server_set_up")),
    Picture(
        "connect",
        _named("connect", host="claude-code", way="http", agent="local", endpoint="default"),
    ),
    Picture("definitions", _named("definitions:inbox"), who="approver", size=(1280, 1_000)),
    Picture("approvals", _named("approvals:queue"), who="approver"),
    Picture("approval", _held, who="approver", whole=True),
    Picture("approvals-phone", _held, who="approver", size=PHONE, whole=True),
    Picture("access", _named("who")),
    Picture("context-bill", _named("context-bill", agent="local", endpoint="default")),
    Picture("usage", _named("usage:index", period="7d")),
    Picture("run", _run, size=(1280, 900)),
    Picture("version", _version),
    Picture("project-file", _project_file, size=(1280, 620)),
)


def main(names: list[str]) -> int:
    """Take all, or those that are named."""
    unknown = set(names) - {each.name for each in PICTURES}
    if unknown:
        print(f"There is no picture {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="slipsnisse-pictures-") as folder:
        _set_up(folder)
        with _served() as base, _browser() as browser:
            for picture in PICTURES:
                if not names or picture.name in names:
                    _take(browser, base, picture)
    return 0


def _set_up(folder: str) -> None:
    os.environ |= {
        "SLIPSNISSE_VAR": folder,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
        "CELERY_BROKER_URL": "memory://",
        "SLIPSNISSE_LOG_LEVEL": "ERROR",
    }
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    from mcpregistry.services.records import call_hours
    from tests.fakes.held import showcase
    from tests.fakes.seed import govern

    call_command("migrate", verbosity=0)
    govern(showcase())
    _told_run()
    _reworded_rule()
    _failures_with_words()
    _sent_messages()
    call_hours.count_due(timezone.now())


def _told_run() -> None:
    """A run of an expert tool with something to see."""
    from django.utils import timezone

    from subagents.domain.lifecycle import CallState
    from subagents.models import ExpertTool, Run, ToolCall, Turn

    run = Run.objects.exclude(answer="").get()
    at = timezone.now() - timedelta(seconds=9)
    answer = "Three commits since Monday: the retry budget per server, the old exporter dropped, and a flaky test mended."
    Run.objects.filter(pk=run.pk).update(
        answer=answer,
        created_at=at,
        started_at=at,
        finished_at=at + timedelta(seconds=6.4),
        input_tokens=3_540,
        output_tokens=128,
        cost=Decimal("0.0008"),
    )
    ExpertTool.objects.update(description="Reads a repository and tells what is new.")
    for number, text in enumerate(("", answer), 1):
        Turn.objects.create(
            run=run,
            number=number,
            model_name="small",
            text=text,
            finish="stop" if text else "calls",
            duration_ms=1_900,
            started_at=at + timedelta(seconds=4.2 * (number - 1)),
            input_tokens=1_180 * number,
            output_tokens=64,
            cost=Decimal("0.0004"),
        )
    for index, (name, took) in enumerate((("git__git_status", 0.4), ("git__git_log", 1.7))):
        ToolCall.objects.create(
            run=run,
            turn_number=1,
            index=index,
            provider_id=f"p{index}",
            name=name,
            arguments='{"since": "Monday"}',
            state=CallState.DONE,
            result="…",
            raw_characters=24_000,
            started_at=at + timedelta(seconds=2),
            finished_at=at + timedelta(seconds=2 + took),
        )


def _reworded_rule() -> None:
    from mcpregistry.models import PolicyRule
    from mcpregistry.services.policy import rules
    from tests.fakes.seed import ACTOR

    rule = PolicyRule.objects.get(name="Pushes ask")
    rule.condition = 'tool.name.startsWith("git_push")'
    rule.quorum = 2
    rule.note = "Two people, since the release."
    rules.save_rule(rule=rule, actor=ACTOR)
    PolicyRule.history.update(history_change_reason="admin")


def _failures_with_words() -> None:
    """What real servers say when they fail, and grants that are old enough to tell what is never
    used."""
    import json

    from django.utils import timezone

    from mcpregistry.models import Grant, Invocation, Tool

    words = {
        "get_current_time": "Unknown time zone 'Europe/Osslo'.",
        "git_push": "rejected: fetch first",
        "git_status": "index.lock exists: another process uses the repository",
        "git_commit": "nothing to commit",
        "explain_query": 'relation "order" does not exist',
        "list_pull_requests": "API rate limit exceeded",
    }
    for tool, said in words.items():
        told = json.dumps({"content": [{"type": "text", "text": said}], "isError": True})
        Invocation.objects.filter(tool_name=tool).exclude(error_code="").update(result=told)
    long_ago = timezone.now() - timedelta(days=90)
    Grant.objects.update(created_at=long_ago)
    Tool.objects.update(first_seen_at=long_ago)
    Invocation.objects.filter(
        tool_name__in=["convert_time", "git_diff", "search_code"], agent_slug="local"
    ).delete()


def _sent_messages() -> None:
    """There is no worker here; a site that has one has sent its notifications."""
    from django.utils import timezone

    from mcpregistry.models import Delivery

    Delivery.objects.filter(state="waiting").update(
        state="sent", ended_at=timezone.now(), next_at=None
    )


@contextmanager
def _served() -> Iterator[str]:
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.db import connections
    from django.test.testcases import LiveServerThread

    from tests.waiting import HANG_LIMIT

    thread = LiveServerThread("localhost", StaticFilesHandler, connections_override={})
    thread.daemon = True
    thread.start()
    assert thread.is_ready.wait(HANG_LIMIT)
    if thread.error:
        raise thread.error
    yield f"http://localhost:{thread.port}"
    thread.terminate()
    connections.close_all()


@contextmanager
def _browser() -> Iterator[Any]:
    from tests import externals

    with externals.chromium() as browser:
        yield browser


def _take(browser: Any, base: str, picture: Picture) -> None:
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username=picture.who))
    width, height = picture.size
    context = browser.new_context(
        base_url=base,
        viewport={"width": width, "height": height},
        reduced_motion="reduce",
        color_scheme="light",
    )
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": base}])
    window = context.new_page()
    window.goto(picture.address(), wait_until="load")
    window.evaluate("document.fonts.ready")
    file = IMAGES / f"{picture.name}.png"
    window.screenshot(path=str(file), full_page=picture.whole)
    context.close()
    print(f"{file.name}: {file.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
