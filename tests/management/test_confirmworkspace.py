"""``manage.py confirmworkspace`` as a person uses it in a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from mcpregistry.models import ProjectFile

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("confirmworkspace", *words, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def write(directory: Path, command: str) -> None:
    (directory / ".mcp.json").write_text(json.dumps({"mcpServers": {"git": {"command": command}}}))


def test_a_person_types_what_was_shown_or_gives_it_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "uvx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandError, match="does not contain a configuration file"):
        run(str(tmp_path / "empty"))
    shown = run(str(tmp_path), "--show")
    assert "git: uvx" in shown
    content = ProjectFile.objects.get().content
    assert f"Content hash {content}, state: waiting." in shown
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    with pytest.raises(CommandError, match="changed after you opened it"):
        run(str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda _: content[:12])
    assert "Confirmed." in run(str(tmp_path))
    assert "already confirmed" in run(str(tmp_path))
    assert "starting" in run("--list")
    write(tmp_path, "npx")
    with pytest.raises(CommandError, match="changed after you opened it"):
        run(str(tmp_path), "--hash", content)
    assert "was revoked" in run(str(tmp_path), "--take-back")
    assert not ProjectFile.objects.get().confirmed


def test_without_an_answer_nothing_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "uvx")

    def ended(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    with pytest.raises(CommandError, match="--hash"):
        run(str(tmp_path))
    (tmp_path / ".mcp.json").write_text("{")
    with pytest.raises(CommandError, match=r"\.mcp\.json"):
        run(str(tmp_path))
    assert not ProjectFile.objects.get().confirmed
