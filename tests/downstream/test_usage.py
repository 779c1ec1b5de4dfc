"""What a trial sees of the network that a server uses."""

from __future__ import annotations

import socket
import subprocess
import sys

from mcpregistry.domain.trials.report import Start
from mcpregistry.domain.trials.verdict import collect_findings
from mcpregistry.downstream.transports.process_usage import ProcessUsage
from tests.fakes.targets import stdio_target

PROGRAM = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))), socket.create_server(("127.0.0.1", 0)) as own:
    print(own.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_the_ports_that_it_is_connected_to_and_listens_on_are_seen_and_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(port)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            own = int(process.stdout.readline())
            usage = ProcessUsage(stdio_target("echo"))
            usage.measure_tree(process.pid)
            process.stdin.close()
    assert port in usage.connected
    assert own in usage.listened
    assert own not in usage.connected
    start = Start(
        era="modern", network="open", ok=True, tools=1, connected=[443, 5432], listened=[8080]
    )
    told = [each["text"] for each in collect_findings([start], []) if each["kind"] == "ports"]
    assert [text.partition(".")[0] for text in told] == [
        "During the trial, the server was connected to TCP ports 443, 5432",
        "During the trial, the server was listening on TCP ports 8080",
    ]
