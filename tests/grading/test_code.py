"""The grader of code: what it runs, what crosses between tests and code, what it says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from paint.config import schema as cfg
from paint.data.problems import DataError, read_problems
from paint.grading.contract import Grade, Grader, Item
from paint.grading.unit_tests import CodeGrader, CodeOptions
from paint.resolve.check import check_config
from runs import changed

ADD = "def add(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with CodeGrader(CodeOptions(), workers=1) as grader:
        yield grader


def grade(grader: Grader, code: str, tests: str | list[str], **row: str) -> Grade:
    [found] = grader.grade([Item(block(code), "", row={"tests": tests, **row})])
    return found


def block(code: str) -> str:
    return f"Try this:\n```python\n{code}\n```\nDone."


def test_reward_reason_and_feedback_of_failed_tests(grader: Grader) -> None:
    tests = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 1) == 'a1'"]
    found = grade(grader, "def add(a, b):\n    return a + b + 1 - 1 if a > 0 else 7", tests)
    assert found == Grade(
        0.0,
        "1 of 3 tests passed: wrong value",
        feedback=(
            "This test failed: assert add(-1, 1) == 0\nThe code gave 7.\n\n"
            "This test failed: assert add('a', 1) == 'a1'\nIt raised TypeError: '>' not supported "
            "between instances of 'str' and 'int' (line 2: return a + b + 1 - 1 if a > 0 else 7)"
        ),
    )
    assert grade(grader, ADD, "\n".join(tests[:2])) == Grade(1.0, "2 of 2 tests passed")


def test_share_of_passed_tests_is_the_reward_by_option() -> None:
    with CodeGrader(CodeOptions(reward="share"), workers=1) as grader:
        tests = "assert add(1, 2) == 3\nassert add(1, 1) == 3"
        assert grade(grader, ADD, tests).reward == 0.5
        assert grade(grader, ADD, "x = add(1)\nassert add(1, 2) == 3").reward == 0
        assert grade(grader, ADD, "assert add(1, 2) == 3").reward == 1


def test_grades_without_a_test(grader: Grader) -> None:
    row = {"tests": "assert add(1, 2) == 3"}
    items = [
        Item("add(a, b) is a + b", "", row=row),
        Item(f"<think>\n{block(ADD)}", "", row=row),
        Item("```python\ndef add(a, b):\n    return a + b", "", row=row),  # cut
        Item(block(ADD), "", row={}),
        Item(block(ADD), "", row={"tests": "assert add(1,"}),
        Item(block(ADD), "", row={"tests": "x = 1"}),
        Item(block(ADD), "", row={"tests": "assert 1 + 1 == 2"}),
    ]
    grades = grader.grade(items)
    assert [(found.reward, found.failed) for found in grades] == [(0, False)] * 3 + [
        (None, True)
    ] * 4
    assert [found.reason for found in grades[:3]] == ["no code", "unclosed thought", "no code"]
    assert "field tests" in grades[3].reason
    assert grades[4].reason.startswith("the tests cannot be read: SyntaxError")
    assert grades[5].reason == "the tests name nothing that the code could define"
    assert grades[6].reason == "the tests name nothing that the code could define"


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        # What crosses as it is.
        (
            "assert f() == [1, (2.5, None), {'a': {1, 2}, 3: b'x'}, True]",
            "def f(): return [1, (2.5, None), {'a': {1, 2}, 3: b'x'}, True]",
        ),
        ("import math\nassert math.isnan(f())", "def f(): return float('nan')"),
        ("assert f() is None", "def f(): return None"),
        ("assert f() == range(3)", "def f(): return range(3)"),
        ("assert f() is int", "def f(): return int"),
        (
            "assert f().x == 1 and f()._asdict() == {'x': 1, 'y': 2}",
            "from collections import *\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        ),
        ("it = f()\nassert [next(it), next(it, 7)] == [1, 7]", "def f(): yield 1"),
        # Values of the code's module, as they are when they are read.
        ("f()\nf()\nassert count == 2", "count = 0\ndef f():\n global count\n count += 1"),
        (
            "def g():\n    f(1)\n    return log\nassert g() == [1]",
            "log = []\ndef f(x): log.append(x)",
        ),
        # Containers of the library by their values.
        ("assert f() == {'a': 2}", "from collections import *\ndef f(): return Counter('aa')"),
        # What an iterator gives.
        ("assert list(f()) == [0, 1]", "def f():\n yield from range(2)"),
        ("assert sorted(f()) == [1, 2]", "def f(): return {2: 0, 1: 0}.keys()"),
        # A truth value that is no plain one.
        ("assert f()", "import re\ndef f(): return re.match('a', 'a')"),
        ("assert not f()", "import re\ndef f(): return re.match('b', 'a')"),
        # Arguments that the code changes, and what is one and the same.
        ("x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]", "def f(x): x.sort()"),
        ("x = {'a': [1]}\nf(x)\nassert x == {'a': [1, 2]}", "def f(x): x['a'].append(2)"),
        ("x = [1]\nassert f(x) is x", "def f(x): return x"),
        ("x = [1]\nassert f(x) is not x and f(x) == x", "def f(x): return list(x)"),
        ("x = [[0]] * 2\nf(x)\nassert x == [[1], [1]]", "def f(x): x[0][0] += 1"),
        ("x = [1, 2]\nfor n in x: f(x)\nassert x == [1, 2]", "def f(x): pass"),
        # Functions and types as arguments.
        ("assert f(len, 'abc') == 3", "def f(g, x): return g(x)"),
        ("assert f([1, 'a'], int) == [1]", "def f(x, t): return [y for y in x if type(y) is t]"),
        ("assert f(x=1, y=2) == [('x', 1), ('y', 2)]", "def f(**k): return sorted(k.items())"),
        # Exceptions.
        (
            "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n"
            "    assert str(error) == 'no'",
            "def f(x):\n if x < 0: raise ValueError('no')",
        ),
        (
            "try:\n    f({})\n    assert False\nexcept LookupError as error:\n"
            "    assert error.args == ('a',)",
            "def f(x): return x['a']",
        ),
        # Classes that the tests name.
        (
            "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert len(s) == 1\n"
            "assert s.items == [1]\nassert isinstance(s, Stack)\nassert s.count(1) == 1",
            "class Stack:\n"
            "    def __init__(self): self.items = []\n"
            "    def push(self, x): self.items.append(x)\n"
            "    def pop(self): return self.items.pop()\n"
            "    def count(self, x): return self.items.count(x)\n"
            "    def __len__(self): return len(self.items)",
        ),
        (
            "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)\nassert depth(root) == 3"
            "\nassert root.left.value == 2\nassert root['value'] == 1\nassert str(root) == '<1>'",
            "class Node:\n"
            "    def __init__(self, value): self.value, self.left = value, None\n"
            "    def __getitem__(self, name): return getattr(self, name)\n"
            "    def __str__(self): return f'<{self.value}>'\n"
            "def depth(node): return 1 + depth(node.left) if node else 0",
        ),
        (
            "assert Solution().twoSum([1, 2]) == [0, 1]",
            "class Solution:\n def twoSum(self, x): return [0, 1]",
        ),
        # A builtin that is what the tests are about.
        ("assert sum(10, 15) == 25\nassert sum(1, 2) == 3", "def sum(a, b): return a + b"),
        # The library's modules are there without an import.
        ("assert math.isclose(f(), 0.1)", "def f(): return 0.1"),
        # Helpers and imports of the tests.
        (
            "import copy\ndef twice(x): return 2 * x\nassert f() == copy.copy(twice(2))",
            "def f(): return 4",
        ),
        # What the code imports late, and its own dataclasses.
        (
            "assert f() == 'x'",
            "from dataclasses import dataclass\n@dataclass\nclass C:\n    x: str = 'x'\n"
            "def f():\n    import zipfile\n    return C().x",
        ),
        ("assert f() == 1", "def f(): return 1\nif __name__ == '__main__':\n    raise ValueError"),
    ],
)
def test_right_code_passes(grader: Grader, tests: str, code: str) -> None:
    found = grade(grader, code, tests)
    assert found.reward == 1, found


@pytest.mark.parametrize(
    ("tests", "code", "kind"),
    [
        ("assert f() == 1", "def f(): return 2", "wrong value"),
        ("assert f() == 1", "def f(): return 1 / 0", "ZeroDivisionError"),
        ("assert f() == 1", "class Odd(ValueError): pass\ndef f(): raise Odd", "Odd"),
        ("assert f() == 1", "def f(:", "SyntaxError"),
        ("assert f() == 1", "def g(): return 1", "NameError"),
        ("assert f() == 1", "import sys\ndef f(): sys.exit()", "SystemExit"),
        ("assert f() == 1", "import os\ndef f(): os._exit(0)", "ended"),
        ("assert f() == [1]", "def f():\n yield 1", "no plain value"),
        ("assert f() != 1", "class C: pass\ndef f(): return C()", "no plain value"),
        ("assert f().startswith('a')", "class C:\n def __getattr__(s, n): return lambda *a: 1\n"
         "def f(): return C()", "no plain value"),
        ("assert 1 in f()", "class C:\n def __contains__(s, x): return True\n"
         "def f(): return C()", "TypeError"),
        ("assert abs(f() - 1) < 1e-6", "class C:\n def __sub__(s, x): return 0\n"
         "def f(): return C()", "TypeError"),
        ("assert f() == f()", "class C:\n def __eq__(s, x): return True\ndef f(): return C()",
         "no plain value"),
        ("g = [lambda: 1]\nassert f(g[0]) == 1", "def f(g): return g()", "no plain value"),
        ("assert all(map(lambda n: f(n) == n, [1, 2]))", "def f(n): raise StopIteration",
         "StopIteration"),
        ("assert not any(map(f, [1, 2]))", "class End(StopIteration): pass\ndef f(n): raise End",
         "End"),
        ("assert list(filter(lambda n: f(n) > 3, [1])) == []", "def f(n): raise StopIteration",
         "StopIteration"),
        ("ok = True\ntry: ok = f() == 2\nexcept: pass\nassert ok", "def f(): return object()",
         "no plain value"),
        ("import contextlib\nok = True\nwith contextlib.suppress(BaseException): ok = f() == 2\n"
         "assert ok", "def f(): return object()", "no plain value"),
        ("def g():\n    try: return f() == 2\n    finally: return True\nassert g()",
         "def f(): return object()", "no plain value"),
        ("assert f() == 1", "import os\ndef f(): os.abort()", "crash"),
        ("f()\nassert count == 1", "count = 0\ndef f(): pass", "wrong value"),
        ("x = [1]\nassert f(x) is not x", "def f(x): return x", "wrong value"),
        ("for x in f(): assert x", "def f(): return []", "not called"),
        ("assert set(f()) == {1}", "set = lambda x: {1}\ndef f(): return [2]", "wrong value"),
        ("import math\nassert math.isclose(f(), 1)", "import math\n"
         "math.isclose = lambda *a: True\ndef f(): return 2", "wrong value"),
        ("assert math.isclose(f(), 1)", "import math\n"
         "math.isclose = lambda *a: True\ndef f(): return 2", "wrong value"),
        ("f()\nassert f() == 2", "def f(n=[]):\n n.append(0)\n assert n[1:]\n return 2",
         "AssertionError"),
        ("try:\n    assert f() == 1\nfinally: pass", "def f(): return 2", "wrong value"),
        ("try: f()\nexcept: pass\nassert True == bool(1)", "import os\ndef f(): os._exit(0)",
         "ended"),
    ],
)  # fmt: skip
def test_wrong_code_fails_and_says_why(grader: Grader, tests: str, code: str, kind: str) -> None:
    found = grade(grader, code, tests)
    assert (found.reward, found.failed) == (0, False), found
    assert found.reason.rpartition(": ")[2] == kind, found
    assert len(found.feedback) < 2000


CYCLIC = "def encode(s):\n    return s[1:] + s[:1]"
HEAD = f'{CYCLIC}\n\ndef decode(s):\n    """Decode what encode gives."""\n'
CHECK = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (block(f"{CYCLIC}\n\ndef decode(s):\n    return s[-1:] + s[:-1]"), 1),
        (block("def decode(s):\n    return s[-1:] + s[:-1]"), 1),
        (block("    return s[-1:] + s[:-1]"), 1),
        ("    return s[-1:] + s[:-1]", 1),
        ("    return s[-1:] + s[:-1]\n\nThis moves the last letter.", 1),
        (block("def encode(s): return s\ndef decode(s): return s"), 0),  # the tests have their own
        ("Return s, I think.", 0),
        (block("def decode(s):\n    return encode(s)"), 0),
    ],
)
def test_function_of_the_problem_is_completed(
    grader: Grader, completion: str, reward: float
) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": f"Complete it.\n\n```python\n{HEAD}```", "tests": f"{CHECK}\ncheck(decode)"},
        {"problem": HEAD, "tests": CHECK, "entry_point": "decode"},
    ]
    grades = grader.grade([Item(completion, "", row=row) for row in rows])
    assert [found.reward for found in grades] == [reward] * 2, grades


def test_rows_need_tests_where_completions_are_graded(tmp_path: Any) -> None:
    config = changed("sdpo").changed("grading", grader=("code",))
    needs = check_config(config).needed_fields
    assert needs["tests"] == 'grading.grader "code"'
    assert "answer" not in needs
    file = tmp_path / "rows.jsonl"
    row = {"problem": "Write add.", "tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}
    file.write_text(json.dumps(row))
    [problem] = read_problems(cfg.DataConfig(path=str(file)), needs=needs).problems
    assert problem.fields["tests"] == "\n".join(row["tests"])
    file.write_text(json.dumps({"problem": "Write add."}))
    with pytest.raises(DataError, match=r'grading\.grader "code" needs it'):
        read_problems(cfg.DataConfig(path=str(file)), needs=needs)
