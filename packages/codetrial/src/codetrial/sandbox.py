"""Processes in which code is tested, kept from the machine as far as it can be.

Two processes that know nothing of each other serve each job: one for the tests, one for the tested
code (codetrial.zygote). The ways to confine them, the first that works is taken:

    bubblewrap   the program bwrap makes their namespaces
    namespaces   they make namespaces themselves
    none         one user, one view of the machine: Landlock and seccomp are what is left

In all of them system calls are refused by seccomp, and resources are limited.
"""

import contextlib
import functools
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codetrial.confine import DEVICES, IS_LINUX, NOBODY, SCRATCH
from codetrial.zygote import END, START

Way = Literal["bubblewrap", "namespaces", "none"]
WAYS: tuple[Way, ...] = ("bubblewrap", "namespaces", "none") if IS_LINUX else ("none",)

WALL_SECONDS = 4
"""Wall time for each second of processor time: code that waits ends, too."""

START_SECONDS = 60.0
_PACKAGE = Path(__file__).parent
_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from codetrial.zygote import main
main()
"""


class SandboxError(RuntimeError):
    """No process that tests code can be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the processes of a job may use; sizes are in bytes."""

    seconds: int = 5  # of processor time, each
    memory: int = 2**30  # of address space, each
    processes: int = 1  # and threads, at a time
    file_bytes: int = 2**24  # in all files together


@dataclass(slots=True)
class Outcome:
    """What became of a job."""

    events: list[list[Any]] = field(default_factory=list)  # of the tests (assertions.Events)
    has_begun: bool = False  # the process of the tests was there
    code_status: int = 0  # of the code's process, as waitpid gives it
    tests_status: int = 0  # of the tests' process


class Zygote:
    """A process that forks the processes of one role, and the other end of its socket."""

    def __init__(self, role: str, way: Way, limits: Limits) -> None:
        self._scratch = tempfile.mkdtemp(prefix="codetrial-") if way == "none" else ""
        if self._scratch and os.geteuid() == 0:
            os.chown(self._scratch, NOBODY, NOBODY)
        settings = {
            "role": role,
            "way": way,
            "readable": readable(),
            "scratch": self._scratch or SCRATCH,
            "limits": {name: getattr(limits, name) for name in Limits.__slots__},
        }
        package = str(_PACKAGE.parent)
        command = [sys.executable, "-P", "-s", "-W", "ignore", "-c", _BOOT, package]
        command.append(json.dumps(settings))
        if way == "bubblewrap":
            command = [*_bubblewrap(limits.file_bytes), *command]
        self.socket, other = socket.socketpair()
        self.socket.settimeout(START_SECONDS)
        with other:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C reaches this process only
                )
            except OSError as error:
                self.socket.close()
                why = f"A process that tests code cannot be started: {error}."
                raise SandboxError(why) from None
        self._lines = self.socket.makefile("rb")

    def wait(self) -> bool:
        """Wait until it can be used; False if it has ended instead."""
        with contextlib.suppress(OSError):
            return self._lines.readline() == b"ready\n"
        return False

    def start(self, files: Sequence[int]) -> None:
        """Start a job with these descriptors."""
        with contextlib.suppress(OSError):  # it has ended: then the job's pipes are closed, too
            socket.send_fds(self.socket, [START], files)

    def end(self) -> tuple[int, bool]:
        """End all processes of the job.

        Returns its main process's status, and whether the zygote is as it was before.
        """
        try:
            self.socket.sendall(END)
            status, is_clean = json.loads(self._lines.readline())
        except (OSError, ValueError):
            return signal.SIGKILL, False
        return status, is_clean

    def close(self) -> None:
        """End the zygote and all that it started."""
        self._lines.close()
        self.socket.close()  # which ends it
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def readable() -> list[str]:
    """The paths that tested code may read: Python's, its packages', and the system's libraries."""
    system = ["/usr", "/bin", "/lib", "/lib64", "/nix", "/gnu"]
    system += ["/etc/ld.so.cache", "/etc/localtime"]
    python = [sys.base_prefix, sys.exec_prefix, sys.prefix, str(_PACKAGE)]
    chosen: list[str] = []
    for path in [*system, *python]:
        is_inside = any(Path(path).is_relative_to(other) for other in chosen)
        if Path(path).exists() and not is_inside:
            chosen.append(path)
    return chosen


def _environment() -> dict[str, str]:
    """The variables of the sandbox's processes; of this process's, where libraries are."""
    own = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return own | {
        "PATH": "/usr/bin:/bin",
        "HOME": SCRATCH,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the order of sets is the same in all of them
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _bubblewrap(scratch_bytes: int) -> list[str]:
    """The command that runs another in namespaces of its own, as their first process."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("there is no bwrap")
    command = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--as-pid-1", "--new-session", "--hostname", "sandbox"]
    if os.geteuid() == 0:  # tested code goes on as nobody
        command += ["--cap-drop", "ALL"]
        for kept in ("SETUID", "SETGID", "KILL"):  # of the zygote
            command += ["--cap-add", f"CAP_{kept}"]
    else:
        command += ["--unshare-user"]
    command += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", SCRATCH]
    for path in readable():
        link = Path(path)
        if link.is_symlink() and not link.readlink().is_absolute():
            command += ["--symlink", str(link.readlink()), path]
            continue
        for parent in reversed(link.parents[:-1]):  # closed to other users by default
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", path, path]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    return [*command, "--remount-ro", "/", "--chdir", SCRATCH, "--"]


class Sandbox:
    """Two zygotes, which serve one job at a time."""

    def __init__(self, way: Way, limits: Limits) -> None:
        self._way = way
        self._limits = limits
        self._zygotes: list[Zygote] = []
        self._outcome = Outcome()
        self._unread = b""
        self.deadline = 0.0

    def open(self) -> None:
        """Start the zygotes where they are not there. Raises SandboxError if that fails."""
        if self._zygotes:
            return
        try:
            for role in ("code", "tests"):  # both start at once
                self._zygotes.append(Zygote(role, self._way, self._limits))
            is_open = all(zygote.wait() for zygote in self._zygotes)
        except BaseException:
            self.close()
            raise
        if not is_open:
            self.close()
            raise SandboxError("A process that tests code cannot be started.")

    def start(self, job: dict[str, str]) -> int:
        """Start a job (driver.run_tests); return the descriptor that ``read`` reads from."""
        self.open()
        code, tests = self._zygotes
        requests, replies, report = os.pipe(), os.pipe(), os.pipe()
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(job).encode())
            file.seek(0)
            code.start([requests[0], replies[1]])
            tests.start([file.fileno(), report[1], requests[1], replies[0]])
        for descriptor in (*requests, *replies, report[1]):
            os.close(descriptor)
        self._outcome, self._unread = Outcome(), b""
        self.deadline = time.monotonic() + WALL_SECONDS * self._limits.seconds
        return report[0]

    def read(self, report: int) -> bool:
        """Read what the tests have reported; False at its end."""
        content = os.read(report, 1 << 16)
        *lines, self._unread = (self._unread + content).split(b"\n")
        self._outcome.has_begun |= bool(lines)
        self._outcome.events += map(json.loads, filter(None, lines))
        return bool(content)

    def end(self, report: int) -> Outcome:
        """End the job's processes, and return what became of it."""
        os.close(report)
        ended = [zygote.end() for zygote in self._zygotes]
        self._outcome.code_status, self._outcome.tests_status = ended[0][0], ended[1][0]
        if not all(is_clean for _, is_clean in ended):
            self.close()  # the next job gets new ones
        return self._outcome

    def close(self) -> None:
        """End all processes; a later job starts new ones."""
        while self._zygotes:
            self._zygotes.pop().close()


class Sandboxes:
    """Sandboxes that share jobs, for one thread at a time; they start when they are needed."""

    def __init__(self, limits: Limits, *, count: int, way: Way | None = None) -> None:
        self._limits = limits
        self._count = count
        self._way = way
        self._free: list[Sandbox] = []
        self._busy: dict[int, tuple[Sandbox, int]] = {}  # by the report's descriptor

    def run(self, jobs: Sequence[dict[str, str]]) -> list[Outcome]:
        """The outcomes in the order of the jobs. Raises SandboxError if no process starts."""
        outcomes = [Outcome()] * len(jobs)
        waiting = iter(enumerate(jobs))
        if self._way is None and jobs:
            self._way = find_way()
        try:
            with selectors.DefaultSelector() as selector:
                while True:
                    while len(self._busy) < self._count and (following := next(waiting, None)):
                        report = self._start(*following)
                        selector.register(report, selectors.EVENT_READ)
                    if not self._busy:
                        return outcomes
                    for report in self._finished(selector):
                        selector.unregister(report)
                        sandbox, index = self._busy.pop(report)
                        outcomes[index] = sandbox.end(report)
                        self._free.append(sandbox)
        except BaseException:
            self.close()
            raise

    def _start(self, index: int, job: dict[str, str]) -> int:
        assert self._way is not None
        sandbox = self._free.pop() if self._free else Sandbox(self._way, self._limits)
        report = sandbox.start(job)
        self._busy[report] = sandbox, index
        return report

    def _finished(self, selector: selectors.BaseSelector) -> list[int]:
        """Descriptors of jobs that have reported all, or whose time is up; waits for what comes."""
        first = min(sandbox.deadline for sandbox, _ in self._busy.values())
        finished = []
        for key, _ in selector.select(max(first - time.monotonic(), 0)):
            if not self._busy[key.fd][0].read(key.fd):
                finished.append(key.fd)
        now = time.monotonic()
        late = [fd for fd, (sandbox, _) in self._busy.items() if sandbox.deadline <= now]
        return list({*finished, *late})

    def close(self) -> None:
        """End all processes at once; later jobs start new ones."""
        for report, (sandbox, _) in self._busy.items():
            os.close(report)
            sandbox.close()
        self._busy.clear()
        while self._free:
            self._free.pop().close()


@functools.cache
def find_way() -> Way:
    """The first way in which code can be tested here. Raises SandboxError without one."""
    # Of a module that no zygote has imported.
    answer = "```python\nfrom wave import Error\n```"
    for way in WAYS:
        with contextlib.suppress(SandboxError):
            if _try(way, answer, ["assert Error(1).args == (1,)"]) == [True]:
                return way
    reason = "neither bwrap nor namespaces work here"
    if os.geteuid() == 0:
        reason += f", and without them code is tested as nobody, who cannot read {sys.base_prefix}"
    raise SandboxError(f"No process that tests code can be started: {reason}.")


def _try(way: Way, answer: str, tests: Sequence[str]) -> list[bool]:
    """Which tests of an answer pass. Raises SandboxError where they are not run to their end."""
    limits = Limits(file_bytes=2**20)
    job = {"answer": answer, "tests": "\n".join(tests), "problem": "", "entry_point": ""}
    with contextlib.closing(Sandboxes(limits, count=1, way=way)) as sandboxes:
        [outcome] = sandboxes.run([job])
    if not outcome.events or outcome.events[-1][0] != "end":
        raise SandboxError(f"No code can be tested by {way}: {outcome}")
    passed = [values[0] for kind, *values in outcome.events if kind == "passed"]
    return [number in passed for number in range(len(tests))]


_PROBE = """```python
import os, socket

def connects(port):
    return socket.create_connection(("127.0.0.1", port), 2) is not None

def reads(path):
    return open(path, "rb").read() is not None

def signals(process):
    return os.kill(process, 0) is None

def forks():
    child = os.fork()
    if not child:
        os._exit(0)
    return child > 0

def fills():
    for number in range(3):
        with open(str(number), "wb") as file:
            file.write(bytes(2**20))
    return True
```"""
_REACHES = {
    "connects({port})": "the network",
    "reads({file!r})": "your files",
    "reads('/proc/{process}/environ')": "the environment of your processes",
    "signals({process})": "your processes",
    "forks()": "further processes",
    "fills()": "more disk than files_mb",
}
"""What tested code may try, and what it reaches if that succeeds."""


@functools.cache
def find_reach(way: Way) -> tuple[str, ...]:
    """What tested code reaches on this machine, found by trying: () where it is confined."""
    with (
        tempfile.NamedTemporaryFile() as file,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        Path(file.name).chmod(0o644)
        values = {"port": server.getsockname()[1], "file": file.name, "process": os.getpid()}
        tests = [f"assert {text.format(**values)}" for text in _REACHES]
        reached = _try(way, _PROBE, tests)
    return tuple(what for what, is_so in zip(_REACHES.values(), reached, strict=True) if is_so)


def describe_confinement() -> str:
    """How tested code is confined on this machine, in one line."""
    way = find_way()
    by = "limits alone" if way == "none" else way
    reach = find_reach(way)
    if not reach:
        return f"code is tested by {by}: without network, other files or other processes"
    return (
        f"warning: tested code can reach {', '.join(reach)} here ({by}); install bubblewrap, or "
        f"run in a container without secrets"
    )
