"""What the kernel keeps from a process: namespaces, system calls, files, limits.

All of it is called in processes of the sandbox, before tested code runs there. Without Linux only
the resource limits are left.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

IS_LINUX = sys.platform == "linux"
NOBODY = 65534
"""The user and group that tested code has where the caller is root."""

SCRATCH = "/tmp"
"""The folder that tested code may write to, in a file system of its own."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)

# linux/sched.h, linux/mount.h, linux/prctl.h
_NEW_NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_PRIVATE, _MNT_DETACH = 16384, 1 << 18, 2
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = -100, 0x8000, 1, 2
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _LANDLOCK = 442, 444  # the same on all machines


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = (part.encode() if part else None for part in (source, target, kind))
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None)
    _checked(result, f"mount {target}")


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def enter_namespaces(readable: Sequence[str], scratch_bytes: int) -> None:
    """Go on as the first process of new namespaces, with few files and no network.

    Of the file system, ``readable`` and three devices are left, read-only, and an empty SCRATCH.
    This process waits for that one, and ends with it. Raises OSError where the kernel refuses.
    """
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(ready[1])
        os.close(go[0])
        if os.read(ready[0], 1):
            with contextlib.suppress(OSError):  # then the child finds no user, and ends
                _map_users(child)
                os.write(go[1], b"g")
        os.close(go[1])
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    try:
        os.close(ready[0])
        os.close(go[1])
        _checked(_libc.unshare(_NEW_NAMESPACES), "unshare")
        os.write(ready[1], b"r")
        if not os.read(go[0], 1):
            raise OSError("no user in the new namespace")
        os.close(ready[1])
        os.close(go[0])
        # Nothing in it may make namespaces, in which it could mount what no limit counts.
        with contextlib.suppress(OSError):
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
        _leave_files(readable, scratch_bytes)
    except BaseException:
        os._exit(1)
    first = os.fork()  # in the new process namespace
    if first:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 255)


def _map_users(child: int) -> None:
    """Give the namespace of a child its users: root and NOBODY, or this user as NOBODY."""
    is_root = os.geteuid() == 0
    if not is_root:
        Path(f"/proc/{child}/setgroups").write_text("deny")
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        lines = f"0 0 1\n{NOBODY} {NOBODY} 1\n" if is_root else f"{NOBODY} {own} 1\n"
        Path(f"/proc/{child}/{kind}_map").write_text(lines)


def _leave_files(readable: Sequence[str], scratch_bytes: int) -> None:
    """Make a new root in which only the readable paths are, and leave the old one."""
    root = "/sys"  # no readable path is in it
    _mount("", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    Path(root + SCRATCH).mkdir(parents=True)
    options = f"size={scratch_bytes},nr_inodes=10000,mode=1777"
    _mount("tmpfs", root + SCRATCH, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for path in (*readable, *DEVICES):
        _show(path, root)
    Path(f"{root}/.old").mkdir()
    number = _PIVOT_ROOT[platform.machine()]
    _checked(_libc.syscall(number, root.encode(), f"{root}/.old".encode()), "pivot_root")
    os.chdir("/")
    _checked(_libc.umount2(b"/.old", _MNT_DETACH), "umount")
    Path("/.old").rmdir()
    _mount("", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _show(path: str, root: str) -> None:
    """Make a path of the old root readable in the new one."""
    source, target = Path(path), Path(root + path)
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() and not source.readlink().is_absolute():  # /lib -> usr/lib
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(path, str(target), "", _MS_BIND | _MS_REC)
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, str(target).encode(), _AT_RECURSIVE, attributes, 32
    )
    _checked(result, f"mount_setattr {path}")


def adopt_orphans() -> None:
    """Make this process the parent of all processes below it whose own parent ends."""
    if IS_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep processes of the same user from reading and changing this process's memory."""
    if IS_LINUX:
        _prctl(_PR_SET_DUMPABLE, 0)


def drop_privileges() -> None:
    """Go on as NOBODY where this is root, and without any capability."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if IS_LINUX:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        version_3 = struct.pack("Ii", 0x20080522, 0)
        _checked(_libc.capset(version_3, struct.pack("6I", *[0] * 6)), "capset")


def set_limits(*, seconds: int, memory: int, processes: int, file_bytes: int) -> None:
    """Limit this process and those that it starts, each for itself; sizes are in bytes."""
    limits = {
        "CPU": (seconds, seconds + 1),
        "AS": (memory, memory),
        "FSIZE": (file_bytes, file_bytes),
        "NOFILE": (64, 64),
        "CORE": (0, 0),
        # Two of the sandbox may count as this user's.
        "NPROC": (processes + 2, processes + 2),
        "MSGQUEUE": (0, 0),
        "MEMLOCK": (0, 0),
    }
    for name, values in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            with contextlib.suppress(ValueError, OSError):  # a stricter one is in force
                resource.setrlimit(number, values)


def leave_only(readable: Sequence[str], writable: str) -> bool:
    """Without namespaces: keep this process from all other files, by Landlock.

    Returns False where the kernel has none.
    """
    version = _libc.syscall(_LANDLOCK, None, 0, 1) if IS_LINUX else -1
    if version < 1:
        return False
    added = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # rights by the version that brought them
    every = (1 << 13) - 1 | sum(bit for first, bit in added.items() if version >= first)
    reading = 0b1101  # execute, read files, read folders
    # Files, connections, and (from version 6 on) signals and sockets outside of it.
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", every, 3 if version >= 4 else 0, 3)[:size]
    rules = _checked(_libc.syscall(_LANDLOCK, attributes, size, 0), "landlock")
    of_file = 0b111 | (every & (1 << 14 | 1 << 15))
    for path, rights in [
        *((path, reading) for path in readable),
        *((path, of_file) for path in DEVICES),
        (writable, every),
    ]:
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # it does not exist, or is closed to NOBODY
            continue
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            rights &= of_file
        rule = struct.pack("=Qi", rights, file)
        _checked(_libc.syscall(_LANDLOCK + 1, rules, 1, rule, 0), "landlock")
        os.close(file)
    _checked(_libc.syscall(_LANDLOCK + 2, rules, 0), "landlock")
    os.close(rules)
    return True


# System calls that are refused, with their numbers on x86_64 and aarch64: other processes'
# memory, namespaces and mounts, sockets, and what outlives a process (queues, shared memory, keys).
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _CLONE3, _FORK, _VFORK = (56, 220), 435, 57, 58
_EPERM, _EAGAIN, _ENOSYS = 1, 11, 38
_X32 = 0x40000000  # numbers of x86_64's other calls begin here


def refuse_calls(*, may_fork: bool) -> bool:
    """Let the kernel refuse system calls that tested code has no use for, by seccomp.

    Returns False where this machine's calls are not known.
    """
    if not IS_LINUX or platform.machine() not in _MACHINES:
        return False
    column, architecture = _MACHINES[platform.machine()]

    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    def refused(number: int, error: int) -> list[bytes]:
        return [step(equal, number, 0, 1), step(end, refuse | error)]

    program = [step(load, 4), step(equal, architecture, 1, 0), step(end, refuse | _EPERM)]
    program += [step(load, 0)]
    if column == 0:
        program += [step(at_least, _X32, 0, 1), step(end, refuse | _EPERM)]
        if not may_fork:
            program += refused(_FORK, _EAGAIN) + refused(_VFORK, _EAGAIN)
    for numbers in _REFUSED.values():
        program += refused(numbers[column], _EPERM)
    program += refused(_CLONE3, _ENOSYS)  # its flags cannot be read here; libraries use clone then
    if may_fork:
        is_clone = step(equal, _CLONE[column], 0, 3)
        makes_namespace = [step(load, 16), step(any_bit, 0x7E020000, 0, 1)]
        program += [is_clone, *makes_namespace, step(end, refuse | _EPERM)]
    else:
        program += refused(_CLONE[column], _EAGAIN)
    program += [step(end, allow)]

    filters = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(filters))
    _checked(_libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")
    return True


def end_children(main: int) -> int:
    """End a child and all that it started; return its status as waitpid gives it."""
    status, is_left = 0, True
    while True:
        try:
            ended, its_status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                _kill_children([main] if is_left else [])
                # One at a time: what it leaves becomes a child of this process.
                ended, its_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended == main:
            status, is_left = its_status, False


def _kill_children(known: Sequence[int]) -> None:
    targets = [-1] if os.getpid() == 1 else _children() or known  # -1: all of an own namespace
    for target in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, signal.SIGKILL)


def _children() -> list[int]:
    """The processes that this one is the parent of; [] where that cannot be found."""
    own = os.getpid()
    with contextlib.suppress(OSError):
        # The kernel may leave some out, and not all kernels have it.
        listed = Path(f"/proc/self/task/{own}/children").read_text().split()
        if listed:
            return list(map(int, listed))
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == own:
                found.append(int(entry.name))
    return found
