"""HTTP receivers on 127.0.0.1:0 for what we send out: they keep every request and answer as they
are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import HANG_LIMIT

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"


@dataclass
class Receiver:
    """``answers`` are given one after the other, then ``otherwise``; a callable may also block."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    answers: list[Answer | Callable[[Received], Answer]] = field(default_factory=list)
    otherwise: Answer | Callable[[Received], Answer] = OK

    def answer(self, request: Received) -> Answer:
        self.requests.append(request)
        told = self.answers.pop(0) if self.answers else self.otherwise
        return told(request) if callable(told) else told


@contextmanager
def listening(receiver: Receiver) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, more, answer = receiver.answer(
                    Received(self.path, headers, body, self.command)
                )
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else answer)
            except ConnectionError:
                # the sender did not wait for our answer, or an answer is to hang up
                self.close_connection = True

        do_PUT = do_POST
        do_GET = do_POST
        do_HEAD = do_POST

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(HANG_LIMIT)
