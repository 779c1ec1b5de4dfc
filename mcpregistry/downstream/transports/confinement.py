"""Landlock and seccomp for one stdio server: applied by ``launcher.py`` in the child that becomes
it.

Standard library only, and no more of it than the launcher loads anyway. The whole program rests on
these:

* What is applied can only be made narrower afterwards, and everything that the server starts
  inherits it.
* Where a part cannot be applied that this kernel has, the server is not started (``OSError``).
* ``get_landlock_version`` and ``is_filter_supported`` say what this kernel has;
  ``services/servers/sandbox.py`` puts it into words.
"""

import ctypes
import os
import struct

# the same on every architecture
CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
NO_NEW_PRIVS = 38
SET_SECCOMP = 22
RLIMIT_CORE = 4

EXECUTE = 1
WRITE_FILE = 2
READ_FILE = 4
READ_DIR = 8
TRUNCATE = 1 << 14
IOCTL = 1 << 15
READING = EXECUTE | READ_FILE | READ_DIR
_BIND = 1
_CONNECT = 2
_OF_PATH = 1
_OF_PORT = 2
# the kernel refuses any other for what is no folder
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL

# by the name of the machine: its number in filters
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# The numbers of system calls on x86-64 and on ARM64, as in the headers of the kernel. None: the
# machine has no such call.
_Numbers = tuple[int, int | None]
# Refused: a process would leave what was applied, look into other processes, or load code into the
# kernel. Shared memory, semaphores and queues are found by number or name, of which Landlock knows
# nothing. io_uring would open sockets without the filter.
_REFUSED: dict[str, _Numbers] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "userfaultfd": (323, 282),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
}
# Looked into: whether they are refused depends on their arguments.
_JUDGED: dict[str, _Numbers] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "prlimit64": (302, 261),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "creat": (85, None),
    "fchmodat2": (452, 452),
    "open": (2, None),
    "openat": (257, 56),
    "clone3": (435, 435),
    "openat2": (437, 437),
}
_NEW_USER = 0x10000000
_FAST_OPEN = 0x20000000
# The place of an argument, counted from 0: of the flags in calls that send, of the mode in calls
# that set it, and of flags and mode in calls that may create a file.
_SENDING = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_SETTING_MODE = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "mknod": 1,
    "mknodat": 2,
    "creat": 1,
    "fchmodat2": 2,
}
_CREATING = {"open": (1, 2), "openat": (2, 3)}
# set-user-id and set-group-id; O_CREAT and O_TMPFILE
_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x50000
_KILL = 0x80000000
_EPERM = 1
_EACCES = 13
_ENOSYS = 38
# not found, not allowed, no folder, too long, a link
_OPENAT2 = 437
_NO_LINKS = 4
_NO_PLACE = (2, 13, 20, 36, 40)
_LOAD = 0x20
_EQUALS = 0x15
_AT_LEAST = 0x35
_ANY_OF = 0x45
_AND = 0x54
_RETURN = 0x06

Instruction = tuple[int, int, int, int]


def load_libc() -> ctypes.CDLL:
    """The C library, to be handed on where it is called often: loading it costs as much as several
    calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def get_landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 where there is none, or it is switched
    off."""
    if os.uname().sysname != "Linux":
        return 0
    return max(0, load_libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def is_filter_supported() -> bool:
    """Whether we have a filter of system calls for this machine (seccomp)."""
    return (
        os.uname().sysname == "Linux"
        and os.uname().machine in _ARCHITECTURES
        and os.path.exists("/proc/sys/kernel/seccomp")
    )


def apply(policy: str) -> None:
    """Confine this process, for good. Call it with one thread, right before ``exec``. Raises
    OSError.

    ``policy``: a line for each path, ``r`` or ``w`` and the path; a line ``n`` where the network is
    open, or ``t`` where TCP is, to the ports in lines ``c`` (to connect to) and ``b`` (to listen
    on). With a line ``x``, bubblewrap comes next (``namespaces.py``): files, the filter and
    capabilities are left to it.
    """
    lines = policy.split("\n")
    strict = any(line[:1] == "x" for line in lines)
    libc = load_libc()
    _check_result(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.setrlimit(RLIMIT_CORE, struct.pack("QQ", 0, 0))
    version = get_landlock_version()
    if not version and not strict:
        raise OSError(_ENOSYS, "this kernel does not support Landlock")
    paths = None if strict else [(line[0], line[1:]) for line in lines if line[:1] in ("r", "w")]
    _restrict(libc, version, paths, _parse_ports(lines))
    if strict:
        return
    # Of a site that runs as root: with its capabilities, the environment of others can be read in
    # /proc past Landlock. Without new privileges they do not come back with the next program.
    _check_result(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capabilities")
    if is_filter_supported():
        _apply_filter(libc, compile_filter(policy))


def _parse_ports(lines: list[str]) -> list[tuple[int, int]] | None:
    """Right and number of the ports that are open; None where all are."""
    if "n" in lines:
        return None
    return [
        ({"b": _BIND, "c": _CONNECT}[line[0]], int(line[1:]))
        for line in lines
        if line[:1] in ("b", "c")
    ]


def _check_result(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def _restrict(
    libc: ctypes.CDLL,
    version: int,
    paths: list[tuple[str, str]] | None,
    ports: list[tuple[int, int]] | None,
) -> None:
    """Landlock: files by path, TCP by port, signals and abstract sockets of others. None: left as
    it is."""
    every = (1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    every |= IOCTL if version >= 5 else 0
    files = 0 if paths is None else every
    tcp = _BIND | _CONNECT if version >= 4 and ports is not None else 0
    scoped = 3 if version >= 6 else 0
    if not files | tcp | scoped:
        return
    if version < 4:
        size = 8
    elif version < 6:
        size = 16
    else:
        size = 24
    attributes = struct.pack("QQQ", files, tcp, scoped)[:size]
    ruleset = _check_result(
        libc.syscall(
            CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
        ),
        "Landlock",
    )
    for kind, path in paths or ():
        _allow(libc, ruleset, path, READING if kind == "r" else every)
    for right, port in (ports or ()) if tcp else ():
        rule = struct.pack("QQ", right, port)
        _check_result(
            libc.syscall(ADD_RULE, ruleset, _OF_PORT, rule, ctypes.c_uint32(0)), f"port {port}"
        )
    _check_result(libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)), "Landlock")
    os.close(ruleset)


def open_place(path: str, libc: ctypes.CDLL | None = None) -> int | None:
    """The place itself, to be given on; None for one that does not exist, or leads along a link (it
    may be one since)."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_LINKS)
    place: int = (libc or load_libc()).syscall(
        _OPENAT2, -100, os.fsencode(path), how, ctypes.c_size_t(len(how))
    )
    if place < 0 and ctypes.get_errno() in _NO_PLACE:
        return None
    return _check_result(place, path)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """One rule; a path that is no place gets none."""
    place = open_place(path, libc)
    if place is None:
        return
    if os.stat(place).st_mode & 0o170000 != 0o040000:
        rights &= OF_FILES
    rule = struct.pack("=Qi", rights, place)
    _check_result(libc.syscall(ADD_RULE, ruleset, _OF_PATH, rule, ctypes.c_uint32(0)), path)
    os.close(place)


def build_filter(network: str, machine: str) -> list[Instruction]:
    """The filter: which system calls are refused on this ``machine``, as (code, jump if true, if
    false, value).

    ``network``: open (TCP and UDP), tcp, connect (TCP that listens nowhere), or none.
    """
    judged = _select_numbers(_JUDGED, machine)
    architecture = _ARCHITECTURES[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUALS, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # the x32 numbers would pass everything by
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for call in _select_numbers(_REFUSED, machine).values():
        code += [(_EQUALS, 0, 1, call), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    code += [
        (_EQUALS, 0, 1, judged["clone3"]),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]  # its flags cannot be read here: libc uses clone
    code += [
        (_EQUALS, 0, 4, judged["clone"]),
        (_LOAD, 0, 0, 16),
        (_ANY_OF, 0, 1, _NEW_USER),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        # of another process of the same user: one second of processor time, and the kernel ends it
        (_EQUALS, 0, 4, judged["prlimit64"]),
        (_LOAD, 0, 0, 16),
        (_EQUALS, 1, 0, 0),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code += _build_set_id_rules(judged)
    if network in ("tcp", "connect"):
        code += [
            each
            for call, place in _SENDING.items()
            for each in _build_fast_open_rules(judged[call], place)
        ]
    # without an address the kernel chooses the port, and Landlock is not asked
    if network == "connect":
        code += [(_EQUALS, 0, 1, judged["listen"]), (_RETURN, 0, 0, _ERRNO | _EACCES)]
    return [
        *code,
        *_build_socketpair_rules(judged["socketpair"]),
        *_build_socket_rules(judged["socket"], network),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _select_numbers(calls: dict[str, _Numbers], machine: str) -> dict[str, int]:
    """The numbers of those calls that this machine has."""
    column = [*_ARCHITECTURES].index(machine)
    return {
        name: number for name, numbers in calls.items() if (number := numbers[column]) is not None
    }


def _build_set_id_rules(judged: dict[str, int]) -> list[Instruction]:
    """No file gets a set-user-id or set-group-id bit: another user of this machine could run it
    with this user's rights.

    ``openat2`` hides its mode from the filter, so it is answered as by a kernel that has no such
    call.
    """
    refused = [(_ANY_OF, 0, 1, _SET_ID), (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)]
    code: list[Instruction] = [
        (_EQUALS, 0, 1, judged["openat2"]),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for call, mode in _SETTING_MODE.items():
        if call in judged:
            code += [(_EQUALS, 0, 4, judged[call]), (_LOAD, 0, 0, 16 + 8 * mode), *refused]
    for call, (flags, mode) in _CREATING.items():
        if call in judged:
            code += [
                (_EQUALS, 0, 7, judged[call]),
                (_LOAD, 0, 0, 16 + 8 * flags),
                (_ANY_OF, 1, 0, _CREATES),
                (_RETURN, 0, 0, _ALLOW),
            ]
            code += [(_LOAD, 0, 0, 16 + 8 * mode), *refused]
    return code


def _build_fast_open_rules(call: int, argument: int) -> list[Instruction]:
    """Data that is sent with the connection (TCP Fast Open) connects past Landlock, to any port."""
    return [
        (_EQUALS, 0, 4, call),
        (_LOAD, 0, 0, 16 + 8 * argument),
        (_ANY_OF, 0, 1, _FAST_OPEN),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _build_socketpair_rules(pair: int) -> list[Instruction]:
    """Streams and packets in order: either end of a pair of datagrams sends to any socket with a
    path (a system's log)."""
    return [
        (_EQUALS, 0, 8, pair),
        (_LOAD, 0, 0, 16),
        (_EQUALS, 0, 4, 1),
        (_LOAD, 0, 0, 24),
        (_AND, 0, 0, 0xF),
        (_EQUALS, 2, 0, 1),
        (_EQUALS, 1, 0, 5),
        (_RETURN, 0, 0, _ERRNO | _EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _build_socket_rules(socket: int, network: str) -> list[Instruction]:
    """None at all, TCP, or TCP and UDP: a path's socket (a database, Docker, a desktop) Landlock
    would let through."""
    refuse = (_RETURN, 0, 0, _ERRNO | _EACCES)
    if network == "none":
        return [(_EQUALS, 0, 1, socket), refuse]
    # the first kind of socket that is refused; 1 is a stream, 2 a datagram
    beyond = 3 if network == "open" else 2
    return [
        (_EQUALS, 0, 13, socket),
        (_LOAD, 0, 0, 16),
        (_EQUALS, 2, 0, 2),
        (_EQUALS, 1, 0, 10),
        refuse,
        (_LOAD, 0, 0, 24),
        (_AND, 0, 0, 0xF),
        (_AT_LEAST, 0, 1, beyond),
        refuse,
        (_LOAD, 0, 0, 32),
        (_EQUALS, 3, 0, 0),
        (_EQUALS, 2, 0, 6),
        (_EQUALS, 1, 0, 17),
        refuse,
    ]


def compile_filter(policy: str) -> bytes:
    """The filter for this policy on this machine, as the kernel and bubblewrap take it."""
    lines = policy.split("\n")
    listens = any(line[:1] == "b" for line in lines)
    if "n" in lines:
        network = "open"
    elif "t" not in lines:
        network = "none"
    else:
        network = "tcp" if listens else "connect"
    return b"".join(
        struct.pack("=HBBI", *each) for each in build_filter(network, os.uname().machine)
    )


def _apply_filter(libc: ctypes.CDLL, packed: bytes) -> None:
    body = ctypes.create_string_buffer(packed, len(packed))
    head = struct.pack("@HP", len(packed) // 8, ctypes.addressof(body))
    _check_result(libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), head, 0, 0), "seccomp")
