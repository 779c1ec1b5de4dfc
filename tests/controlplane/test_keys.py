"""Keys are made once, whoever comes first, and nobody else may read them."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from controlplane import keys
from tests.externals import ROOT
from tests.waiting import HANG_LIMIT

_KEY = base64.b64encode(bytes(32)).decode()


def test_processes_that_start_at_once_agree_on_one_key_file(tmp_path):
    var = tmp_path / "var"
    code = "import sys; from pathlib import Path; from controlplane import keys; print(keys.load(Path(sys.argv[1])).secret_key)"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(var)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    answers = {racer.communicate(timeout=HANG_LIMIT)[0] for racer in racers}
    assert len(answers) == 1
    assert len(answers.pop().strip()) > 50
    assert [path.name for path in var.iterdir()] == ["keys.json"]


def test_folder_and_file_are_closed_to_others_under_any_umask(tmp_path):
    before = os.umask(0)
    try:
        keys.load(tmp_path / "var")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "var").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "var/keys.json").stat().st_mode) == 0o600


def test_no_file_is_made_when_both_keys_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSNISSE_SECRET_KEY", "s" * 50)
    monkeypatch.setenv("SLIPSNISSE_KEYS", f"k2:{_KEY},k1:{_KEY}")
    ring = keys.load(tmp_path / "var")
    assert list(ring.sealing) == ["k2", "k1"]
    assert list(ring.audit) == ["ring.k2", "ring.k1"]
    assert not (tmp_path / "var").exists()


@pytest.mark.parametrize(
    "ring", [f"k1:{_KEY[:-6]}", f":{_KEY}", "k1:not base64!", f"k1:{_KEY},k1:{_KEY}", "k1:c2hvcnQ="]
)
def test_a_bad_ring_is_refused_without_quoting_it(tmp_path, monkeypatch, ring):
    monkeypatch.setenv("SLIPSNISSE_KEYS", ring)
    with pytest.raises(ImproperlyConfigured) as refusal:
        keys.load(tmp_path)
    assert "SLIPSNISSE_KEYS" in str(refusal.value)
    assert ring not in str(refusal.value)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"secret_key": "x"}', "\x00"])
def test_a_damaged_key_file_is_never_replaced_in_silence(tmp_path, content):
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(ImproperlyConfigured, match="Restore the file from a backup"):
        keys.load(tmp_path)
    assert (tmp_path / "keys.json").read_text() == content


def test_a_ring_never_shows_its_keys(tmp_path):
    ring = keys.load(tmp_path)
    assert ring.secret_key not in repr(ring)


def test_the_audit_log_has_keys_of_its_own(tmp_path, monkeypatch):
    derived = keys.load(tmp_path).audit["ring.k1"]
    assert len(derived) == 32
    assert derived != keys.load(tmp_path).sealing["k1"]
    monkeypatch.setenv("SLIPSNISSE_AUDIT_KEYS", f"a1:{_KEY}")
    assert keys.load(tmp_path).audit == {"a1": bytes(32), "ring.k1": derived}
    monkeypatch.setenv("SLIPSNISSE_AUDIT_KEYS", f"ring.k1:{_KEY}")
    with pytest.raises(ImproperlyConfigured, match="Choose another id"):
        _ = keys.load(tmp_path).audit
