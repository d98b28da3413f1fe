"""The C library and the kernel's constants, through ctypes, so that the sandbox needs no other package."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
_HOLDING_GIL = ctypes.PyDLL(None, use_errno=True)
_HOLDING_GIL.syscall.restype = ctypes.c_long
_HOLDING_GIL.syscall.argtypes = [ctypes.c_long] * 6
LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
LIBC.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]

MACHINE = platform.machine()
_COLUMN = {"x86_64": 0, "aarch64": 1}

_SIGCHLD = int(signal.SIGCHLD)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 1, 4, 8, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38


class Unsupported(RuntimeError):
    """This machine cannot provide what the sandbox needs; the message is one sentence."""


def number(name: str, machine: str = MACHINE) -> int | None:
    """Returns the number of a system call; None if the machine lacks it. Raises Unsupported on an unknown machine."""
    if machine not in _COLUMN:
        raise Unsupported(
            f"the sandbox has no system-call table for {machine}, only for {' and '.join(_COLUMN)}"
        )
    return NUMBERS[name][_COLUMN[machine]]


def check(result: int, what: str) -> int:
    """Returns a result unchanged; raises OSError with errno if it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *arguments: object) -> int:
    """Makes a raw system call. Integers are passed as 64 bit. Raises OSError."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return check(LIBC.syscall(ctypes.c_long(number(name) or 0), *values), name)


def fork_into(namespaces: int) -> int:
    """Forks a child into new namespaces, in one system call. Returns 0 in the child. The process must be
    single-threaded.

    Python's own fork hooks do not run, which is sound for a child that keeps only this thread.
    """
    return check(_HOLDING_GIL.syscall(_CLONE, namespaces | _SIGCHLD, 0, 0, 0, 0), "clone")


def install_filter(descriptor: int) -> None:
    """Installs the seccomp filter whose `struct sock_fprog` is at this address on this thread, irrevocably. The process
    must have set PR_SET_NO_NEW_PRIVS. Raises OSError."""
    check(_HOLDING_GIL.syscall(_SECCOMP, 1, 0, descriptor, 0, 0), "seccomp")


def prctl(option: int, value: int = 0, pointer: int = 0) -> None:
    """Calls prctl(2). Raises OSError."""
    check(LIBC.prctl(option, value, pointer, 0, 0), f"prctl {option}")


def unshare(flags: int) -> None:
    """Calls unshare(2). Raises OSError."""
    check(LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Calls mount(2). Raises OSError."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    check(LIBC.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


# fmt: off
NUMBERS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None),
    "fstat": (5, 80), "lstat": (6, None), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "ioctl": (16, 29), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None), "pipe": (22, None),
    "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216), "msync": (26, 227),
    "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None), "pause": (34, None),
    "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None), "setitimer": (38, 103),
    "getpid": (39, 172), "exit": (60, 93), "wait4": (61, 260), "waitid": (247, 95), "kill": (62, 129),
    "uname": (63, 160), "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None),
    "creat": (85, None), "link": (86, None), "unlink": (87, None), "symlink": (88, None),
    "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169), "getrlimit": (97, 163),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174),
    "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173),
    "getpgrp": (111, None), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150),
    "getpgid": (121, 155), "getsid": (124, 156), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "prctl": (157, 167), "arch_prctl": (158, None),
    "setrlimit": (160, 164), "gettid": (186, 178), "time": (201, None), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128),
    "fadvise64": (221, 223), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None), "epoll_ctl": (233, 21),
    "tgkill": (234, 131), "openat": (257, 56), "mkdirat": (258, 34), "newfstatat": (262, 79),
    "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36),
    "readlinkat": (267, 78), "faccessat": (269, 48), "fchmod": (91, 52), "fchmodat": (268, 53),
    "chmod": (90, None), "utimensat": (280, 88), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "get_robust_list": (274, 100), "epoll_pwait": (281, 22),
    "eventfd": (284, None), "fallocate": (285, 47), "eventfd2": (290, 19), "epoll_create1": (291, 20),
    "dup3": (292, 24), "pipe2": (293, 59), "prlimit64": (302, 261), "sched_getattr": (315, 275),
    "renameat2": (316, 276), "getrandom": (318, 278), "membarrier": (324, 283), "copy_file_range": (326, 285),
    "sendfile": (40, 71), "statfs": (137, 43), "fstatfs": (138, 44), "statx": (332, 291), "rseq": (334, 293),
    "clone": (56, 220), "clone3": (435, 435), "fork": (57, None), "vfork": (58, None),
    "close_range": (436, 436), "openat2": (437, 437), "faccessat2": (439, 439),
    "unshare": (272, 97), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39), "capset": (126, 91), "seccomp": (317, 277), "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446), "execve": (59, 221),
}
# fmt: on
"""System call numbers by name, for the two supported machines: x86_64 as in the kernel's
arch/x86/entry/syscalls/syscall_64.tbl, aarch64 as in include/uapi/asm-generic/unistd.h (None where that table lacks the
call and the C library uses a newer one). A test compares both with the headers."""
_CLONE, _SECCOMP = (NUMBERS[name][_COLUMN.get(MACHINE, 0)] or 0 for name in ("clone", "seccomp"))
