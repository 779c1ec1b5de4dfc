"""A mail server on 127.0.0.1:0 (RFC 5321, the few commands that a client needs). It keeps what it
was given."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

from tests.waiting import HANG_LIMIT


@dataclass
class Mailbox:
    port: int = 0
    raw: list[bytes] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    # verb -> reply, such as {"DATA": b"451 later"}
    refuse: dict[str, bytes] = field(default_factory=dict)

    @property
    def letters(self) -> list[EmailMessage]:
        return [message_from_bytes(raw, policy=policy.default) for raw in self.raw]  # type: ignore[misc]


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.reply(b"220 fake ready")
            to: list[str] = []
            while line := self.rfile.readline():
                verb, _, rest = line.decode("ascii", "replace").strip().partition(" ")
                verb = verb.upper()
                if verb in box.refuse:
                    self.reply(box.refuse[verb])
                elif verb == "RCPT":
                    to.append(rest.partition(":")[2].strip(" <>"))
                    self.reply(b"250 ok")
                elif verb == "DATA":
                    self.reply(b"354 go on")
                    box.recipients.append(to)
                    box.raw.append(self.data())
                    to = []
                    self.reply(b"250 kept")
                elif verb == "QUIT":
                    self.reply(b"221 bye")
                    return
                else:
                    self.reply(b"250 ok")

        def reply(self, line: bytes) -> None:
            self.wfile.write(line + b"\r\n")

        def data(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line[1:] if line.startswith(b".") else line)
            return b"".join(lines)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Session) as server:
        box.port = server.server_address[1]
        thread = threading.Thread(
            target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}
        )
        thread.start()
        yield box
        server.shutdown()
        thread.join(HANG_LIMIT)
