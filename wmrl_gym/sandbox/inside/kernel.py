"""The system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

# PyDLL keeps the interpreter's lock during a call, so that a raw clone() leaves the child's only thread holding it.
_LIBC = ctypes.PyDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
CLONE_NEW_ANY = 0x7E020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_SIGCHLD = 17
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 4, 24, 22, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47
_MADV_POPULATE_WRITE = 23
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def machine() -> str:
    """The processor's architecture, such as "x86_64"."""
    return os.uname().machine


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def clone(flags: int) -> int:
    """Fork into new namespaces; 0 in the child. The caller must have one thread only.

    Raises:
        OSError: the kernel refuses the namespaces, or this processor's call number is not known.
    """
    number = _SYS_CLONE.get(machine())
    if number is None:
        raise OSError(38, f"clone: no call number known for {machine()}")
    ctypes.pythonapi.PyOS_BeforeFork()
    result = int(_LIBC.syscall(number, ctypes.c_ulong(flags | _SIGCHLD), None, None, None, None))
    if result == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _checked(result, "clone")


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None = None, *, flags: int = 0, options: str = "") -> None:
    """Mount ``source`` on ``target``."""
    encoded = (os.fsencode(source), os.fsencode(target), kind and kind.encode())
    _checked(_LIBC.mount(*encoded, ctypes.c_ulong(flags), options.encode() or None), f"mount {source} on {target}")


def populate(start: int, length: int) -> None:
    """Have the writable memory from address ``start`` ready to be written to; what cannot be done ahead is left for later."""
    _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)


def set_dumpable(dumpable: bool) -> None:
    """Whether others of the same user may trace this process and read its memory."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def set_child_subreaper() -> None:
    """Become the parent of this process's orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    """Let no program that is run from here on gain privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _Filter(ctypes.Structure):
    """A classic BPF program as the kernel takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    def __init__(self, program: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(program, len(program))
        super().__init__(len(program) // 8, ctypes.addressof(self.buffer))


def set_seccomp_filter(program: bytes) -> None:
    """Filter this process's system calls by a classic BPF ``program``, for good."""
    _checked(_LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(_Filter(program)), None, None), "prctl")


def set_listening_filter(program: bytes, number: int) -> int:
    """The same by call ``number``, with a descriptor for whoever answers the calls that the program leaves open."""
    flags = ctypes.c_ulong(1 << 3)
    return _checked(_LIBC.syscall(number, ctypes.c_ulong(1), flags, ctypes.byref(_Filter(program))), "seccomp")


def drop_capabilities() -> None:
    """Give up every capability, and any way to get one back."""
    for capability in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), None, None, None) < 0:
            break  # past the last one that this kernel knows, or none may be dropped because none is held
    _LIBC.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(4), None, None, None)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _prctl(option: int, value: int) -> None:
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), None, None, None), "prctl")
