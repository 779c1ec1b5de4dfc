"""First lines of scripts: what the kernel would start is opened to a server, and nothing else that
a line can name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from mcpregistry.domain.errors import ConfigInvalid, ConnectionFailed
from mcpregistry.domain.servers.target import Sandbox
from mcpregistry.downstream.transports.sandbox import build_policy, find_needed_files
from mcpregistry.downstream.transports.script_interpreters import (
    MOST_INTERPRETERS,
    parse_first_line,
)
from tests.downstream.conftest import Bench
from tests.downstream.test_sandbox import confined, not_started
from tests.fakes.targets import SERVERS, stdio_target

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the site's user that is marked executable, as a server or an installation could
    have marked it."""
    file = tmp_path / "site" / "keys.json"
    file.parent.mkdir()
    file.write_text('{"secret_key": "x"}')
    file.chmod(0o700)
    return file


@pytest.fixture
def scripts(tmp_path: Path) -> Callable[[bytes], Path]:
    """``scripts(line)``: a script of a package with this first line."""
    folder = tmp_path / "package"
    folder.mkdir()

    def write(line: bytes) -> Path:
        file = folder / "run"
        file.write_bytes(line)
        file.chmod(0o700)
        return file

    return write


def opened(script: Path, path: str, hidden: tuple[str, ...] = ()) -> list[str]:
    """The places that a server with this script may read, as the launcher is told."""
    sandbox = Sandbox(home=str(script.parent.parent / "home"), hidden=hidden)
    lines = build_policy(
        stdio_target("probe", argv=(str(script),), sandbox=sandbox), sandbox, path
    ).split("\n")
    return [line[1:] for line in lines if line.startswith("r")]


def unusual(named: str) -> Iterator[str]:
    """First lines that name a file in every way in which some program could be brought to read
    it."""
    flags = (
        "-S",
        "-i",
        "-u",
        "-S -u",
        "-vS",
        "--split-string=-u",
        "--unset",
        "-C",
        "--chdir",
        "--",
        "-",
        "-iS",
        "-S -C",
    )
    for env, flag in product(
        ("/usr/bin/env", "/bin/env", "//usr//bin/env", "/usr/bin/../bin/env"), flags
    ):
        yield f"#!{env} {flag} {named} {PYTHON}"
        yield f"#! {env}\t{flag}\t{named}"
    for env in ("/usr/bin/env", "env", "/bin/env"):
        yield from (
            f"#!{env} {words}"
            for words in (named, f"A=1 {named}", f"A={named} python3", f"{named} -u", f"../{named}")
        )
    for blank, end in product(
        ("", " ", "\t", " \t ", "  "), ("", " ", " -u", "\t-x y", "\r", "\0", "\x0b", " \0x")
    ):
        yield f"#!{blank}{named}{end}"
    for interpreter in (PYTHON, "/bin/sh", "/usr/bin/python3"):
        for words in (
            named,
            f"-u {named}",
            f"-c {named}",
            f"\t{named}",
            f"{named}\0",
            f"--x={named}",
            f"{named} {named}",
        ):
            yield f"#!{interpreter} {words}"
    yield from (
        f"#!{'x' * 250}{named}",
        f"#!{' ' * 300}{named}",
        f"#!/{'y/' * 120}..{named}",
        f"#!{named}/",
        f"#!{named}/.",
    )
    yield from (
        f"#!'{named}'",
        f'#!"{named}"',
        f"#!~{named}",
        f"#!$HOME/{named}",
        f"#!${{HOME}}{named}",
        f"#!file://{named}",
    )
    yield from (
        f"#!/proc/self/root{named}",
        f"#!/proc/1/root{named}",
        f"#!/dev/fd/../..{named}",
        f"#!/usr/..{named}",
    )
    yield from (
        f"\ufeff#!{named}",
        f"\n#!{named}",
        f" #!{named}",
        f"#\n!{named}",
        f"#!\n{named}",
        f"#!\r\n{named}",
        f"#! !{named}",
    )
    yield from (
        f"#!/lib64/ld-linux-x86-64.so.2 {named}",
        f"#!/usr/bin/nice {named}",
        f"#!/usr/bin/setsid {named}",
        f"#!:{named}",
    )


@pytest.mark.exhaustive
@pytest.mark.attack
def test_no_first_line_opens_a_file_that_it_names(
    secret: Path, scripts: Callable[[bytes], Path]
) -> None:
    lines = [*unusual(str(secret))]
    assert len(lines) >= 200
    path = os.pathsep.join(["/usr/bin", "/bin"])
    for line, ending in product(lines, ("\n", "\nprint(1)\n", "")):
        script = scripts((line + ending).encode())
        try:
            places = [
                *opened(script, path),
                *opened(script, path, hidden=(str(secret.parent),)),
                *find_needed_files(str(script), "", path),
            ]
        except ConfigInvalid:
            continue
        found = [
            each
            for each in places
            if os.path.realpath(each) == str(secret) or str(secret).startswith(f"{each}/")
        ]
        assert not found, (line, found)


@pytest.mark.attack
@pytest.mark.parametrize("line", ["#!{0}", "#! {0} -u", "#!/usr/bin/env keys.json"])
def test_a_program_of_the_sites_own_folder_is_no_interpreter(
    secret: Path, scripts: Callable[[bytes], Path], line: str
) -> None:
    secret.write_bytes(b"\x7fELF of the site")
    script = scripts(line.format(secret).encode())
    assert str(secret) in opened(script, str(secret.parent))
    with pytest.raises(ConfigInvalid, match="belongs to this site"):
        opened(script, str(secret.parent), hidden=(str(secret.parent),))


@pytest.mark.attack
def test_the_sites_own_folder_is_no_program_also_behind_a_link(
    secret: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(secret)
    for program in (secret, tmp_path / "link", secret.parent / ".." / "site" / "keys.json"):
        with pytest.raises(ConfigInvalid, match="belongs to this site"):
            opened(program, "", hidden=(str(secret.parent),))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("#!/bin/sh", ("/bin/sh", "")),
        ("#!  /bin/sh  -e  ", ("/bin/sh", "-e")),
        ("#!\t/bin/sh\t-e -x\nrest", ("/bin/sh", "-e -x")),
        ("#!/usr/bin/env python3 -u\n", ("/usr/bin/env", "python3 -u")),
        (f"#!/bin/sh {'a' * 300}", ("/bin/sh", "a" * 246)),
        (f"#!/{'a' * 252}\n", (f"/{'a' * 252}", "")),
    ],
)
def test_a_first_line_is_read_as_the_kernel_reads_it(line: str, found: tuple[str, str]) -> None:
    assert parse_first_line(line.encode(), "x") == found


@pytest.mark.parametrize(
    "line",
    [
        "#!",
        "#! \t \n/bin/sh",
        f"#!/{'a' * 253}\n",
        f"#!{' ' * 254}/bin/sh",
        "#!/bin/sh\r\n",
        "#!/bin/\0sh",
    ],
)
def test_a_first_line_without_a_plain_interpreter_is_refused(line: str) -> None:
    with pytest.raises(ConfigInvalid, match="first line") as caught:
        parse_first_line(line.encode(), "x")
    assert "Put the interpreter into the command" in caught.value.remedy


@pytest.mark.parametrize("name", ["python3", "node-of-this-test"])
def test_env_finds_its_program_in_path(
    tmp_path: Path, scripts: Callable[[bytes], Path], name: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).symlink_to(PYTHON)
    script = scripts(f"#!/usr/bin/env {name}\n".encode())
    assert {str(tmp_path / "bin" / name), PYTHON} <= {
        *find_needed_files(str(script), "", str(tmp_path / "bin"))
    }


@pytest.mark.parametrize("nested", range(1, MOST_INTERPRETERS + 3))
def test_interpreters_that_are_scripts_are_followed_as_far_as_the_kernel_does(
    tmp_path: Path, nested: int
) -> None:
    (tmp_path / "bin").mkdir()
    before = PYTHON
    for number in range(nested):
        script = tmp_path / "bin" / f"s{number}"
        script.write_text(f"#!{before}\n")
        script.chmod(0o700)
        before = str(script)
    if nested > MOST_INTERPRETERS:
        with pytest.raises(ConfigInvalid, match="interpreters"):
            find_needed_files(before, "", str(tmp_path / "bin"))
    else:
        assert PYTHON in find_needed_files(before, "", str(tmp_path / "bin"))


@pytest.mark.attack
def test_an_interpreter_that_is_a_script_lies_where_programs_are(
    tmp_path: Path, scripts: Callable[[bytes], Path]
) -> None:
    """A shell script in somebody's home may hold a password."""
    private = tmp_path / "deploy.sh"
    private.write_text("#!/bin/sh\nPASSWORD=x\n")
    private.chmod(0o700)
    with pytest.raises(ConfigInvalid, match="not a program"):
        find_needed_files(str(scripts(f"#!{private}\n".encode())), "", "/usr/bin")


@pytest.mark.attack
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.bubblewrap)])
@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env -S -u {0} {1}", "#!{0}", "#!/usr/bin/env -S {1} -S", "#!{1}"]
)
async def test_a_server_starts_with_a_plain_first_line_alone(
    bench: Callable[..., Bench],
    tmp_path: Path,
    secret: Path,
    scripts: Callable[[bytes], Path],
    strict: bool,
    line: str,
) -> None:
    probe = (SERVERS / "probe.py").read_text()
    script = scripts(
        f"{line.format(secret, PYTHON)}\nimport sys\nsys.path.insert(0, {str(SERVERS)!r})\n{probe}".encode()
    )
    read = (str(script.parent), *map(os.path.realpath, (sys.prefix, sys.base_prefix)))
    here = bench(replace(confined(tmp_path, read=read, strict=strict), argv=(str(script),)))
    if await not_started(here):
        return
    if line == "#!{1}":
        assert [tool["name"] for tool in (await here.pool.discover(1)).tools] == ["try"]
        return
    with pytest.raises(ConnectionFailed, match="The script") as caught:
        await here.pool.discover(1)
    assert "Put the interpreter into the command" in caught.value.remedy
