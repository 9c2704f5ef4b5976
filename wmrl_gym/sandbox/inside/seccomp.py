"""A system call filter: what no data science script needs, and what most kernel exploits do."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from .kernel import CLONE_NEW_ANY, machine, set_seccomp_filter

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_X32_BIT = 0x40000000
_CLONE3 = 435
# Unix, IPv4 and IPv6: a virtual socket, say, would reach past the network namespace to the machine's host.
_SOCKET_FAMILIES = (1, 2, 10)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is special about one processor architecture.

    Args:
        audit: its audit number.
        clone: the call that may not make namespaces.
        socket: the call that may not reach past the network namespace.
        priority: setpriority, allowed for the calling process only.
        own: prlimit64, sched_setaffinity, sched_setscheduler, sched_setparam and sched_setattr, allowed for the calling process
            only: the kernel would let them change the supervisor, which has the same user.
        refused: ptrace, process_vm_readv/writev, mount, umount2, pivot_root, chroot, setns, unshare, bpf, keyctl, add_key,
            request_key, userfaultfd, perf_event_open, kexec_load, kexec_file_load, init_module, finit_module, delete_module,
            open_by_handle_at, name_to_handle_at, swapon, swapoff, reboot, acct, quotactl, syslog, ioprio_set, and
            shmget, whose memory outlives the processes that a memory limit can kill.
    """

    audit: int
    clone: int
    socket: int
    priority: int
    own: tuple[int, ...]
    refused: tuple[int, ...]


_ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 56, 41, 141, (302, 203, 144, 142, 314), (
        101, 310, 311, 165, 166, 155, 161, 308, 272, 321, 250, 248, 249, 323, 298, 246, 320, 175, 313, 176, 304, 303, 167, 168,
        169, 163, 179, 103, 251, 29,
    )),
    "aarch64": Architecture(0xC00000B7, 220, 198, 140, (261, 122, 119, 118, 274), (
        117, 270, 271, 40, 39, 41, 51, 268, 97, 280, 219, 217, 218, 282, 241, 104, 294, 105, 273, 106, 265, 264, 224, 225, 142,
        89, 60, 116, 30, 194,
    )),
}  # fmt: skip
# The same on every architecture: io_uring, open_tree to fspick, pidfd_getfd, process_madvise, mount_setattr, quotactl_fd.
_REFUSED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443)


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def _unless_zero(argument: int) -> list[bytes]:
    """Refuse unless the low word of that argument is zero."""
    load = _instruction(_LOAD_WORD, _FIRST_ARGUMENT + 8 * argument)
    return [load, _instruction(_JUMP_EQUAL, 0, if_true=1), _refuse()]


def _for_call(number: int, checks: list[bytes]) -> list[bytes]:
    """Make ``checks`` for call ``number``, and allow it if they come to their end."""
    checks = [*checks, _instruction(_RETURN, _ALLOW)]
    return [_instruction(_JUMP_EQUAL, number, if_false=len(checks)), *checks]


def filter_program(architecture: str) -> bytes | None:
    """The filter as classic BPF, or None where the call numbers of ``architecture`` are not known."""
    known = _ARCHITECTURES.get(architecture)
    if known is None:
        return None
    parts = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, known.audit, if_true=1),
        _refuse(),
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, if_false=1),
        _refuse(),
    ]
    for number in (*known.refused, *_REFUSED_EVERYWHERE):
        parts += [_instruction(_JUMP_EQUAL, number, if_false=1), _refuse()]
    # clone3 passes its flags in memory, which a filter cannot read; the C library falls back to clone when there is none.
    parts += [_instruction(_JUMP_EQUAL, _CLONE3, if_false=1), _refuse(errno.ENOSYS)]
    load = _instruction(_LOAD_WORD, _FIRST_ARGUMENT)
    parts += _for_call(known.clone, [load, _instruction(_JUMP_ANY_BIT, CLONE_NEW_ANY, if_false=1), _refuse()])
    last = len(_SOCKET_FAMILIES)
    families = [_instruction(_JUMP_EQUAL, family, if_true=last - at) for at, family in enumerate(_SOCKET_FAMILIES)]
    parts += _for_call(known.socket, [load, *families, _refuse(errno.EAFNOSUPPORT)])
    parts += _for_call(known.priority, [*_unless_zero(0), *_unless_zero(1)])
    for number in known.own:
        parts += _for_call(number, _unless_zero(0))
    return b"".join([*parts, _instruction(_RETURN, _ALLOW)])


def refuse_dangerous_calls() -> None:
    """Install the filter in this process and its descendants, where the architecture is known."""
    program = filter_program(machine())
    if program is not None:
        set_seccomp_filter(program)
