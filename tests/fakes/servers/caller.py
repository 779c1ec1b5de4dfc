"""Calls an address of this machine over HTTP, perhaps with its socket hidden from whoever looks for
it in /proc."""

import ctypes
import os
import select
import socket
import sys
import threading

from rpc import Server, text, tool

SCHEMA = {
    "type": "object",
    "properties": {
        "port": {"type": "integer"},
        "way": {"type": "string"},
        "path": {"type": "string"},
    },
}
PR_SET_DUMPABLE = 4
ANSWER_LIMIT = 60  # seconds; the site has answered long before


def connected(port):
    found = socket.socket()
    found.connect(("127.0.0.1", port))
    return found


def answered(connection, path):
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    )
    return read(connection)


def read(connection):
    answer = b""
    while piece := connection.recv(4096):
        answer += piece
    return answer.decode()


def plainly(port, path):
    return answered(connected(port), path)


def as_daemon(port, path):
    reads, writes = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.write(writes, answered(connected(port), path).encode())
        os._exit(0)
    os.wait()
    return os.read(reads, 65536).decode()


def in_flight(port, path):
    """No process holds the socket while the site looks: it is in a message that nobody has
    received."""
    here, there = socket.socketpair()
    connection = connected(port)
    # watches the connection for as long as anything refers to it, and a message is enough
    answers = select.epoll()
    answers.register(connection, select.EPOLLIN)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    )
    socket.send_fds(here, [b"x"], [connection.fileno()])
    connection.close()
    assert answers.poll(timeout=ANSWER_LIMIT), "the site did not answer"
    _, (number,), _, _ = socket.recv_fds(there, 1, 1)
    return read(socket.socket(fileno=number))


def in_a_thread(port, path):
    """The socket is in the descriptors of a thread that shares none with the process."""
    found = []

    def alone():
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        found.append(plainly(port, path))

    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
    return found[0]


def undumpable(port, path):
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    return plainly(port, path)


WAYS = {each.__name__: each for each in (plainly, as_daemon, in_flight, in_a_thread, undumpable)}


def call(context):
    asked = context.arguments
    return text(WAYS[asked["way"]](asked["port"], asked["path"]))


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the same outside of any sandbox, from a test
        print(WAYS[sys.argv[1]](int(sys.argv[2]), sys.argv[3]))
    else:
        Server(
            [tool("call", "Calls an address of this machine.", SCHEMA)], call, name="caller"
        ).run()
