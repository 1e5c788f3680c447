"""Rows of code: their own solutions pass their tests, mutated ones fail, or the row is named."""

import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.core.display import Display
from paint.data.problems import DataError, Problem
from paint.data.row_checks import announce_rows, check_rows
from paint.grading.contract import Grade, Grader, Item, RowCheck
from paint.grading.unit_tests import CodeGrader, CodeOptions

EXAMPLES = 8
ADD = "def add(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with CodeGrader(CodeOptions(seconds=2), workers=1) as grader:
        yield grader


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def grade(grader: Grader, code: str, tests: str, **row: str) -> Grade:
    [found] = grader.grade([Item(block(code), "", row={"tests": tests, **row})])
    return found


class Kind(NamedTuple):
    """A program, another that gives a wrong value, and what its tests assert after some steps."""

    right: str
    wrong: str
    holds: str  # an expression
    steps: str = ""


def kinds(a: int, b: int) -> dict[str, Kind]:
    """Programs with two numbers in them, by what their tests need."""
    text = f"'{chr(97 + a % 26)}{b}'"
    point = "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n"
    pair = "from collections import namedtuple\nPair = namedtuple('Pair', 'x y')\n"
    low = "class Low(Exception):\n    pass\ndef f(n):\n    raise "
    move = "class Vector:\n    def __init__(self, x):\n        self.x = x\n"
    color = "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef f(n):\n"
    return {
        "number": Kind(
            f"def f(n):\n    return n * {a} + {b}",
            f"def f(n):\n    return n * {a} + {b} + 1",
            f"f(3) == {3 * a + b}",
        ),
        "text": Kind(
            f"def f(n):\n    return {text} * n",
            f"def f(n):\n    return {text} * n + 'x'",
            f"f(2) == {text} * 2",
        ),
        "docstring with fences": Kind(
            f'def f(n):\n    """Say.\n\n```\nf(1)\n```\n"""\n    return {a}',
            f'def f(n):\n    """Say.\n\n```\nf(1)\n```\n"""\n    return {a} + 1',
            f"f(1) == {a}",
        ),
        "argument that changes": Kind(
            f"def f(xs):\n    xs.append({a})",
            f"def f(xs):\n    xs.append({a} + 1)",
            f"xs == [{b}, {a}]",
            f"xs = [{b}]\nf(xs)",
        ),
        "generator": Kind(
            f"def f(n):\n    for i in range(n):\n        yield i + {a}",
            f"def f(n):\n    for i in range(n):\n        yield i - {a} - 1",
            f"list(f(2)) == [{a}, {a + 1}]",
        ),
        "state": Kind(
            "count = 0\ndef f():\n    global count\n    count += 1",
            "count = 0\ndef f():\n    global count\n    count += 2",
            "count == 2",
            "f()\nf()",
        ),
        "state that tests change": Kind(
            "log = []\ndef f(x):\n    log.append(x)",
            "log = []\ndef f(x):\n    log.append(x + 1)",
            f"log[-2:] == [{a}, {b}]",
            f"log.append({a})\nf({b})",
        ),
        "own exception": Kind(
            f"{low}Low(n + {a})",
            f"{low}Low(n + {a} + 1)",
            f"told == {a + 1}",
            "try:\n    f(1)\n    told = None\nexcept Low as error:\n    told = error.args[0]",
        ),
        "built-in exception": Kind(
            f"def f(n):\n    raise ValueError(n + {a})",
            f"def f(n):\n    raise KeyError(n + {a})",
            f"told == {a + 1}",
            "told = None\ntry:\n    f(1)\nexcept ValueError as error:\n    told = error.args[0]\n"
            "except KeyError:\n    pass",
        ),
        "named tuple": Kind(
            f"{pair}def f(n):\n    return Pair(n, {a})",
            f"{pair}def f(n):\n    return Pair({a}, n + 1)",
            f"(f(7).x, f(7).y) == (7, {a})",
        ),
        "dataclass": Kind(
            f"{point}def f(n):\n    return Point(n + {a})",
            f"{point}def f(n):\n    return Point(n + {a} + 1)",
            f"f(1) == Point({a + 1})",
        ),
        "enum": Kind(
            f"{color}    return Color.RED", f"{color}    return Color.BLUE", "f(1) == Color.RED"
        ),
        "operator": Kind(
            f"{move}    def __add__(self, n):\n        return Vector(self.x + n)",
            f"{move}    def __add__(self, n):\n        return Vector(self.x - n - 1)",
            f"moved.x == {a + b}",
            f"moved = Vector({a}) + {b}",
        ),
        "printed": Kind(
            f"def f():\n    print({text})",
            f"def f():\n    print({text}, {text})",
            f"out.getvalue() == {text} + '\\n'",
            "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
            "    f()",
        ),
        "typed": Kind(
            "def f():\n    return int(input()) + 1",
            "def f():\n    return int(input()) + 2",
            f"got == {a + 1}",
            f"import io, sys\nsys.stdin = io.StringIO('{a}\\n')\ngot = f()",
        ),
        "file": Kind(
            "def f(path):\n    with open(path) as file:\n        return file.read()",
            "def f(path):\n    with open(path) as file:\n        return file.read() + 'x'",
            f"f('a.txt') == {text}",
            f"with open('a.txt', 'w') as file:\n    size = file.write({text})",
        ),
        "async": Kind(
            f"async def f(n):\n    return n + {a}",
            f"async def f(n):\n    return n + {a} + 1",
            f"asyncio.run(f(1)) == {a + 1}",
            "import asyncio",
        ),
        "function as argument": Kind(
            "def f(g, n):\n    return g(g(n))",
            "def f(g, n):\n    return g(n)",
            f"f(lambda x: x + {a} + 1, {b}) == {b + 2 * a + 2}",
        ),
        "decorator": Kind(
            f"def f(g):\n    return lambda n: g(n) + {a}",
            f"def f(g):\n    return lambda n: g(n) + {a} + 1",
            f"same({b}) == {a + b}",
            "@f\ndef same(n):\n    return n",
        ),
        "context": Kind(
            f"import contextlib\n@contextlib.contextmanager\ndef f():\n    yield {a}",
            f"import contextlib\n@contextlib.contextmanager\ndef f():\n    yield {a} + 1",
            f"got == {a}",
            "with f() as got:\n    pass",
        ),
        "late StopIteration": Kind(
            f"def f(n):\n    return n + {a}",
            "def f(n):\n    raise StopIteration",
            f"all(map(lambda n: f(n) == n + {a}, [1, 2]))",
        ),
        "swallowed": Kind(
            f"def f(n):\n    return {a}",
            "def f(n):\n    return object()",
            "got",
            f"got = True\ntry:\n    got = f(1) == {a}\nexcept BaseException:\n    pass",
        ),
    }


def indented(text: str, columns: int = 4) -> str:
    return re.sub("^", " " * columns, text, flags=re.MULTILINE)


STYLES = {
    "assertions": "{steps}\nassert {holds}",
    "message": "{steps}\nassert {holds}, 'it does not hold'",
    "function": "def test_it():\n{inner}\n    assert {holds}",
    "called function": "def test_it():\n{inner}\n    assert {holds}\ntest_it()",
    "guard": (
        "def test_it():\n{inner}\n    assert {holds}\nif __name__ == '__main__':\n    test_it()"
    ),
    "async function": "async def test_it():\n{inner}\n    assert {holds}",
    "class": "class TestIt:\n    def test_it(self):\n{deeper}\n        assert {holds}",
    "unittest": (
        "import unittest\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n{deeper}\n"
        "        self.assertTrue({holds})\nif __name__ == '__main__':\n    unittest.main()"
    ),
    "unittest with setUp": (
        "import unittest\nclass Base(unittest.TestCase):\n    def setUp(self):\n"
        "        self.yes = True\n    def test_it(self):\n{deeper}\n"
        "        self.assertEqual({holds}, self.yes)\nclass TestIt(Base):\n    pass"
    ),
    "check": "def check(candidate):\n{inner}\n    assert {holds}",
}

FRAMES = (
    "```python\n{}\n```",
    "So:\n\n~~~py\n{}\n~~~\nThat is all.",
    "````Python\n{}\n````",
    "```{{.python}}\n{}\n```",
    "First:\n```python\nx = 1\n```\nThen:\n```py3\n{}\n```\n```text\n1\n```",
)

ROWS = st.tuples(
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from(sorted(kinds(0, 0))),
    st.sampled_from(sorted(STYLES)),
    st.sampled_from(FRAMES),
    st.booleans(),
)
Drawn = tuple[int, int, str, str, str, bool]


def row_of_kind(drawn: Drawn) -> tuple[dict[str, Any], Kind, str]:
    """A row, its kind, and the frame of its code."""
    a, b, name, style, frame, is_solved = drawn
    kind = kinds(a, b)[name]
    if style == "async function" and name == "async":
        kind = kind._replace(steps="", holds=f"await f(1) == {a + 1}")
    steps = kind.steps or "pass"
    parts = {
        "steps": steps,
        "holds": kind.holds,
        "inner": indented(steps),
        "deeper": indented(steps, 8),
    }
    tests = STYLES[style].format(**parts)
    row = {"problem": "Write it.", "tests": tests}
    if style == "check":
        row["entry_point"] = "f" if "def f" in kind.right else "Vector"
    if is_solved:
        row["solution"] = frame.format(kind.right)
    return row, kind, frame


@settings(max_examples=EXAMPLES)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_solution_passes_its_tests_and_a_mutated_one_fails(
    grader: Grader, drawn: list[Drawn]
) -> None:
    items = []
    for one in drawn:
        row, kind, frame = row_of_kind(one)
        items += [Item(frame.format(code), "", row=row) for code in (kind.right, kind.wrong)]
    grades = grader.grade(items)
    for place, one in enumerate(drawn):
        right, wrong = grades[2 * place : 2 * place + 2]
        told = f"{one}\n{items[2 * place].row['tests']}\n{right}\n{wrong}"
        assert right.failed or right.reward == 1, told
        assert wrong.failed or wrong.reward == 0, told
        assert right.failed == wrong.failed, told
        if one[-1]:  # with a solution, each of these kinds can be judged
            assert right.reward == 1, told


BESIDE_TESTS = (
    "calls.append(0)\nassert add(1, 2) == 3\nassert add(-1, 1) == 0\nassert len(calls) == 3"
)
BESIDE = {
    "tests": BESIDE_TESTS,
    "solution": block("calls = []\ndef add(a, b):\n    calls.append(a)\n    return a + b"),
}
CHEATS = {
    "exit": "import sys\nsys.exit(0)",
    "exit in a call": "import sys\ndef add(a, b): sys.exit(0)",
    "end": "import os\nos._exit(0)",
    "end in a call": "import os\ndef add(a, b): os._exit(0)",
    "exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 7",
    "printed": "print('3 of 3 tests passed')\ndef add(a, b): return 7",
    "written": (
        "import os\n"
        "text = ''.join('[\"passed\", %d]\\n' % n for n in range(3)) + '[\"end\", 1]\\n'\n"
        "for file in range(256):\n"
        "    try: os.write(file, text.encode())\n"
        "    except OSError: pass\n"
        "def add(a, b): return 7"
    ),
    "replies": (
        "import json, os\n"
        "line = json.dumps({'arguments': [], 'result': ['tuple', '', ['list', 0]]}) + '\\n'\n"
        "for file in range(3, 256):\n"
        "    try: os.write(file, line.encode() * 9)\n"
        "    except OSError: pass\n"
        "def add(a, b): return 7"
    ),
    "names of the assertions": (
        "def __fail__(*a): pass\n__reach__ = __note__ = __pass__ = __fail__\n"
        "def add(a, b):\n    globals()['__fail__'] = lambda *a: None\n    return 7"
    ),
    "other exceptions": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\n"
        "def add(a, b): return 7"
    ),
    "StopIteration": "def add(a, b): raise StopIteration",
    "no code": "",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheat_beside_the_tests_is_wrong(grader: Grader, cheat: str) -> None:
    code = f"calls = [1, 2]\n{CHEATS[cheat]}"
    found, right = grader.grade(
        [Item(block(code), "", row=BESIDE), Item(BESIDE["solution"], "", row=BESIDE)]
    )
    assert (found.reward, found.failed) == (0, False), found
    assert right.reward == 1


def test_row_is_judged_beside_its_code_where_its_solution_shows_it(grader: Grader) -> None:
    apart = {"tests": "assert add(1, 2) == 3", "solution": block(ADD)}
    unsolved = {"tests": "assert add(1, 2) == 3"}
    prose = {**unsolved, "solution": "Return the sum."}
    bare = {**BESIDE, "solution": str(BESIDE["solution"]).strip("`").removeprefix("python\n")}
    found = grader.check_rows([apart, unsolved, prose, BESIDE, bare])
    assert [bool(check.note) for check in found] == [False, False, False, True, True]
    assert not any(check.fault for check in found)
    # An object that equals all passes beside the tests alone.
    equal = (
        "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any(7)"
    )
    assert grade(grader, equal, **apart).reward == 0


@pytest.mark.parametrize(
    ("tests", "solution", "why"),
    [
        ("assert add(1, 2) == 4", ADD, "its own solution fails its tests: 0 of 1"),
        ("assert add(1, 2) == 3", "def add(:", "its own solution fails its tests: 0 of 1"),
        ("assert (add(1, 2) == 3, 'bad')", ADD, "an assertion can never fail: assert (add(1, 2)"),
        ("import nosuch\nassert add(1, 2) == 3", ADD, "the tests cannot be run: ModuleNotFound"),
        ("def test(n):\n    assert add(n, 2) == 3", ADD, "the test function test needs arguments"),
        ("def it():\n    assert add(1, 2) == 3", ADD, "the assertions of the tests stand in what"),
        ("def check(candidate):\n    assert add(1, 2) == 3", ADD, "the assertions of the tests"),
    ],
)
def test_row_that_cannot_be_graded_is_named(
    grader: Grader, tests: str, solution: str, why: str
) -> None:
    row = {"tests": tests, "solution": block(solution)}
    [check] = grader.check_rows([row])
    assert check.fault.startswith(why)
    assert check.note == ""
    for code in (ADD, "def add(a, b):\n    return 0"):
        found = grade(grader, code, **row)
        assert found.failed
        assert found.reward is None
        assert found.reason == check.fault


@pytest.mark.parametrize(
    "asserted",
    [
        *("(add(1, 2) == 3, 'm')", "[add(1, 2) == 3]", "{add(1, 2)}", "{'sum': add(1, 2) == 3}"),
        *("'add(1, 2) == 3'", "f'{add(1, 2) == 3}'", "lambda: add(1, 2) == 3", "1", "..."),
        *("(add(n, 2) == 3 for n in [1])", "add(1, 2) == 3 or True", "add", "not ()", "print"),
        *("(x := (add(1, 2), 3))", "bool([add(1, 2)])", "1 == 1", "add or add(1, 2) == 3"),
        *("any([add(1, 2) == 3, True])", "isinstance(add(1, 2), object)", "add == add", "-1"),
        *("add(1, 2) == 3 if False else 'no'", "'yes' if add(1, 2) else 'no'"),
    ],
)
def test_assertion_that_cannot_fail_is_named(grader: Grader, asserted: str) -> None:
    tests = f"assert {asserted}\nassert add(1, 2) == 3"
    found = grade(grader, "def add(a, b):\n    return 0", tests)
    assert found.failed
    assert found.reason.startswith("an assertion can never fail: assert ")


@pytest.mark.parametrize(
    "asserted",
    [
        *("True", "add(1, 2)", "[*range(add(1, 0))]", "add(1, 2) == add(2, 1)", "(add(1, 2) == 3)"),
        *("add(1, 2) == 3 and 'x'", "[add(1, 2)] == [3]", "not (add(1, 2) != 3)", "(lambda: 1)()"),
    ],
)
def test_assertion_that_can_fail_is_run(grader: Grader, asserted: str) -> None:
    assert grade(grader, ADD, f"assert {asserted}\nassert add(1, 2) == 3").reward == 1


NEEDS_SOLUTION = {
    "an exception": "try:\n    add(1, 2)\nexcept Low:\n    pass\nassert add(1, 2) == 3",
    "a function of the tests": "assert add(lambda: 1, 2) == 3",
    "what is printed": (
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    add(1, 2)\n"
        "assert add(1, 2) == 3"
    ),
    "what is typed": "import io, sys\nsys.stdin = io.StringIO('1')\nassert add(1, 2) == 3",
    "a file": "open('a', 'w').write('b')\nassert add(1, 2) == 3",
    "async": "import asyncio\nassert asyncio.run(add(1, 2)) == 3",
    "a base": "class Own(Base):\n    pass\nassert Own().add() == 3",
    "instances": "assert Sum(1) == Sum(1)",
    "operators": "total = Sum(1)\nassert (total + 1).value == 2",
}


@pytest.mark.parametrize("what", NEEDS_SOLUTION)
def test_row_whose_tests_need_the_module_and_that_has_no_solution_is_named(
    grader: Grader, what: str
) -> None:
    found = grade(grader, ADD, NEEDS_SOLUTION[what])
    assert found.failed
    assert found.reason.startswith("the tests ")
    assert "give the row one that passes its tests" in found.reason


class Checked(CodeGrader):
    """Finds a fault of each row whose number is even."""

    def __init__(self) -> None:
        super().__init__(CodeOptions(), workers=1)

    def check_rows(self, rows: Any) -> list[RowCheck]:
        return [
            RowCheck() if int(row["id"]) % 2 else RowCheck("it is even", "is odd") for row in rows
        ]


def test_rows_that_cannot_be_graded_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    problems = [Problem(f"Write {n}.", "", "", str(n), row=n) for n in range(1, 200)]
    with caplog.at_level(logging.INFO, "paint"):
        announce_rows(Checked(), problems, "code", Display())
    [(level, text)] = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert level == logging.WARNING
    assert text.splitlines()[:2] == [
        "code: 99 of 199 rows cannot be graded; fix or leave them out",
        "  row 2, id 2: it is even",
    ]
    assert text.endswith("and 79 more")
    with pytest.raises(DataError, match="code: 1 of 1 rows cannot be graded"):
        announce_rows(Checked(), problems[1:2], "code", Display())
    checks = check_rows(Checked(), problems, seconds=0.0)
    assert checks.tried < 199
    *_, last = checks.lines()
    assert last == f"{checks.tried} of 199 rows were tried by their own solution"
