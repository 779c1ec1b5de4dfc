"""What verifying and archiving the audit log costs: 50,000 calls with two entries each, by ten
processes, on a database of its own.

python -m benchmarks.audit [CALLS]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

WRITERS = 10
BATCH = 500


def main(calls: int) -> None:
    """Write the calls as the recorder does, then verify: first, again, after 1,000 more calls, and
    in full. Then archive."""
    write(calls)
    seal()
    took("the first time, everything", verify)
    took("again, nothing new", verify)
    write(1_000, writer="new")
    seal()
    took("after 1,000 more calls", verify)
    took("--full", lambda: verify(full=True))
    took("a checkpoint, nothing new", seal)
    forget()
    seal()
    with tempfile.TemporaryDirectory(prefix="slipsnisse-archive-") as folder:
        took("archive", lambda: archive(Path(folder)))
        size = sum(path.stat().st_size for path in Path(folder).glob("*.gz"))
        print(
            f"{'':<30}{size / 1e6:8.1f} MB in files; longest transaction: {max(_transactions):.2f} s"
        )
        took("verify", verify)
        took("verify with the files", lambda: verify(folder=folder))


_transactions = [0.0]


def forget() -> None:
    """What retention does once the calls are old enough."""
    from django.db import connection

    from mcpregistry.services.records import audit

    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM mcpregistry_invocation")
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    audit.record_entry(
        kind="calls.forgotten",
        actor="x",
        subject="retention",
        calls_before=later,
        payloads_before=later,
    )


def archive(folder: Path) -> Any:
    from mcpregistry.services.records import archiving

    move = archiving._move

    def timed(*given: Any) -> None:
        began = time.perf_counter()
        move(*given)
        _transactions.append(time.perf_counter() - began)

    archiving._move = timed
    moved = archiving.archive_entries(
        datetime.now(UTC) + timedelta(days=100), timedelta(days=90), folder, lambda said: None
    )
    print(f"{'':<30}{moved.entries:,} entries of {moved.chains} chains in {len(moved.files)} files")


def took(what: str, do: Callable[[], Any]) -> None:
    """Print how long it takes."""
    began = time.perf_counter()
    cpu = time.process_time()
    found = do()
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    read = (
        f"{found.entries:,} entries read, {len(found.problems)} problems"
        if hasattr(found, "entries")
        else ""
    )
    print(f"{what:<30}{seconds:8.2f} s   {cpu:6.2f} s of CPU   {read}")


def seal() -> None:
    from mcpregistry.services.records import seals

    seals.seal_new_entries(datetime.now(UTC))


def verify(*, full: bool = False, folder: str = "") -> Any:
    from mcpregistry.services.records import archive_files, archives, verification

    known = archives.load_archives()
    if folder:
        print(*archive_files.verify_archive_files([folder], known))
    return verification.verify_log(datetime.now(UTC), full=full, known=known)


def write(calls: int, writer: str = "web") -> None:
    from mcpregistry.calls.recording.recorder import Recorder
    from mcpregistry.calls.recording.recorder_items import RecorderItem

    began = time.perf_counter()
    cpu = time.process_time()
    number = 0
    for each in range(WRITERS):
        recorder = Recorder(f"{writer}{each}")
        for start in range(0, calls // WRITERS, BATCH):
            batch = [
                item
                for place in range(start, min(start + BATCH, calls // WRITERS))
                for item in one_call(RecorderItem, f"{writer}{each}-{place}")
            ]
            recorder._commit(batch)
            number += len(batch)
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    print(
        f"{'writing':<30}{seconds:8.2f} s   {cpu:6.2f} s of CPU   {number:,} entries, {cpu / number * 1e6:.0f} µs each"
    )


def one_call(item: Any, name: str) -> list[Any]:
    from mcpregistry.services.records.audit import AuditFact

    now = datetime.now(UTC)
    call = f"{name:0>32}"
    identity = {
        "id": call,
        "agent_slug": "local",
        "endpoint_slug": "default",
        "server_slug": "git",
        "tool_name": "git_status",
        "exposed_name": "git__git_status",
        "definition_hash": "d" * 64,
        "binding": "b" * 64,
        "arguments": '{"path":"/srv/repository"}',
        "outcome": "allow",
        "reason": "A rule allows it.",
        "origin": "http",
        "host_name": "claude-code",
        "requester": "",
        "requester_id": None,
        "request_id": "",
        "received_at": now,
        "server_revision": 1,
        "state": "dispatched",
        "dispatched_at": now,
        "lease_until": now + timedelta(seconds=60),
    }
    end = {
        "id": call,
        "before": "dispatched",
        "fence": 0,
        "keep": False,
        "state": "succeeded",
        "reason": "",
        "error_code": "",
        "result": {"content": [{"type": "text", "text": "x" * 200}]},
        "finished_at": now,
        "duration_ms": 1.5,
        "warning": "",
    }
    about = {"tool": "git::git_status", "binding": "b" * 64, "decision": "allow"}
    return [
        item(AuditFact("call.dispatched", "local", f"call:{call}", about), begin=identity),
        item(
            AuditFact(
                "call.succeeded",
                "local",
                f"call:{call}",
                {**about, "state": "succeeded", "error": ""},
            ),
            end=end,
        ),
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slipsnisse-audit-") as var:
        os.environ |= {"SLIPSNISSE_VAR": var, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        os.environ.pop("DATABASE_URL", None)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
