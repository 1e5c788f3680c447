"""Completions that try to be found right without being right, and to reach what they must not."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codetrial.sandbox import WAYS, Way
from paint.core.errors import PaintError
from paint.grading.contract import Grade, Grader, Item
from paint.grading.unit_tests import CodeGrader, CodeOptions
from processes import alive, descendants

TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0\nassert add(10, 20) == 30"

# Each is code whose add is wrong, or is none.
WRONG = {
    # Of the review: what passed the example of a grader with a token in the command line.
    "token of the command line": (
        "import sys, os\n"
        "print('\\n' + sys.orig_argv[-1].rsplit(\"'\", 2)[1:][0], flush=True); os._exit(0)"
    ),
    "hook of exceptions": (
        "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef add(a, b): raise ValueError"
    ),
    "integer that equals all": (
        "class Any(int):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "def add(a, b): return Any(7)"
    ),
    "exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 7",
    "signal handler": (
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: os._exit(0))\n"
        "def add(a, b): os.kill(os.getpid(), signal.SIGTERM)"
    ),
    "other AssertionError": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\n"
        "def add(a, b): return 7"
    ),
    "frames": (
        "import sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for name, value in list(frame.f_locals.items()):\n"
        "            if value in (3, 0, 30): return value\n"
        "        frame.f_globals.update(__fail__=lambda *a: None)\n"
        "        frame = frame.f_back\n"
        "    return 7"
    ),
    "objects of the collector": (
        "import gc\n"
        "def add(a, b):\n"
        "    for thing in gc.get_objects():\n"
        "        if isinstance(thing, dict) and '__fail__' in thing:\n"
        "            thing['__fail__'] = lambda *a: None\n"
        "        if type(thing).__name__ == 'Assertions': thing.fail = lambda *a: None\n"
        "    return 7"
    ),
    "patched driver": (
        "import codetrial.driver as driver\n"
        "driver.Assertions.record = lambda *a: None\n"
        "def add(a, b): return 7"
    ),
    "events on every descriptor": (
        "import os\n"
        "text = ''.join('[\"passed\", %d]\\n' % n for n in range(3)) + '[\"end\", 1]\\n'\n"
        "for file in range(256):\n"
        "    try: os.write(file, text.encode())\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "replies before requests": (
        "import json, os\n"
        "line = json.dumps({'arguments': [], 'result': 3}) + '\\n'\n"
        "for file in range(3, 256):\n"
        "    try: os.write(file, line.encode() * 6)\n"
        "    except OSError: pass\n"
        "def add(a, b): return 7"
    ),
    "patched encoder": (
        "from codetrial.plain import PlainEncoder\n"
        "PlainEncoder.encode = lambda self, value: ['known', 0]\n"
        "def add(a, b): return 7"
    ),
    "reply that is no value": (
        "from codetrial.plain import PlainEncoder\n"
        "PlainEncoder.encode = lambda self, value: ['list', [], {}]\n"
        "def add(a, b): return 7"
    ),
    "reply that nests": (
        "from codetrial import candidate\n"
        "candidate._write = lambda file, text: __import__('os').write("
        "file, b'[' * 100000 + b'\\n')\n"
        "def add(a, b): return 7"
    ),
    "exceptions with names of the driver": (
        "class CodeEndedError(BaseException): pass\n"
        "class NotPlainError(Exception): pass\n"
        "def add(a, b): raise (CodeEndedError if a > 5 else NotPlainError)"
    ),
    "class that equals all": (
        "class Meta(type):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = type.__hash__\n"
        "class Any(metaclass=Meta): pass\n"
        "def add(a, b): return Any"
    ),
    "object that says that it is an int": (
        "class Any:\n"
        "    __class__ = int\n"
        "    def __eq__(self, other): return True\n"
        "    def __int__(self): return 3\n"
        "    __index__ = __int__\n"
        "def add(a, b): return Any()"
    ),
    "memory of the other processes": (
        "import os, re\n"
        "def add(a, b):\n"
        "    for process in filter(str.isdigit, os.listdir('/proc')):\n"
        "        with open(f'/proc/{process}/mem', 'r+b', 0) as memory: memory.read(1)\n"
        "    return 7"
    ),
    "end of the other processes": (
        "import os, signal\n"
        "for process in (os.getppid(), 1, -1):\n"
        "    try: os.kill(process, signal.SIGKILL)\n"
        "    except OSError: pass\n"
        "def add(a, b): return 7"
    ),
    "end of a stopped parent": (
        "import os, signal\n"
        "try: os.kill(os.getppid(), signal.SIGSTOP)\n"
        "except OSError: pass\n"
        "def add(a, b): return 7"
    ),
    "processor time": "def add(a, b):\n    while True: pass",
    "waiting": "import time\ndef add(a, b): time.sleep(60)",
    "memory": "x = bytearray(1 << 31)\ndef add(a, b): return 7",
    "recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)"),
    "nul": "def add(a, b): return 7 \0",
    "brackets": "def add(a, b): return " + "(" * 100_000,
    "sibling's code": (
        "import glob\nfor path in glob.glob('*') + glob.glob('/tmp/*.py'): exec(open(path).read())"
    ),
}
PLAIN = "def add(a, b):\n    return a + b"
RIGHT = "def add(a, b):\n    open('right.py', 'w').write('def add(a, b): return a + b')\n"
RIGHT += "    return a + b"


QUICK, *OTHERS = [way for way in WAYS if way != "bubblewrap" or shutil.which("bwrap")]
IN_EVERY_WAY = [QUICK, *(pytest.param(way, marks=pytest.mark.slow) for way in OTHERS)]


@pytest.fixture(scope="module", params=IN_EVERY_WAY)
def grader(request: pytest.FixtureRequest) -> Iterator[Grader]:
    options = CodeOptions(seconds=1, memory_mb=512, files_mb=4)
    with CodeGrader(options, workers=1, way=request.param) as grader:
        try:
            grade(grader, RIGHT)
        except PaintError:
            pytest.skip(f"no {request.param} on this machine")
        yield grader


def item(code: str, tests: str = TESTS) -> Item:
    return Item(f"```python\n{code}\n```", "", row={"tests": tests})


def grade(grader: Grader, code: str, tests: str = TESTS) -> Grade:
    [found] = grader.grade([item(code, tests)])
    return found


def living() -> list[int]:
    return [process for process in descendants(os.getpid()) if alive(process)]


def test_right_completion_is_right(grader: Grader) -> None:
    assert grade(grader, RIGHT) == Grade(1.0, "3 of 3 tests passed")


@pytest.mark.parametrize("attack", WRONG)
def test_wrong_completion_is_wrong_and_ends(grader: Grader, attack: str) -> None:
    began = time.monotonic()
    found, after = grader.grade([item(WRONG[attack]), item(RIGHT)])
    assert (found.reward, found.failed) == (0, False), found
    assert after.reward == 1
    assert time.monotonic() - began < 30


REACH = {
    "the parent's environment": "open('/proc/%d/environ' % os.getppid()).read()",
    "the environment of all": (
        "[open(p + '/environ').read() for p in glob.glob('/proc/[0-9]*')][0]"
    ),
    "the caller's environment": "open('/proc/{process}/environ').read()",
    "the caller's memory": "open('/proc/{process}/mem', 'rb').read(1)",
    "a signal to the caller": "os.kill({process}, 0) is None",
    "a file": "open({file!r}).read()",
    "a folder": "os.listdir(os.path.dirname({file!r}))",
    "a connection": "socket.create_connection(('127.0.0.1', {port}), 1)",
    "a server": "socket.create_server(('127.0.0.1', 0))",
    "a fork": "os.fork() or os._exit(0)",
    "a process": "subprocess.run(['/bin/true'], check=True)",
    "a thread": "threading.Thread(target=print).start() is None",
    "a large file": "open('x', 'wb').write(bytes(5 << 20))",
    "a namespace": "ctypes.CDLL(None).unshare(0x10000000) == 0 or 1 / 0",
    "a ptrace": "ctypes.CDLL(None).ptrace(16, {process}, 0, 0) == 0 or 1 / 0",
    "a mount": "ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, None) == 0 or 1 / 0",
    "shared memory": "ctypes.CDLL(None).shmget(77, 4096, 0o1666) >= 0 or 1 / 0",
    "a change of Python": "open(os.__file__, 'a')",
    "a change of /": "open('/new', 'w')",
}
NEEDS_NAMESPACES = {"many files": "[open(str(n), 'wb').write(bytes(1 << 20)) for n in range(5)]"}
# Without namespaces, code that is tested as nobody may not find all modules.
IMPORTS = "\n".join(
    f"try: import {name}\nexcept ImportError: pass"
    for name in ("ctypes", "glob", "os", "socket", "subprocess", "threading")
)


def test_code_reaches_nothing_outside(grader: Grader, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    assert isinstance(grader, CodeGrader)
    way = grader._sandboxes._way
    tries = {"itself": "os.getpid()"} | REACH | ({} if way == "none" else NEEDS_NAMESPACES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {"process": os.getpid(), "file": str(file), "port": server.getsockname()[1]}
        grades = grader.grade(
            [
                item(
                    f"{IMPORTS}\ndef reach():\n    return bool({text.format(**values)})",
                    "assert reach()",
                )
                for text in tries.values()
            ]
        )
    reached = [what for what, found in zip(tries, grades, strict=True) if found.reward != 0]
    assert reached == ["itself"]
    assert not any(found.failed for found in grades)


@pytest.mark.parametrize("way", IN_EVERY_WAY)
def test_process_in_own_session_ends_with_the_test(way: Way) -> None:
    survivor = (
        "import os, socket, time\n"
        "def add(a, b):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(3600)\n"
        "        os._exit(0)\n"
        "    return a + b"
    )
    with CodeGrader(CodeOptions(processes=8), workers=1, way=way) as grader:
        assert grade(grader, PLAIN).reward == 1
        before = living()
        assert grade(grader, survivor).reward == 1
        assert living() == before


def test_fork_bomb_is_held_and_ends(grader: Grader) -> None:
    bomb = "import os\ndef add(a, b):\n    while True: os.fork()"
    assert grade(grader, bomb).reward == 0


@pytest.mark.slow
def test_fork_bomb_with_leave_to_fork_is_held_and_ends() -> None:
    count = (
        "import os, time\n"
        "def add(a, b):\n"
        "    children = 0\n"
        "    try:\n"
        "        while True:\n"
        "            if os.fork() == 0: time.sleep(3600)\n"
        "            children += 1\n"
        "    except OSError: return children"
    )
    with CodeGrader(CodeOptions(processes=4), workers=1) as grader:
        found = grade(grader, count, "assert add(1, 2) <= 5\nassert add(1, 2) == 0")
        assert found.reason == "2 of 2 tests passed"
        bomb = "import os\ndef add(a, b):\n    while True: os.fork()"
        assert grade(grader, bomb).reward == 0
        assert grade(grader, RIGHT).reward == 1


def test_environment_of_the_sandbox_has_nothing_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-secret")
    code = "import os\ndef names(): return sorted(os.environ)"
    known = "HOME LANG OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PWD PYTHONDONTWRITEBYTECODE"
    tests = f"assert set(names()) <= set({[*known.split(), 'PYTHONHASHSEED']})"
    with CodeGrader(CodeOptions(), workers=1) as grader:
        assert grade(grader, code, tests).reward == 1


def test_sandbox_that_is_killed_costs_one_completion() -> None:
    with CodeGrader(CodeOptions(), workers=1) as grader:
        assert grade(grader, PLAIN).reward == 1
        for process in living():
            os.kill(process, signal.SIGKILL)
        first, second = grader.grade([item(PLAIN), item(PLAIN)])
        assert (first.failed, second.reward) == (True, 1)
