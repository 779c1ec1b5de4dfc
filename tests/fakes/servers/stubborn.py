"""Ignores SIGTERM and end of file, and leaves a double-forked daemon that holds the pipes.

Writes its own and the daemon's process id to the file FAKE_PIDS.
"""

import os
import signal
import time

from rpc import Server, text, tool


def daemon():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    ignore()
    note()
    while True:
        time.sleep(60)


def ignore():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def note():
    with open(os.environ["FAKE_PIDS"], "a") as file:
        file.write(f"{os.getpid()}\n")


ignore()
note()
daemon()
Server([tool("ok")], lambda context: text("ok"), name="stubborn").run()
while True:
    time.sleep(60)
