"""The filter of system calls, decided as the kernel would: for both architectures, one of which
this machine is not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from mcpregistry.downstream.transports.confinement import Instruction, build_filter

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
EPERM = 0x50001
EACCES = 0x5000D
ENOSYS = 0x50026
X86 = 0xC000003E
ARM = 0xC00000B7
I386 = 0x40000003
MACHINES = {"x86_64": (X86, 0), "aarch64": (ARM, 1)}
# Numbers on x86-64 and ARM64, as the kernel's headers have them.
REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
NEWER = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}
SOCKET = (41, 198)
PAIR = (53, 199)
CLONE = (56, 220)
LIMITS = (302, 261)
READ = (0, 63)
UNIX = 1
INET = 2
INET6 = 10
NETLINK = 16
PACKET = 17
VSOCK = 40
STREAM = 1
DGRAM = 2
RAW = 3
SEQPACKET = 5
FLAGS = 0o2004000


def decide(code: list[Instruction], arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel answers to this call: it runs the filter's instructions."""
    words = {0: number, 4: arch} | {
        16 + 8 * at: value & 0xFFFFFFFF for at, value in enumerate(arguments)
    }
    held = 0
    at = 0
    while True:
        what, yes, no, value = code[at]
        at += 1
        match what:
            case 0x06:
                return value
            case 0x20:
                held = words[value]
            case 0x54:
                held &= value
            case _:
                holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[what]
                at += yes if holds else no


@pytest.fixture(
    params=[
        (machine, network) for machine in MACHINES for network in ("open", "tcp", "connect", "none")
    ],
    ids=str,
)
def asked(request: pytest.FixtureRequest) -> Iterator:
    """``asked(numbers, *arguments)``: the answer; ``asked.network``."""
    machine, network = request.param
    arch, column = MACHINES[machine]
    code = build_filter(network, machine)

    def ask(numbers: tuple[int, int] | int, *arguments: int, arch: int = arch) -> int:
        number = numbers if isinstance(numbers, int) else numbers[column]
        return decide(code, arch, number, (*arguments, *[0] * (6 - len(arguments))))

    ask.network = network  # type: ignore[attr-defined]
    ask.machine = machine  # type: ignore[attr-defined]
    return ask


@pytest.mark.attack
def test_calls_that_lead_out_are_refused_and_others_are_not(asked) -> None:
    assert {name for name, numbers in REFUSED.items() if asked(numbers) != EPERM} == set()
    assert {name for name, number in NEWER.items() if asked(number) != EPERM} == set()
    assert asked(435) == ENOSYS  # clone3
    assert (asked(READ), asked(439), asked(CLONE, 0x3D0F00), asked(CLONE, 0x10000000)) == (
        ALLOWED,
        ALLOWED,
        ALLOWED,
        EPERM,
    )
    assert asked(CLONE, 0x3D0F00 | 0x10000000) == EPERM


@pytest.mark.attack
def test_calls_of_another_width_end_the_process(asked) -> None:
    assert {asked(READ, arch=arch) for arch in (I386, 0x40000028)} == {KILLED}
    if asked.machine == "x86_64":
        assert {asked(0x40000000 + number) for number in (0, 41, 101, 520)} == {KILLED}


@pytest.mark.attack
def test_limits_are_ones_own_alone(asked) -> None:
    assert (asked(LIMITS, 0), asked(LIMITS, 1), asked(LIMITS, 4711)) == (ALLOWED, EPERM, EPERM)


@pytest.mark.attack
def test_no_file_gets_a_set_id_bit(asked) -> None:
    """Another user of the machine could run it with the rights of this site's user."""
    absent = -1
    setting = [
        ((90, absent), 1),
        ((91, 52), 1),
        ((268, 53), 2),
        ((133, absent), 1),
        ((259, 33), 2),
        ((85, absent), 1),
        (452, 2),
    ]
    for numbers, before in setting:
        if isinstance(numbers, tuple) and absent in numbers and asked.machine == "aarch64":
            continue
        for mode in (0o4755, 0o2755, 0o106000):
            assert asked(numbers, *[0] * before, mode) == EPERM
        assert asked(numbers, *[0] * before, 0o1777) == ALLOWED
    for numbers, before in (((2, absent), 1), ((257, 56), 2)):
        if absent in numbers and asked.machine == "aarch64":
            continue
        for flags in (0o101, 0o20200002):
            assert asked(numbers, *[0] * before, flags, 0o4755) == EPERM
            assert asked(numbers, *[0] * before, flags, 0o644) == ALLOWED
        assert asked(numbers, *[0] * before, 0o2, 0o4755) == ALLOWED, (
            "nothing is created, so there is no mode"
        )
    assert asked(437) == ENOSYS  # openat2


@pytest.mark.attack
def test_pairs_of_sockets_are_streams_and_packets_in_order(asked) -> None:
    assert {
        asked(PAIR, UNIX, kind | flags) for kind in (STREAM, SEQPACKET) for flags in (0, FLAGS)
    } == {ALLOWED}
    others = [
        (UNIX, DGRAM),
        (UNIX, DGRAM | FLAGS),
        (UNIX, RAW),
        (INET, STREAM),
        (30, STREAM),
        (30, SEQPACKET),
    ]
    assert {asked(PAIR, *other) for other in others} == {EACCES}


@pytest.mark.attack
def test_sockets_are_tcp_and_udp_or_none(asked) -> None:
    plain = [
        (family, kind | flags)
        for family, kind, flags in itertools.product((INET, INET6), (STREAM, DGRAM), (0, FLAGS))
    ]
    known = [(INET, STREAM, 6), (INET6, DGRAM, 17)]
    for each in (*plain, *known):
        stream = each[1] & 0xF == STREAM
        open_now = asked.network == "open" or (asked.network in ("tcp", "connect") and stream)
        assert asked(SOCKET, *each) == (ALLOWED if open_now else EACCES)
    others = [(family, STREAM) for family in (UNIX, NETLINK, PACKET, VSOCK)]
    others += [
        (UNIX, DGRAM),
        (INET, RAW),
        (INET6, RAW | FLAGS),
        (INET, SEQPACKET),
        (INET, STREAM, 132),
        (INET, STREAM, 262),
    ]
    others += [(INET, DGRAM, 1), (INET6, DGRAM, 58), (INET6, DGRAM, 136)]
    assert {asked(SOCKET, *each) for each in others} == {EACCES}


@pytest.mark.attack
def test_where_ports_are_named_nothing_connects_or_listens_past_them(asked) -> None:
    """TCP Fast Open connects with the first data; ``listen`` alone takes a port that the kernel
    chooses."""
    fast = 0x20000000
    named = asked.network in ("tcp", "connect")
    for numbers, before in (((44, 206), 3), ((46, 211), 2), ((307, 269), 3)):
        assert asked(numbers, *[0] * before, fast | 0x4000) == (EPERM if named else ALLOWED)
        assert asked(numbers, *[0xFFFFFFFF] * before, 0x4000) == ALLOWED
    assert asked((50, 201), 3, 5) == (EACCES if asked.network == "connect" else ALLOWED)
