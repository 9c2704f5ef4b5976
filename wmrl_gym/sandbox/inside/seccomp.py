"""A system call filter: what no data science script needs, what most kernel exploits do, and what no limit would count."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from dataclasses import dataclass

from .kernel import CLONE_NEW_ANY, machine, set_listening_filter, set_seccomp_filter

_LOAD_WORD, _MASK, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _REFUSE, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
_X32_BIT = 0x40000000
_CLONE3 = 435
_PRETEND = 0  # as an error number: the call does nothing and says that it did
# Unix sockets only. Any other family would leave traces (ports, counters) in a network namespace that several runs use one after
# the other, and holds memory of the kernel's that belongs to no process.
_SOCKET_FAMILIES = (1,)
_SIGCHLD = 17
_MAP_TYPE, _MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x0F, 0x01, 0x20, 0x40000
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and the same by force
_FCNTL_REFUSED = (1024, 1026, 1031)  # F_SETLEASE and F_NOTIFY, which reach the host's files, and F_SETPIPE_SZ
_NEWEST = 463
"""The first call number that nobody has looked at: none from here on exists."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is special about one processor architecture.

    Args:
        audit: its audit number.
        clone: the call that may not make namespaces.
        socket: socket and socketpair, which may make Unix sockets only.
        priority: setpriority, allowed for the calling process only.
        own: prlimit64, sched_setaffinity, sched_setscheduler, sched_setparam and sched_setattr, allowed for the calling process
            only: the kernel would let them change the supervisor, which has the same user.
        refused: ptrace, process_vm_readv/writev, mount, umount2, pivot_root, chroot, setns, unshare, bpf, keyctl, add_key,
            request_key, userfaultfd, perf_event_open, kexec_load, kexec_file_load, init_module, finit_module, delete_module,
            open_by_handle_at, name_to_handle_at, swapon, swapoff, reboot, acct, quotactl, syslog and ioprio_set.
        flock: which would hold a lock on a file of the host's; scripts may lock their own by other means.
        uncounted: memfd_create, vmsplice, shmget, semget and msgget, whose memory belongs to no process that could be asked.
        mmap: which may not make shared memory without a file, for the same reason.
        fcntl: which may not enlarge pipes, or lease files.
        setsockopt: which does not enlarge socket buffers, though it says so.
        sigaction: which the supervisor is asked about where it is for the signal of a child's end: the kernel lets go of the
            children of who ignores it without adding their CPU time to anyone's.
        seccomp: the call that installs a filter.
    """

    audit: int
    clone: int
    socket: tuple[int, int]
    priority: int
    own: tuple[int, ...]
    refused: tuple[int, ...]
    flock: int
    uncounted: tuple[int, ...]
    mmap: int
    fcntl: int
    setsockopt: int
    sigaction: int
    seccomp: int


_ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E, clone=56, socket=(41, 53), priority=141, own=(302, 203, 144, 142, 314),
        refused=(
            101, 310, 311, 165, 166, 155, 161, 308, 272, 321, 250, 248, 249, 323, 298, 246, 320, 175, 313, 176, 304, 303, 167,
            168, 169, 163, 179, 103, 251,
        ),
        flock=73, uncounted=(319, 278, 29, 64, 68), mmap=9, fcntl=72, setsockopt=54, sigaction=13, seccomp=317,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7, clone=220, socket=(198, 199), priority=140, own=(261, 122, 119, 118, 274),
        refused=(
            117, 270, 271, 40, 39, 41, 51, 268, 97, 280, 219, 217, 218, 282, 241, 104, 294, 105, 273, 106, 265, 264, 224, 225,
            142, 89, 60, 116, 30,
        ),
        flock=32, uncounted=(279, 75, 194, 190, 186), mmap=222, fcntl=25, setsockopt=208, sigaction=134, seccomp=277,
    ),
}  # fmt: skip
# The same on every architecture: io_uring, open_tree to fspick, pidfd_getfd, process_madvise, mount_setattr, quotactl_fd,
# statmount and listmount; and memfd_secret.
_REFUSED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443, 457, 458)
_UNCOUNTED_EVERYWHERE = (447,)


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def _load(argument: int) -> bytes:
    """Load the low word of an argument of the call; both architectures keep it first."""
    return _instruction(_LOAD_WORD, _FIRST_ARGUMENT + 8 * argument)


def _unless_zero(argument: int) -> list[bytes]:
    """Refuse unless the low word of that argument is zero."""
    return [_load(argument), _instruction(_JUMP_EQUAL, 0, if_true=1), _refuse()]


def _if_any(values: tuple[int, ...], number: int = errno.EPERM) -> list[bytes]:
    """Refuse if what is loaded is one of ``values``."""
    return [part for value in values for part in (_instruction(_JUMP_EQUAL, value, if_false=1), _refuse(number))]


def _for_call(number: int, checks: list[bytes]) -> list[bytes]:
    """Make ``checks`` for call ``number``, and allow it if they come to their end."""
    checks = [*checks, _instruction(_RETURN, _ALLOW)]
    return [_instruction(_JUMP_EQUAL, number, if_false=len(checks)), *checks]


def _reaching_out(known: Architecture) -> list[bytes]:
    """Refuse what reaches out of the run."""
    parts = _if_any((*known.refused, *_REFUSED_EVERYWHERE))
    parts += _if_any((known.flock,), errno.ENOSYS)
    # clone3 passes its flags in memory, which a filter cannot read; the C library falls back to clone when there is none.
    parts += _if_any((_CLONE3,), errno.ENOSYS)
    parts += _for_call(known.clone, [_load(0), _instruction(_JUMP_ANY_BIT, CLONE_NEW_ANY, if_false=1), _refuse()])
    last = len(_SOCKET_FAMILIES)
    families = [_instruction(_JUMP_EQUAL, family, if_true=last - at) for at, family in enumerate(_SOCKET_FAMILIES)]
    for number in known.socket:
        parts += _for_call(number, [_load(0), *families, _refuse(errno.EAFNOSUPPORT)])
    parts += _for_call(known.priority, [*_unless_zero(0), *_unless_zero(1)])
    for number in known.own:
        parts += _for_call(number, _unless_zero(0))
    return parts


def _uncounted(known: Architecture, *, asks: bool) -> list[bytes]:
    """Refuse what a limit would not see: memory that belongs to no process, and children whose CPU time belongs to nobody."""
    parts = _if_any((*known.uncounted, *_UNCOUNTED_EVERYWHERE))
    shared = [_instruction(_MASK, _MAP_TYPE), _instruction(_JUMP_EQUAL, _MAP_SHARED, if_false=1), _refuse()]
    checks = [
        _load(3), _instruction(_JUMP_ANY_BIT, _MAP_HUGETLB, if_false=1), _refuse(errno.ENOMEM),
        _instruction(_JUMP_ANY_BIT, _MAP_ANONYMOUS, if_true=1), _instruction(_RETURN, _ALLOW), *shared,
    ]  # fmt: skip
    parts += _for_call(known.mmap, checks)
    parts += _for_call(known.fcntl, [_load(1), *_if_any(_FCNTL_REFUSED)])
    other = [_load(1), _instruction(_JUMP_EQUAL, _SOL_SOCKET, if_true=1), _instruction(_RETURN, _ALLOW)]
    parts += _for_call(known.setsockopt, [*other, _load(2), *_if_any(_BUFFER_SIZES, _PRETEND)])
    if asks:
        other = [_load(0), _instruction(_JUMP_EQUAL, _SIGCHLD, if_true=1), _instruction(_RETURN, _ALLOW)]
        parts += _for_call(known.sigaction, [*other, _instruction(_RETURN, _ASK)])
    return parts


def filter_program(architecture: str, *, isolated: bool = True, asks: bool = True) -> bytes | None:
    """The filter as classic BPF, or None where the call numbers of ``architecture`` are not known.

    Args:
        architecture: as ``os.uname().machine`` names it.
        isolated: whether to refuse what reaches out of the run; what no limit would count is refused anyway.
        asks: whether there is a supervisor that answers what cannot be decided by a call's numbers alone.
    """
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
        _instruction(_JUMP_AT_LEAST, _NEWEST, if_false=1),
        _refuse(errno.ENOSYS),
        *_uncounted(known, asks=asks),
    ]
    if isolated:
        parts += _reaching_out(known)
    return b"".join([*parts, _instruction(_RETURN, _ALLOW)])


def refuse_dangerous_calls(*, isolated: bool) -> int | None:
    """Install the filter in this process and its descendants, where the architecture is known.

    Returns:
        A descriptor for whoever answers (see :func:`answer`); None where nobody can be asked.
    """
    known = _ARCHITECTURES.get(machine())
    if known is None:
        return None
    with suppress(OSError):  # a process may have one such listener only, and this may be inside of another sandbox
        return set_listening_filter(filter_program(machine(), isolated=isolated) or b"", known.seccomp)
    set_seccomp_filter(filter_program(machine(), isolated=isolated, asks=False) or b"")
    return None


_NOTICE, _REPLY = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_SIG_IGN, _SA_NOCLDWAIT = 1, 2


def answer(listener: int) -> None:
    """Answer one call: who asks to have its children's end ignored is told so, and nothing is changed; all else is done."""
    notice = bytearray(_NOTICE.size)
    with suppress(OSError):  # whoever asked has been killed
        fcntl.ioctl(listener, _RECEIVE, notice)
        asking, task, *_, _, action = _NOTICE.unpack(notice)[:8]
        done = action == 0 or not _ignores(task, action)
        fcntl.ioctl(listener, _SEND, _REPLY.pack(asking, 0, 0, _CONTINUE if done else 0))


def _ignores(task: int, action: int) -> bool:
    """Whether the action at that address of a task's memory would have its children go unnoticed."""
    try:
        with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
            handler, flags = struct.unpack("=QQ", os.pread(memory.fileno(), 16, action))
    except (OSError, struct.error, OverflowError):
        return True
    return handler == _SIG_IGN or bool(flags & _SA_NOCLDWAIT)
