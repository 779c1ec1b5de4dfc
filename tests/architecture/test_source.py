"""The source stays small, plain and free of what belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture.test_layers import module_of, sources
from tests.externals import ROOT
from tests.mutant_table import MUTANTS

MAX_FILE = 600  # lines; ruff checks the length of functions (PLR0915)
MOST_CLAUSES = 2  # of a comprehension
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "base_utils", "stuff"}


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [
        path
        for name in done.stdout.decode().split("\0")
        if name and (path := ROOT / name).is_file()
    ]


def texts() -> dict[str, str]:
    found = {}
    for path in tracked():
        raw = path.read_bytes()
        if b"\0" not in raw and path != Path(__file__):
            found[str(path.relative_to(ROOT))] = raw.decode()
    return found


# In Spanish and Portuguese it is a word: all.
SPANISH = ("tests/domain/scanner_corpus/", "mcpregistry/domain/definitions/orders/words/romance.py")


def test_no_file_is_long():
    long = {
        module_of(path): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > MAX_FILE
    }
    assert long == {}


def packed(node: ast.AST) -> str:
    """What makes a statement or an expression hard to read; "" if nothing does."""
    if isinstance(node, ast.Assign):
        if len(node.targets) > 1:
            return "two targets"
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names = {ast.unparse(each) for each in target.elts}
            is_swap = names == {ast.unparse(each) for each in node.value.elts}
            return "" if is_swap else "two assignments"
    if isinstance(node, ast.IfExp):
        inner = {
            type(each) for part in (node.test, node.body, node.orelse) for each in ast.walk(part)
        }
        return "a conditional expression within another" if ast.IfExp in inner else ""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        clauses = sum(1 + len(each.ifs) for each in node.generators)
        return "a comprehension with many clauses" if clauses > MOST_CLAUSES else ""
    return ""


def test_no_statement_is_packed():
    found = []
    for path in tracked():
        if path.suffix == ".py" and path.parent.name != "migrations":
            for node in ast.walk(ast.parse(path.read_text())):
                if problem := packed(node):
                    found.append(
                        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {problem}"
                    )
    assert found == []


def test_the_formatter_is_always_on():
    pattern = re.compile(r"#\s*(?:fmt|yapf):\s*(?:skip|off)")
    assert [
        name for name, text in texts().items() if name.endswith(".py") and pattern.search(text)
    ] == []


def test_no_string_stands_alone():
    """A line of a text without brackets around it is a statement of its own, and the text is cut
    there."""
    found = []
    for path in sources():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            documented = isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            )
            for number, line in enumerate(
                body if isinstance(body := getattr(node, "body", None), list) else []
            ):
                alone = isinstance(line, ast.Expr) and isinstance(
                    line.value, ast.Constant | ast.JoinedStr
                )
                text = alone and not (
                    isinstance(line.value, ast.Constant) and line.value.value is ...
                )
                found += (
                    [f"{module_of(path)}:{line.lineno}"]
                    if text and not (documented and number == 0)
                    else []
                )
    assert found == []


def test_no_room_has_a_vague_name():
    assert [
        str(path) for path in tracked() if path.suffix == ".py" and VAGUE & {path.stem, *path.parts}
    ] == []


def test_every_module_says_why_it_exists():
    silent = [
        module_of(path)
        for path in sources()
        if path.name not in ("__init__.py", "apps.py", "manage.py")
        and path.parent.name != "commands"  # these have help
        and path.read_text().strip()
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"files\.pythonhosted\.org|pypi\.org/simple|--index-url|--extra-index-url|registry\.npmjs\.org",
        r"(?<![\w/.])/(?:work|root)/\w",
        r"/home/(?!ann\b|user\b|you\b|me\b|alice\b|bob\b)\w+",
        r"(?i)\bTODO\b|\bFIXME\b|\bXXX\b",
        r"<<<<<<< |>>>>>>> ",
        r"BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY",
    ],
    ids=["package indexes", "machine paths", "homes", "leftovers", "conflicts", "keys"],
)
def test_nothing_of_one_machine_and_nothing_half_done_is_tracked(pattern: str):
    found = {
        f"{name}: {match[0]}"
        for name, text in texts().items()
        for match in re.finditer(pattern, text)
    }
    assert {
        mark for mark in found if not mark.startswith(SPANISH) or not mark.endswith(": todo")
    } == set()


def test_every_management_command_is_called_by_a_test():
    commands = [p for p in ROOT.glob("*/management/commands/*.py") if p.stem != "__init__"]
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert commands
    uncalled = [
        p.stem
        for p in commands
        if not re.search(rf"""call_command\(\s*["']{p.stem}["']|["']{p.stem}["'],?""", tests)
    ]
    assert uncalled == []


def test_long_reads_are_streamed():
    """A cursor of the database's own is lost behind a pooler of transactions, unless it is within
    one."""
    direct = [
        str(path) for path in sources() if ".iterator(" in path.read_text() and path.name != "db.py"
    ]
    assert direct == []


_UNESCAPED = re.compile(r"mark_safe|SafeString|SafeText|\|\s*safe\b|\bsafeseq\b|autoescape\s+off")


def test_nothing_is_marked_as_safe_html():
    """What pages show is escaped where it is put in; nobody vouches for a text as a whole.

    But for the documents: files of the release, rendered by us, in one place.
    """
    product = ("controlplane/", "mcpregistry/", "subagents/", "templates/")
    ours = {
        name: text
        for name, text in texts().items()
        if name.startswith(product) and name.endswith((".py", ".html"))
    }
    assert [name for name, text in ours.items() if _UNESCAPED.search(text)] == [
        "templates/docs/document.html"
    ]
    assert len(_UNESCAPED.findall(ours["templates/docs/document.html"])) == 1


def test_every_mutant_finds_the_line_that_it_breaks():
    assert [problem for mutant in MUTANTS if (problem := mutant.problem(ROOT))] == []
