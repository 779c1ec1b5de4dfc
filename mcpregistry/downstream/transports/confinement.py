"""Landlock and seccomp for one stdio server: applied by ``launcher.py`` in the child that becomes it.

Standard library only, and no more of it than the launcher loads anyway. The whole program rests on these:

* What is applied can only be made narrower afterwards, and everything that the server starts inherits it.
* Where a part cannot be applied that this kernel has, the server is not started (``OSError``).
* ``abi`` and ``filtered`` say what this kernel has; ``services/servers/sandbox.py`` puts it into words.
"""

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
NO_NEW_PRIVS, SET_SECCOMP, RLIMIT_FSIZE, RLIMIT_CORE = 38, 22, 1, 4
MOST_FILE_BYTES = 4 << 30

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
READING = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL  # the kernel refuses any other for what is no folder

# Calls by which a process leaves what was applied, looks into others, or loads code into the kernel; by architecture:
# the machine's number for filters, ``socket``, ``socketpair``, ``clone``, ``prlimit64``, and the rest (unshare setns ptrace process_vm_* mount umount
# pivot_root chroot bpf perf add_key request_key keyctl open_by_handle_at userfaultfd kcmp kexec* *_module swap* reboot
# settimeofday clock_settime sethostname setdomainname acct quotactl syslog; on x86 iopl and ioperm), and memory, semaphores
# and queues shared with others by number or name, which Landlock knows nothing of (shm* sem* msg* mq_open mq_unlink).
_CALLS = {
    "x86_64": (0xC000003E, (41, 53, 56, 302), (
        272, 308, 101, 310, 311, 165, 166, 155, 161, 321, 298, 248, 249, 250, 304, 323, 312, 246, 320, 175, 313, 176,
        167, 168, 169, 164, 227, 170, 171, 163, 179, 103, 172, 173,
        29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241,
    )),
    "aarch64": (0xC00000B7, (198, 199, 220, 261), (
        97, 268, 117, 270, 271, 40, 39, 41, 51, 280, 241, 217, 218, 219, 265, 282, 272, 104, 294, 105, 273, 106,
        224, 225, 142, 170, 112, 161, 162, 89, 60, 116,
        194, 196, 195, 197, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181,
    )),
}  # fmt: skip
# io_uring (it would open sockets past the filter), the new mount calls, pidfd_getfd: numbered alike everywhere.
_NEWER = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 467)
_CLONE3, _NEW_USER = 435, 0x10000000
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x50000, 0x80000000
_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_OPENAT2, _NO_LINKS, _NO_PLACE = 437, 4, (2, 13, 20, 36, 40)  # not found, not allowed, no folder, too long, a link
_LOAD, _EQUALS, _AT_LEAST, _ANY_OF, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06

Instruction = tuple[int, int, int, int]


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def abi() -> int:
    """The version of Landlock that this kernel has; 0 where there is none, or it is switched off."""
    if os.uname().sysname != "Linux":
        return 0
    return max(0, _libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def filtered() -> bool:
    """Whether we have a filter of system calls for this machine (seccomp)."""
    return os.uname().sysname == "Linux" and os.uname().machine in _CALLS and os.path.exists("/proc/sys/kernel/seccomp")


def apply(policy: str) -> None:
    """Confine this process, for good. Call it with one thread, right before ``exec``. Raises OSError.

    ``policy``: a line for each path, ``r`` or ``w`` and the path; a line ``n`` where the network is open.
    """
    lines = policy.split("\n")
    networked = "n" in lines
    libc = _libc()
    _checked(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for what, most in ((RLIMIT_CORE, 0), (RLIMIT_FSIZE, MOST_FILE_BYTES)):
        libc.setrlimit(what, struct.pack("QQ", most, most))
    version = abi()
    if not version:
        raise OSError(_ENOSYS, "this kernel has no Landlock")
    _restrict(libc, version, [(line[0], line[1:]) for line in lines if line[:1] in ("r", "w")], networked)
    # Of a site that runs as root: with its capabilities, the environment of others can be read in /proc past Landlock.
    # Without new privileges they do not come back with the next program.
    _checked(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capabilities")
    if filtered():
        _filter(libc, networked)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def _restrict(libc: ctypes.CDLL, version: int, paths: list[tuple[str, str]], networked: bool) -> None:
    """Landlock: files by path, TCP where the network is closed, signals and abstract sockets of others."""
    every = (1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    every |= IOCTL if version >= 5 else 0
    tcp = 3 if version >= 4 and not networked else 0
    attributes = struct.pack("QQQ", every, tcp, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _checked(
        libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)), "Landlock"
    )
    for kind, path in paths:
        _allow(libc, ruleset, path, READING if kind == "r" else every)
    _checked(libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "Landlock")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """One rule; a path that does not exist, or leads along a link (it may have become one just now), gets none."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_LINKS)
    place = libc.syscall(_OPENAT2, -100, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if place < 0 and ctypes.get_errno() in _NO_PLACE:
        return
    if os.stat(_checked(place, path)).st_mode & 0o170000 != 0o040000:
        rights &= OF_FILES
    rule = struct.pack("=Qi", rights, place)
    _checked(libc.syscall(ADD_RULE, ruleset, 1, rule, ctypes.c_uint32(0)), path)
    os.close(place)


def program(networked: bool, machine: str) -> list[Instruction]:
    """The filter: which system calls are refused on this ``machine``, as (code, jump if true, if false, value)."""
    number, (socket, pair, clone, limits), refused = _CALLS[machine]
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUALS, 1, 0, number), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 numbers would pass everything by
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for call in (*refused, *_NEWER):
        code += [(_EQUALS, 0, 1, call), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    code += [
        (_EQUALS, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]  # its flags cannot be read here: libc uses clone
    code += [
        (_EQUALS, 0, 4, clone), (_LOAD, 0, 0, 16), (_ANY_OF, 0, 1, _NEW_USER), (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        # of another process of the same user: one second of processor time, and the kernel ends it
        (_EQUALS, 0, 4, limits), (_LOAD, 0, 0, 16), (_EQUALS, 1, 0, 0), (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return [*code, *_pairs(pair), *_sockets(socket, networked), (_RETURN, 0, 0, _ALLOW)]


def _pairs(pair: int) -> list[Instruction]:
    """Streams and packets in order: either end of a pair of datagrams sends to any socket with a path (a system's log)."""
    return [
        (_EQUALS, 0, 8, pair), (_LOAD, 0, 0, 16), (_EQUALS, 0, 4, 1), (_LOAD, 0, 0, 24), (_AND, 0, 0, 0xF),
        (_EQUALS, 2, 0, 1), (_EQUALS, 1, 0, 5), (_RETURN, 0, 0, _ERRNO | _EACCES), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip


def _sockets(socket: int, networked: bool) -> list[Instruction]:
    """None at all, or TCP and UDP: a path's socket (a database, Docker, a desktop) Landlock would let through."""
    refuse = (_RETURN, 0, 0, _ERRNO | _EACCES)
    if not networked:
        return [(_EQUALS, 0, 1, socket), refuse]
    return [
        (_EQUALS, 0, 13, socket), (_LOAD, 0, 0, 16), (_EQUALS, 2, 0, 2), (_EQUALS, 1, 0, 10), refuse,
        (_LOAD, 0, 0, 24), (_AND, 0, 0, 0xF), (_AT_LEAST, 0, 1, 3), refuse,
        (_LOAD, 0, 0, 32), (_EQUALS, 3, 0, 0), (_EQUALS, 2, 0, 6), (_EQUALS, 1, 0, 17), refuse,
    ]  # fmt: skip


def _filter(libc: ctypes.CDLL, networked: bool) -> None:
    packed = b"".join(struct.pack("=HBBI", *each) for each in program(networked, os.uname().machine))
    body = ctypes.create_string_buffer(packed, len(packed))
    head = struct.pack("@HP", len(packed) // 8, ctypes.addressof(body))
    _checked(libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), head, 0, 0), "seccomp")
