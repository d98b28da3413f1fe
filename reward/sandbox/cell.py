"""A cell: what stands between untrusted text and the machine. Built in two steps, both one-way.

`PreparedLevel` is made once, by a zygote, before it serves: identity and, at the levels with namespaces, no network and
a root directory of its own with nothing in it but the interpreter, which cannot be written to. `enter` is called by
each child of the zygote: with namespaces a fresh /tmp, which hides nothing that can be read, and a process-id space of
its own, no capability, Landlock at the levels that have it, the runner's filter. `confine` is called last, in the
process that meets the untrusted text.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from reward.sandbox import kernel, landlock, seccomp

_NOBODY = 65534
_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _MOVE, _REC, _PRIVATE = 4096, 8192, 16384, 1 << 18
_DETACH = 2
_CAP_DAC_READ_SEARCH = 2
_STAGING = "/sys"
"""A directory that every Linux has and no interpreter lives in; covered in our own mount space."""
_NEXT_TMP = "/next-tmp"
"""Where a cell prepares its /tmp, while it can still see the old one."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
SYSTEM_LIBRARIES = ("/usr", "/lib", "/lib64", "/bin")
_TMP_MIB = 64


class Level(StrEnum):
    """How strong the confinement is, the strongest first; a probe at start finds the strongest that works."""

    namespaces = "namespaces"
    """User, mount, pid, network, ipc and uts namespaces, Landlock and seccomp."""
    landlock = "landlock"
    """Landlock and seccomp: nothing is writable, other processes are visible by number only."""
    namespaces_only = "namespaces-only"
    """The namespaces and seccomp, for kernels without Landlock (before 5.13, such as 4.18 of RHEL 8, or without
    lsm=landlock): only read-only mounts prevent a program from changing the files that it can read."""
    none = "none"
    """Resource limits only: for machines where nothing else works, on explicit demand."""

    @property
    def has_namespaces(self) -> bool:
        return self in (Level.namespaces, Level.namespaces_only)

    @property
    def has_landlock(self) -> bool:
        return self in (Level.namespaces, Level.landlock)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLimits:
    """Limits of one process, in bytes; what exceeds one is refused."""

    memory: int
    file_size: int
    stack: int = 256 << 20

    def apply(self) -> None:
        def limit(what: int, value: int) -> None:
            hard = resource.getrlimit(what)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (value, value))

        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_AS, self.memory)
        limit(resource.RLIMIT_FSIZE, self.file_size)
        limit(resource.RLIMIT_NOFILE, 64)
        limit(resource.RLIMIT_STACK, self.stack)
        limit(resource.RLIMIT_MSGQUEUE, 0)
        limit(resource.RLIMIT_MEMLOCK, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLevel:
    """Mounts, identity and filters, made once by a zygote; every child enters its cell from here. `read`: all that can
    be read inside."""

    level: Level
    read: tuple[str, ...]

    @classmethod
    def prepare(cls, level: Level, read: Sequence[str]) -> PreparedLevel:
        """Changes this process for good; it must be single-threaded. Raises OSError or Unsupported."""
        paths = (*SYSTEM_LIBRARIES, *read)
        if level.has_landlock and landlock.abi() < 1:
            raise kernel.Unsupported("the kernel has no Landlock (Linux 5.13 or later with lsm=landlock)")
        if level is not Level.none:
            seccomp.prepare()
        if level.has_namespaces:
            _enter_namespaces(paths)
            os.chdir("/tmp")
        elif level is Level.landlock:
            _become_nobody(keep_reading=True)
            os.chdir("/")
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        return cls(level=level, read=(*paths, *_DEVICES))

    def fork(self) -> int:
        """Forks as os.fork does. With namespaces the child is pid 1 of a process-id space of its own: when it ends, by
        itself or killed, the kernel ends everything that it started before anybody can wait for it."""
        if self.level.has_namespaces:
            return kernel.fork_into(_NEWPID | _NEWNS)
        return os.fork()

    def enter(self) -> None:
        """Closes the cell around a fresh child of `fork`. Raises OSError."""
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        if self.level is Level.none:
            return
        if self.level.has_namespaces:
            _mount_tmp(self.read)
            _drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if self.level.has_landlock:
            write = ("/tmp",) if self.level.has_namespaces else ()
            landlock.restrict(landlock.rules(self.read, write=write, devices=("/dev/null",)))
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: a change of credentials clears it
        seccomp.install("runner")

    def confine(self) -> None:
        """Installs the submission's filter. To be called in the process that meets untrusted text."""
        if self.level is not Level.none:
            seccomp.install("submission")


def _enter_namespaces(paths: Sequence[str]) -> None:
    """Gives this process a root of its own, no network, and an identity that owns nothing outside.

    Real root mounts first and then becomes nobody, because nobody may not walk to an interpreter below /root.
    Anybody else needs the user namespace to be allowed to mount, and owns there what they own outside.
    """
    own_maps = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)  # /proc is gone after the change of root
    mounted = False
    if os.geteuid() == 0 and _could_be_nobody():
        try:
            kernel.unshare(_NEWNS)
            _change_root(paths)
            mounted = True
            _become_nobody(keep_reading=False)
        except PermissionError:
            if mounted:
                raise
    user, group = os.getuid(), os.getgid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or the maps belong to root
    kernel.unshare(_NEWUSER | _NEWNS | _NEWNET | _NEWIPC | _NEWUTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        handle = os.open(name, os.O_WRONLY, dir_fd=own_maps)
        os.write(handle, text.encode())
        os.close(handle)
    os.close(own_maps)
    if not mounted:
        _change_root(paths)
    _forbid_capabilities()  # a cell gives up those that it still has: it has mounted its /tmp by then


def _change_root(paths: Sequence[str]) -> None:
    kernel.mount(None, "/", None, _REC | _PRIVATE)
    kernel.mount("tmpfs", _STAGING, "tmpfs", _NOSUID | _NODEV, "size=4m,nr_inodes=1024,mode=755")
    for source in (*paths, *_DEVICES):
        if not os.path.exists(source):
            continue
        target = _STAGING + source
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(source) and source in SYSTEM_LIBRARIES:
            os.symlink(os.readlink(source), target)
            continue
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(source, target, None, _BIND | _REC)
    for name in ("/tmp", _NEXT_TMP, "/old"):
        os.makedirs(_STAGING + name, exist_ok=True)
    os.chdir(_STAGING)
    kernel.syscall("pivot_root", b".", b"old")
    os.chdir("/")
    found = mounts("/old/proc/self/mountinfo")
    kernel.check(kernel.LIBC.umount2(b"/old", _DETACH), "umount /old")
    os.rmdir("/old")
    # Each by itself, the root too: the flags of /usr mean nothing on another mount below it.
    for place, options in found.items():
        if place not in _DEVICES and place != "/old" and not place.startswith("/old/"):
            kept = _NOEXEC if b"noexec" in options else 0  # a user namespace may not take it off
            kernel.mount(None, place, None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | kept)


def _mount_tmp(read: Sequence[str]) -> None:
    """Covers /tmp with an empty file system of this cell's own. What can be read below /tmp stays at its place, as
    read-only as before: an environment there would otherwise lose the modules that it has not imported yet."""
    options = f"size={_TMP_MIB}m,nr_inodes=4096,mode=777"
    kernel.mount("tmpfs", _NEXT_TMP, "tmpfs", _NOSUID | _NODEV, options)
    for path in read:
        if os.path.commonpath(("/tmp", path)) == "/tmp" and os.path.isdir(path):
            target = _NEXT_TMP + path.removeprefix("/tmp")
            os.makedirs(target, exist_ok=True)
            kernel.mount(path, target, None, _BIND | _REC)
    kernel.mount(_NEXT_TMP, "/tmp", None, _MOVE)
    os.chdir("/tmp")


def mounts(file: str = "/proc/self/mountinfo") -> dict[str, list[bytes]]:
    """Returns the options of each mount by its path, from /proc/PID/mountinfo (proc(5)), where blanks and the like are
    octal numbers. Raises OSError."""
    found = {}
    with open(file, "rb") as stream:
        for line in stream:
            place, options = line.split(b" ")[4:6]
            place = re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), place)
            found[os.fsdecode(place)] = options.split(b",")
    return found


def _could_be_nobody() -> bool:
    """False for the root of a container that has no other user (enroot with ENROOT_REMAP_ROOT): a user's own rights are
    all that it has outside."""
    with open("/proc/self/uid_map") as stream:
        ranges = [[int(word) for word in line.split()] for line in stream]
    return any(first <= _NOBODY < first + count for first, _outside, count in ranges)


def _become_nobody(*, keep_reading: bool) -> None:
    """Root gives itself up. With `keep_reading` it keeps the right to walk through closed directories to the
    interpreter; Landlock decides what it reads. Raises Unsupported where the change has no effect (enroot)."""
    if os.geteuid() != 0:
        return
    if keep_reading:
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    if os.getresuid() != (_NOBODY,) * 3 or os.getresgid() != (_NOBODY,) * 3 or os.getgroups():
        raise kernel.Unsupported(
            "this container pretends to change user and group ids (as enroot's does with ENROOT_REMAP_ROOT), so the "
            "sandbox would run as root: start it without that"
        )
    _forbid_capabilities()
    _drop_capabilities(keep=1 << _CAP_DAC_READ_SEARCH if keep_reading else 0)


def _forbid_capabilities() -> None:
    """Drops all capabilities for good, for this process and all that it forks."""
    for capability in range(64):
        if kernel.LIBC.prctl(kernel.PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def _drop_capabilities(keep: int = 0) -> None:
    header = struct.pack("=Ii", 0x20080522, 0)
    try:
        kernel.syscall("capset", header, struct.pack("=6I", keep, keep, 0, 0, 0, 0))
    except PermissionError:  # never had it: root in a container without that capability
        kernel.syscall("capset", header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))
