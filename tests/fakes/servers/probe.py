"""Tries everything that a hostile server would, and tells for each try whether it worked: "done", or the error's name."""

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading

from rpc import Server, text, tool

LIBC = ctypes.CDLL(None, use_errno=True)
SYSTEM_CALLS = {
    "unshare": (272, 0x10000000), "ptrace": (101, 0x4206, os.getppid(), 0, 0), "io_uring": (425, 1, 0),
    "userfaultfd": (323, 0), "mount": (165, 0, 0, 0, 0, 0), "clone3": (435, 0, 0), "keyctl": (250, 0, -3, 0),
}  # fmt: skip


def tried(action, *args):
    try:
        action(*args)
    except OSError as error:
        return errno.errorcode[error.errno] if error.errno in errno.errorcode else str(error)
    return "done"


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def write(path):
    with open(path, "ab") as file:
        file.write(b"x")


def connect(family, kind, address):
    with socket.socket(family, kind) as made:
        made.settimeout(5)
        made.connect(address)
        if kind == socket.SOCK_DGRAM:
            made.send(b"x")


def system_call(number, *args):
    if LIBC.syscall(number, *args) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def works():
    """What every runtime needs: threads, programs, pairs of sockets, a file of its own."""
    thread = threading.Thread(target=list)
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    for made in socket.socketpair():
        made.close()
    write(os.path.join(os.environ["HOME"], "mine"))
    write(os.path.join(os.environ["TMPDIR"], "mine"))


def call(context):
    wanted = context.arguments
    loopback, parent = ("127.0.0.1", wanted.get("port", 9)), os.getppid()
    found = {f"read {name}": tried(read, path) for name, path in wanted.get("read", {}).items()}
    found |= {f"write {name}": tried(write, path) for name, path in wanted.get("write", {}).items()}
    found |= {
        "link": tried(os.symlink, "/etc/shadow", os.path.join(os.environ["HOME"], "out")),
        "read behind the link": tried(read, os.path.join(os.environ["HOME"], "out")),
        "environment of another": tried(read, f"/proc/{parent}/environ"),
        "memory of another": tried(read, f"/proc/{parent}/mem"),
        "files of another": tried(os.listdir, f"/proc/{parent}/root/"),
        "command line of another": tried(read, f"/proc/{parent}/cmdline"),
        "signal": tried(os.kill, parent, signal.SIGCONT),
        "tcp": tried(connect, socket.AF_INET, socket.SOCK_STREAM, loopback),
        "udp": tried(connect, socket.AF_INET, socket.SOCK_DGRAM, loopback),
        "raw": tried(connect, socket.AF_INET, socket.SOCK_RAW, loopback),
        "path's socket": tried(connect, socket.AF_UNIX, socket.SOCK_STREAM, wanted.get("socket", "/nowhere")),
        "abstract socket": tried(connect, socket.AF_UNIX, socket.SOCK_STREAM, "\0" + wanted.get("abstract", "x")),
        "runs": tried(works),
    }
    found |= {name: tried(system_call, *args) for name, args in SYSTEM_CALLS.items()}
    return text(json.dumps(found | {"environment": sorted(os.environ), "folder": os.getcwd()}))


Server([tool("try")], call, name="probe").run()
