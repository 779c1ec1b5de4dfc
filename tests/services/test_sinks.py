"""Seals that are kept outside show what the database itself no longer can."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from mcpregistry import tasks
from mcpregistry.models import AuditEntry, AuditSeal
from mcpregistry.services.records import audit, sinks
from tests.fakes.tampered import seal, sealed_anew, unguarded
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(tmp_path: Path, settings) -> Path:
    """A file that has the first three seals of a site."""
    settings.AUDIT_FILE = str(tmp_path / "seals.jsonl")
    sealed_anew()
    sinks.deliver_seals()
    for number in range(2):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
        assert seal(10 - number) is not None
        sinks.deliver_seals()
    return Path(settings.AUDIT_FILE)


def numbers(file: Path) -> list[int]:
    return [
        json.loads(json.loads(line)["seal"])["number"] for line in file.read_text().splitlines()
    ]


def compared(file: Path) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("audit", "verify", "--against", str(file), stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_the_file_has_each_seal_once_in_order_and_is_closed_to_others(kept):
    sinks.deliver_seals()
    assert numbers(kept) == [1, 2, 3]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert compared(kept)[0] == 0


def test_the_clock_seals_and_hands_over(kept):
    audit.record_entry(kind="test", actor="ann", subject="x")
    tasks.seal_audit()
    assert numbers(kept) == [1, 2, 3, 4]


def test_a_line_that_a_crash_broke_off_is_written_again(kept):
    whole = kept.read_bytes()
    kept.write_bytes(whole[: -len(whole.splitlines()[-1]) // 2])
    assert sinks.deliver_to_file(str(kept)) == 1
    lines = kept.read_text().splitlines()
    assert json.loads(json.loads(lines[-1])["seal"])["number"] == 3
    with pytest.raises(CommandError, match="neither an export"):
        compared(kept)
    kept.write_text("".join(f"{line}\n" for line in lines if line.endswith("}")))
    assert compared(kept)[0] == 0


def test_a_line_may_be_longer_than_what_is_read_at_once(kept):
    with unguarded():
        heads = {f"web:{number}": [1, "a" * 64] for number in range(3_000)}
        body = json.dumps({"number": 4, "heads": heads})
        AuditSeal.objects.filter(number=3).update(body=body, number=4)
    assert len(body) > 128 * 1024
    assert [sinks.deliver_to_file(str(kept)), sinks.deliver_to_file(str(kept))] == [1, 0]


@pytest.mark.attack
def test_a_file_of_something_else_is_not_written_to(kept, settings):
    kept.write_text("hello\n")
    sinks.deliver_seals()
    assert kept.read_text() == "hello\n"
    settings.AUDIT_FILE = str(kept / "under" / "a" / "file")
    sinks.deliver_seals()


@pytest.mark.attack
def test_a_database_that_was_put_back_is_found(kept):
    """An earlier state of everything holds in itself."""
    with unguarded():
        AuditSeal.objects.filter(number=3).delete()
        AuditEntry.objects.filter(seq=2).delete()
    code, said = compared(kept)
    assert code == 1
    assert "Checkpoint 3 is in the file, but is missing from the database." in said
    assert "configuration #2: a checkpoint covers it, but it is missing" in said


@pytest.mark.attack
def test_a_log_that_was_written_anew_with_the_key_is_found(kept):
    with unguarded():
        AuditEntry.objects.all().delete()
    sealed_anew()
    for number in range(2):
        audit.record_entry(kind="test", actor="eve", subject="x", number=number)
        assert seal(10 - number) is not None
    code, said = compared(kept)
    assert code == 1
    assert "Checkpoint 2 is in the file, but was changed in the database." in said
    assert "configuration #2: a checkpoint covers it, but it was changed" in said


@pytest.mark.attack
def test_a_forged_line_is_told(kept):
    line = json.loads(kept.read_text().splitlines()[-1])
    line["seal"] = line["seal"].replace('"number":3', '"number":9')
    kept.write_text(kept.read_text() + json.dumps(line) + "\n")
    assert "Checkpoint 9 of the file does not match its signature." in compared(kept)[1]


# syslog


@pytest.fixture
def syslog(tmp_path: Path, settings):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        server.settimeout(HANG_LIMIT)
        settings.AUDIT_SYSLOG = str(tmp_path / "log")
        yield server


def test_syslog_gets_each_signature_once(kept, syslog, settings):
    sinks.deliver_seals()
    got = [syslog.recv(65_536).decode() for _ in range(3)]
    for each, line in zip(AuditSeal.objects.order_by("number"), got, strict=True):
        assert f"audit seal {each.number} at " in line
        assert each.hash in line
    assert sinks.deliver_to_syslog(settings.AUDIT_SYSLOG) == 0


def test_a_syslog_that_was_away_gets_what_it_lacks(kept, syslog, settings):
    os.rename(settings.AUDIT_SYSLOG, f"{settings.AUDIT_SYSLOG}.away")
    sinks.deliver_seals()
    os.rename(f"{settings.AUDIT_SYSLOG}.away", settings.AUDIT_SYSLOG)
    assert sinks.deliver_to_syslog(settings.AUDIT_SYSLOG) == 3


def test_addresses_of_syslog():
    assert sinks.parse_syslog_address("/dev/log") == "/dev/log"
    assert sinks.parse_syslog_address("udp://[::1]:5140") == ("::1", 5140)
    assert sinks.parse_syslog_address("udp://log.example.org") == ("log.example.org", 514)
    with pytest.raises(ValueError, match="must be a path such as /dev/log"):
        sinks.parse_syslog_address("tcp://x")
