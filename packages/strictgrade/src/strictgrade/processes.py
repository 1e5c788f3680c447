"""Calls of a function that may hang or crash, each in a separate process.

    this process -> fork server -> workers -> a child for each call

The fork server imports the function, once for all workers, which it forks. For each call a worker
forks a child, which the kernel ends when its processor time is up. The result of a call depends
neither on the number of workers, nor on other work of the machine, nor on earlier calls. What the
function is and what it is given travels through pipes and sockets: all users of a machine can read
command lines. Systems without fork (Windows) are not supported.
"""

import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

DEADLINES = (0.01, 86_400.0)  # seconds, least and most
# Wall time for each second of the deadline: a call that waits instead of computing ends too.
WALL_SECONDS = 20
REASON_CHARACTERS = 200
TIMED_OUT = "timed out"

Arguments = Sequence[Any]
"""Arguments of one call, as JSON takes them."""


class ProcessError(RuntimeError):
    """A process that calls the function cannot be started, or has ended."""


class Returned(NamedTuple):
    """What a call returned, as JSON takes it, or why it returned nothing."""

    value: Any = None
    error: str = ""
    seconds: float = 0.0  # wall time


class Pool:
    """Workers that call one function, for one thread at a time; they start when they are needed.

    Args:
        function: as "module:name"; a worker imports it.
        deadline: processor time of a call in seconds, from 0.01 to a day.
        workers: by default the number of cores.
        warm_up: calls that a worker makes before the first fork, for what is imported late.
        memory: bytes of address space that a worker and its children may use; 0 is no limit.
        setup: where it is given, the function is called with it once, before the first fork, and
            what it returns is the function that is called.
    """

    def __init__(
        self,
        function: str,
        *,
        deadline: float,
        workers: int | None = None,
        warm_up: Sequence[Arguments] = (),
        memory: int = 0,
        setup: Arguments | None = None,
    ) -> None:
        if (workers is not None and workers < 1) or not DEADLINES[0] <= deadline <= DEADLINES[1]:
            raise ValueError(f"{workers} workers with a deadline of {deadline} s")
        self._most_workers = workers or cores()
        self._settings = json.dumps([function, deadline, warm_up, memory, setup])
        self._server: ForkServer | None = None
        self.workers: list[Worker] = []

    def start(self) -> None:
        """Start the fork server, which imports the function while others go on.

        Raises ProcessError when it cannot be started.
        """
        if self._server is None:
            self._server = ForkServer(self._settings)

    def call(self, calls: Sequence[Arguments]) -> list[Returned]:
        """The results in the order of the calls.

        Raises ProcessError when a worker cannot be started.
        """
        if not calls:
            return []
        results = [Returned()] * len(calls)
        try:
            self.start()
            assert self._server
            while len(self.workers) < min(self._most_workers, len(calls)):
                self.workers.append(Worker(self._server))

            # Whichever worker has answered gets the next call.
            with selectors.DefaultSelector() as selector:
                waiting = iter(enumerate(calls))
                for worker, (index, arguments) in zip(self.workers, waiting, strict=False):
                    selector.register(worker.ask(index, arguments), selectors.EVENT_READ, worker)

                while selector.get_map():
                    for key, _ in selector.select():
                        index, result = key.data.answer()
                        results[index] = result
                        following = next(waiting, None)
                        if following:
                            key.data.ask(*following)
                        else:
                            selector.unregister(key.fileobj)

        except BaseException:
            # A worker's late answer would be taken for that of a later call.
            self.close()
            raise

        return results

    def close(self) -> None:
        """End the fork server, the workers and the children that they wait for."""
        for worker in self.workers:
            worker.close()
        self.workers.clear()
        if self._server:
            self._server.kill()
            self._server = None


class ForkServer:
    """A process that has imported the function, and forks workers.

    Args:
        settings: what ``_serve`` takes, as JSON.
    """

    def __init__(self, settings: str) -> None:
        # A worker imports what this process can, such as a notebook's folders. "" would be the
        # working directory, which is left out here and by -P.
        path = os.pathsep.join(filter(None, sys.path))
        self._control, theirs = socket.socketpair()
        number = str(theirs.fileno())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "strictgrade.processes", number],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C reaches this process only, which then ends the others
                # Hashes of texts, and so the order of sets, are the same in every worker.
                env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path},
            )
        except OSError as error:  # no such program, or no room for another process
            self._control.close()
            raise ProcessError(
                f"A process that grades answers cannot be started: {error}."
            ) from None
        finally:
            theirs.close()
        assert self._process.stdin
        # Not in the command line, which other users can read, and which is limited to 128 KiB.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(settings.encode())

    def fork(self) -> socket.socket:
        """Fork a worker. The returned socket is connected with it."""
        mine, theirs = socket.socketpair()
        # A server that has ended: the worker's socket has an end, too, and its answer says so.
        with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        return mine

    def describe_end(self) -> str:
        """Why a worker does not answer."""
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # the server is there, and its worker is gone
            return (
                "A process that grades answers was ended from outside, as by a system that is "
                "short of memory."
            )
        return f"A process that grades answers ended with status {status}."

    def kill(self) -> None:
        """End the server, all workers and their children, which are one group of processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._control.close()
        self._process.wait()


class Worker:
    """A process that calls the function, one call at a time, each in a separate child."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._index = 0
        self._began = 0.0
        self._socket = server.fork()
        self._answers = self._socket.makefile("rb")

    def ask(self, index: int, arguments: Arguments) -> socket.socket:
        """Hand a call to the worker. The returned socket is readable once it has answered."""
        self._index = index
        self._began = time.monotonic()
        # A worker that has ended: answer() says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line = json.dumps(arguments, default=str)  # of Parquet: dates and the like
            self._socket.sendall(line.encode() + b"\n")
        return self._socket

    def answer(self) -> tuple[int, Returned]:
        """The index of the call that the worker was handed, and its result; waits for it."""
        line = b""
        with contextlib.suppress(ConnectionResetError):
            line = self._answers.readline()
        # It has ended, perhaps while it wrote.
        if not line.endswith(b"\n"):
            raise ProcessError(self._server.describe_end())
        result = Returned(**json.loads(line), seconds=time.monotonic() - self._began)
        return self._index, result

    def close(self) -> None:
        """Close the connection, at which an idle worker ends."""
        self._answers.close()
        self._socket.close()


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _serve(
    control: socket.socket,
    name: str,
    deadline: float,
    warm_up: Sequence[Arguments],
    memory: int,
    setup: Arguments | None,
) -> None:
    """Import the function, and fork a worker for each socket that ``control`` brings."""
    import resource

    os.dup2(2, 1)  # what a library prints is no part of the output of the command
    if memory:  # a stricter limit may be in force, and a system may have none
        with contextlib.suppress(ValueError, OSError):
            hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (memory, hard_limit))

    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    if setup is not None:
        function = function(*setup)
    for arguments in warm_up:
        function(*arguments)
    gc.freeze()  # a child shares these objects' memory as long as no collection touches them

    while True:
        message, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not message:  # the other end is closed
            return
        if not os.fork():
            try:
                control.close()
                _work(function, deadline, socket.socket(fileno=sockets[0]))
            finally:
                # Not sys.exit: the server's clean-up and its buffers are not the worker's.
                os._exit(1)
        os.close(sockets[0])


def _work(function: Callable[..., Any], deadline: float, calls: socket.socket) -> None:
    """Read a call a line and write a line with its result, until the input ends."""
    for line in calls.makefile("rb"):
        answer = _answer_in_child(function, line, deadline)
        try:
            calls.sendall(answer)
        except (BrokenPipeError, ConnectionResetError):  # nobody reads any more
            return


def _answer_in_child(function: Callable[..., Any], line: bytes, deadline: float) -> bytes:
    """A line of JSON with the result of a call, which a child makes."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            # Processor time, in fractions of a second: RLIMIT_CPU counts whole ones.
            signal.setitimer(signal.ITIMER_PROF, deadline)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_answer(function, line))
        finally:
            # Not sys.exit: the worker's clean-up and its buffers are not the child's. The worker
            # looks at the line, not at this status.
            os._exit(1)
    # A pipe with an open writer has no end.
    os.close(writing)

    with os.fdopen(reading, "rb") as pipe:
        is_late = not select.select([pipe], [], [], deadline * WALL_SECONDS)[0]
        answer = b"" if is_late else pipe.readline()
    # It has answered, or its time is up: whatever it still does is not waited for.
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    if answer.endswith(b"\n"):
        return answer
    # SIGALRM is of an alarm that the function set itself.
    timed_out = is_late or -status in (signal.SIGPROF, signal.SIGALRM)
    error = TIMED_OUT if timed_out else f"ended with status {status}"
    return json.dumps({"error": error}).encode() + b"\n"


def _answer(function: Callable[..., Any], line: bytes) -> bytes:
    """A line of JSON with the result of a call."""
    try:
        answer = json.dumps({"value": function(*json.loads(line))})
    except Exception as error:
        answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]})
    return answer.encode() + b"\n"


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection, *json.load(sys.stdin))
