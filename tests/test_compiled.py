"""Modules that are compiled before a run are those that pytest would compile itself."""

from __future__ import annotations

from pathlib import Path

from _pytest.assertion.rewrite import _read_pyc

from tests import compiled


def test_pytest_reads_what_was_compiled(tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text("def test_it():\n    assert 1 == 2\n")
    compiled.rewrite(module)
    code = _read_pyc(module, compiled.compiled_path(module))
    assert code is not None
    assert "@pytest_ar" in code.co_names, "its assertions are rewritten"


def test_module_that_was_changed_is_compiled_again(tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text("first = 1\n")
    compiled.rewrite(module)
    module.write_text("second = 1\n")
    assert _read_pyc(module, compiled.compiled_path(module)) is None
    compiled.rewrite(module)
    code = _read_pyc(module, compiled.compiled_path(module))
    assert code is not None
    assert "second" in code.co_names


def test_module_that_cannot_be_compiled_is_left_to_pytest(tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text("def broken(:\n")
    compiled.rewrite(module)
    assert not compiled.compiled_path(module).exists()


def test_tests_and_their_fixtures_are_compiled() -> None:
    here = Path(__file__).parent
    assert {Path(__file__), here / "conftest.py"} <= {*compiled.rewritten_modules(here)}
