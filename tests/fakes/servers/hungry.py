"""Uses what it is told to: memory, processes, seconds of processor, descriptors, a large file,
files in memory, threads. Says what worked.

Asked to end (SIGTERM), it writes "asked" to the file FAKE_ENDED; at its start, its processes to
FAKE_PIDS.
"""

import errno
import os
import signal
import threading
import time

from rpc import Server, text, tool

kept = []


def child(action):
    if pid := os.fork():
        return pid
    action()
    while True:
        time.sleep(60)


def fill(megabytes):
    kept.append(bytearray(os.urandom(1024) * 1024 * megabytes))


def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def opened(number):
    found = []
    try:
        for _ in range(number):
            found.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for each in found:
            os.close(each)


def file_of(megabytes):
    with open(os.path.join(os.environ["HOME"], "large"), "wb") as file:
        file.truncate(megabytes << 20)


def tried(action, value):
    try:
        action(value)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def call(context):
    wanted = context.arguments
    if megabytes := wanted.get("shared"):  # one's own, which three others look at
        fill(megabytes)
        for _ in range(3):
            child(lambda: None)
    if megabytes := wanted.get("others"):  # of two processes, each half
        for _ in range(2):
            child(lambda: fill(megabytes // 2))
    if megabytes := wanted.get("memory_file"):
        kept.append(os.memfd_create("hungry"))
        for _ in range(megabytes):
            os.write(kept[-1], bytes(1 << 20))
    for _ in range(wanted.get("threads", 0)):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    for _ in range(wanted.get("processes", 0)):
        child(lambda: None)
    if seconds := wanted.get("seconds"):
        child(lambda: burn(seconds))
    said = [
        tried(action, wanted[name])
        for name, action in (("files", opened), ("file", file_of))
        if name in wanted
    ]
    context.cancelled.wait(wanted.get("pause", 0))
    return text(" ".join(said) or "ok")


def written(path, text):
    """Whoever finds the file finds all of it."""
    with open(f"{path}.half", "w") as file:
        file.write(text)
    os.replace(f"{path}.half", path)


def ended(*_):
    written(os.environ["FAKE_ENDED"], "asked")
    os._exit(0)


if "FAKE_ENDED" in os.environ:
    signal.signal(signal.SIGTERM, ended)
if "FAKE_PIDS" in os.environ:
    written(os.environ["FAKE_PIDS"], f"{os.getpid()}\n{child(lambda: None)}\n")
Server([tool("use")], call, name="hungry").run()
while "FAKE_ENDED" in os.environ:
    time.sleep(60)
