"""``manage.py mcptest``: test one server from here, without a worker."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.server_test_dispatch import make_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ArgumentsInvalid, SlipsnisseError
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.downstream.pool.server_probe import Send
from mcpregistry.models import Server, ServerTest
from mcpregistry.services.servers.checks import queue_test
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.servers.prober import Prober
from mcpregistry.services.servers.server_test_calls import OrderedTestCall, read_call_order
from mcpregistry.services.servers.trials import run_test
from mcpregistry.services.upkeep.process_lease import ProcessLease

_TEXT_SHOWN = 2_000
_EXAMPLE = error_texts.advise_form("a JSON object", '{"timezone": "UTC"}')


class Command(BaseCommand):
    """Queues a test of the server, runs it in this process, and prints verdict and times."""

    help = (
        "Tests one server in this process, without a worker: connects, lists its tools, and calls one of them if you name it. "
        "Exit code: 0 if the test passed, 1 if it failed, 2 if the server could not be tested."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("slug", help="Short name of the server.")
        parser.add_argument(
            "--call",
            default="",
            metavar="TOOL",
            help="Call this tool. You are responsible for what the call does.",
        )
        parser.add_argument(
            "--args",
            dest="arguments",
            default="{}",
            metavar="JSON",
            help="Arguments of the call as a JSON object. Default: {}.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        server = Server.objects.filter(slug=options["slug"]).first()
        if server is None:
            raise CommandError(
                f"{error_texts.say_not_found('server', options['slug'])} The admin lists all servers under Servers.",
                returncode=2,
            )
        try:
            arguments = _arguments(options["arguments"])
            actor = f"shell:{getpass.getuser()}"
            test = queue_test(
                server=server, actor=actor, call_tool=options["call"], call_arguments=arguments
            )
        except SlipsnisseError as error:
            raise CommandError(str(error), returncode=2) from error
        self.stdout.write(
            f"Testing {server.slug}: {show_invisible_characters(' '.join(server.command) or server.url)}"
        )
        self._run(test, read_call_order(test, vouched_by=actor))

    def _run(self, test: ServerTest, order: OrderedTestCall) -> None:
        prober = Prober()
        recorder = Recorder("command")
        reports = []
        lease = ProcessLease.hold("command")  # if this process dies, others end its call

        async def make(name: str, arguments: bytes, send: Send) -> dict[str, Any]:
            recorder.start(asyncio.get_running_loop())
            return await make_call(recorder, order, send)

        def probe(server_id: int, call: tuple[str, bytes] | None, in_sandbox: bool) -> TestReport:
            reports.append(prober.test(server_id, call, in_sandbox, make=make))
            return reports[-1]

        try:
            done = run_test(test_id=test.pk, probe=probe, process=make_process_name("command"))
        finally:
            recorder.close()
            prober.close()
            lease.release()
        assert done is not None  # nobody else knows of this test
        self._tell(done, reports[-1])
        if done.verdict != ServerTest.Verdict.PASSED:
            raise SystemExit(1)

    def _tell(self, test: ServerTest, report: TestReport) -> None:
        for step in ("connect", "list", "call", "total"):
            if step in test.timings:
                self.stdout.write(f"  {step:<8} {test.timings[step]:>9,.1f} ms")
        if report.discovery is not None and report.listed:
            names = ", ".join(str(tool["name"]) for tool in report.discovery.tools)
            self.stdout.write(
                f"  protocol {test.protocol_era} ({show_invisible_characters(report.discovery.protocol_version, 40)})"
            )
            self.stdout.write(
                f"  tools    {test.tool_count}: {show_invisible_characters(names, _TEXT_SHOWN)}"
            )
        for reason in test.left_out.splitlines():
            self.stdout.write(f"  left out {show_invisible_characters(reason, _TEXT_SHOWN)}")
        if report.result is not None:
            self.stdout.write(
                f"  answer   {show_invisible_characters(encode_lossy_json(report.result), _TEXT_SHOWN)}"
            )
        if test.error:
            self.stdout.write(
                f"  {test.error_code}: {show_invisible_characters(test.error, _TEXT_SHOWN)}"
            )
        if test.error and test.stderr_tail:
            self.stdout.write(
                f"  the end of the server's log:\n{show_invisible_characters(test.stderr_tail[-_TEXT_SHOWN:])}"
            )
        self.stdout.write(str(test.get_verdict_display()))


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise ArgumentsInvalid(f"--args is not valid JSON: {error}.", remedy=_EXAMPLE) from error
    if not isinstance(arguments, dict):
        raise ArgumentsInvalid("--args is not a JSON object.", remedy=_EXAMPLE)
    return arguments
