"""Tries everything that a hostile server would, and tells for each try whether it worked: "done",
or the error's name."""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading

from rpc import Server, text, tool

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {  # of one call on x86-64 and on ARM64
    "unshare": (272, 97),
    "ptrace": (101, 117),
    "io_uring": (425, 425),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "clone3": (435, 435),
    "keyctl": (250, 219),
    "shared memory": (29, 194),
    "semaphores": (64, 190),
    "queue of messages": (68, 186),
    "named queue": (240, 180),
    "kernel's log": (103, 116),
}
ARGUMENTS = {
    "unshare": (0x10000000,),
    "ptrace": (0x4206, os.getppid(), 0, 0),
    "io_uring": (1, 0),
    "userfaultfd": (0,),
    "mount": (0, 0, 0, 0, 0),
    "clone3": (0, 0),
    "keyctl": (0, -3, 0),
    "shared memory": (0x51195, 1, 0),
    "semaphores": (0x51195, 1, 0),
    "queue of messages": (0x51195, 0),
    "named queue": (b"slipsnisse", 0, 0, 0),
    "kernel's log": (10, 0, 0),
}
OTHER_ABIS = {  # as a process of 32 bits would call, and as one of x32
    "32-bit calls": "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'));"
    "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
    "x32 calls": "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)",
}


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


def listen(port):
    with socket.socket() as made:
        if port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("127.0.0.1", port))
        made.listen()


def fast_open(address):
    """A connection that begins with its first data, and no call to ``connect``."""
    with socket.socket() as made:
        made.sendto(b"x", socket.MSG_FASTOPEN, address)


def open_to_write(path):
    os.close(os.open(path, os.O_WRONLY))


def for_others(folder):
    """A file in a folder that all programs share."""
    path = os.path.join(folder, f"slipsnisse-probe-{os.getpid()}")
    write(path)
    os.unlink(path)


def descriptors():
    """What it was given besides its three streams."""
    return sorted(
        os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if valid(each)
    )


def valid(number):
    try:
        return int(number) > 2 and os.fstat(int(number)) is not None
    except OSError:  # the one by which the folder was listed
        return False


def datagram(path):
    """Past a filter that looks at ``socket`` alone: one end of a pair sends to any socket with a
    path."""
    for end in (pair := socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):
        end.settimeout(5)
    pair[0].sendto(b"x", path)


def same_limit(pid):
    """As it was: with another, the kernel itself would end it (processor time)."""
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))


def other_abi(program):
    """Killed for it (by the filter, or by a kernel that has no such calls), which stands for a
    refusal."""
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=False).returncode
    if ended < 0:
        raise PermissionError(errno.EPERM, "killed")


def opened(family, kind, protocol):
    socket.socket(family, kind, protocol).close()


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
    loopback = ("127.0.0.1", wanted.get("port", 9))
    parent = wanted.get("another", os.getppid())
    found = {f"read {name}": tried(read, path) for name, path in wanted.get("read", {}).items()}
    found |= {f"write {name}": tried(write, path) for name, path in wanted.get("write", {}).items()}
    found |= {
        f"empty {name}": tried(os.truncate, path, 0)
        for name, path in wanted.get("write", {}).items()
    }
    found |= {
        "link": tried(os.symlink, "/etc/shadow", os.path.join(os.environ["HOME"], "out")),
        "read behind the link": tried(read, os.path.join(os.environ["HOME"], "out")),
        "environment of another": tried(read, f"/proc/{parent}/environ"),
        "memory of another": tried(read, f"/proc/{parent}/mem"),
        "files of another": tried(os.listdir, os.path.join("/proc", str(parent), "root")),
        "command line of another": tried(read, f"/proc/{parent}/cmdline"),
        "signal": tried(os.kill, parent, signal.SIGCONT),
        "tcp": tried(connect, socket.AF_INET, socket.SOCK_STREAM, loopback),
        "tcp to another port": tried(
            connect, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", wanted.get("other port", 9))
        ),
        "fast open": tried(fast_open, ("127.0.0.1", wanted.get("other port", 9))),
        "listens": tried(listen, wanted.get("free port", 0)),
        "listens anywhere": tried(listen, 0),
        "system's file": tried(open_to_write, "/etc/hosts"),
        "kernel's settings": tried(open_to_write, "/proc/sys/kernel/core_pattern"),
        "shared folder": tried(for_others, "/tmp"),
        "shared memory's folder": tried(for_others, "/dev/shm"),
        "udp": tried(connect, socket.AF_INET, socket.SOCK_DGRAM, loopback),
        "raw": tried(connect, socket.AF_INET, socket.SOCK_RAW, loopback),
        "path's socket": tried(
            connect, socket.AF_UNIX, socket.SOCK_STREAM, wanted.get("socket", "/nowhere")
        ),
        "abstract socket": tried(
            connect, socket.AF_UNIX, socket.SOCK_STREAM, "\0" + wanted.get("abstract", "x")
        ),
        "path's datagrams": tried(datagram, wanted.get("datagrams", "/nowhere")),
        "multipath": tried(opened, socket.AF_INET, socket.SOCK_STREAM, 262),
        "ping": tried(opened, socket.AF_INET, socket.SOCK_DGRAM, 1),
        "udp-lite": tried(opened, socket.AF_INET6, socket.SOCK_DGRAM, 136),
        "limits of another": tried(same_limit, parent),
        "runs": tried(works),
    }
    arm = platform.machine() == "aarch64"
    found |= {
        name: tried(system_call, numbers[arm], *ARGUMENTS[name])
        for name, numbers in NUMBERS.items()
    }
    found |= (
        {} if arm else {name: tried(other_abi, program) for name, program in OTHER_ABIS.items()}
    )
    return text(
        json.dumps(
            found
            | {
                "environment": sorted(os.environ),
                "folder": os.getcwd(),
                "descriptors": descriptors(),
            }
        )
    )


Server([tool("try")], call, name="probe").run()
