"""Fenced blocks: CommonMark's rules, strings that hold fences, and texts that are long."""

import ast
import textwrap
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codetrial.extract import code_of
from codetrial.fences import blocks_of
from codetrial.sandbox import Limits, Sandboxes

EXAMPLES = 150
ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{ADD}```",
        f"```Python\n{ADD}```",
        f"```py\n{ADD}```",
        f"```py3\n{ADD}```",
        f"```python3.11\n{ADD}```",
        f"```ipython\n{ADD}```",
        f"```{{python}}\n{ADD}```",
        f"```{{.python .numberLines}}\n{ADD}```",
        f"``` python title=add.py\n{ADD}```",
        f"```python:add.py\n{ADD}```",
        f"~~~py\n{ADD}~~~",
        f"~~~py `\n{ADD}~~~~~",
        f"````python\n{ADD}````",
        f"````python\n{ADD}```````  \t",
        f"   ```python\n{ADD}   ```",
        f"```python\n{ADD}   ```",
        f"```python\n{ADD}```\n".replace("\n", "\r\n"),
        "- So:\n\n  ```python\n  def add(a, b):\n      return a + b\n  ```",
        "1. ```python\n   def add(a, b):\n       return a + b\n   ```",
        "     ```python\n     def add(a, b):\n         return a + b\n     ```",
        f"`inline ```` here`\n```python\n{ADD}```",
        f"```python```\n```python\n{ADD}```",
        f"```\n1\n```\n```bash\nls\n```\n```python\n{ADD}```\n```text\n3\n```",
    ],
)
def test_code_of_a_block_is_found(text: str) -> None:
    code = code_of(text, ["add"])
    assert code is not None
    assert code.parts[-1] == ADD


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{ADD}",
        f"```python\n{ADD}~~~",
        f"````python\n{ADD}```",
        f"```python\n{ADD}``` end",
        f"```python\n{ADD}    ```",
        f"``python\n{ADD}``",
        f"```pycon\n{ADD}```",
        f"```python-traceback\n{ADD}```",
        f"```pyx\n{ADD}```",
    ],
)
def test_what_is_no_block_of_python_is_no_code(text: str) -> None:
    assert code_of(text, ["add"]) is None


WITH_FENCES = (
    '"""Add.\n\n```\nadd(1, 2)\n```\n"""\n',
    '"""Add.\n\n```python\nadd(1, 2)\n```\n\n```\n3\n```\n"""\n',
    'HELP = """\n```json\n{}\n```\n"""\n',
    "HELP = r'''\n~~~\n```\n~~~\n'''\n",
    '"""Add.\n\n    ```\n    add(1, 2)\n    ```\n"""\n',
    'TEXT = "\'\'\'" + \'"""\'  # and """\nHELP = """\n```\n"""\n',
)


@pytest.mark.parametrize("head", WITH_FENCES)
@pytest.mark.parametrize("tag", ["python", ""])
def test_fence_in_a_string_does_not_close_the_block(head: str, tag: str) -> None:
    blocks = list(blocks_of(f"So:\n```{tag}\n{head}{ADD}```\n```text\nend\n```"))
    assert [block.code for block in blocks] == [head + ADD, "end\n"]


def test_fence_closes_a_block_whose_string_is_not_closed() -> None:
    first = 'x = """\n'
    blocks = [block.code for block in blocks_of(f"```python\n{first}```\n```python\n{ADD}```")]
    assert blocks == [first, ADD]


def test_form_feeds_and_separators_in_code_are_kept() -> None:
    code = "x = '\x0c \u2028 \x1c'\n"
    assert [block.code for block in blocks_of(f"```python\n{code}```")] == [code]


LINES = st.sampled_from(
    [
        *("```", "````", "~~~", "~~~~", "```python", "~~~ py", "```text", "``` `", "~~~ `x`"),
        *("   ```", "    ```", "  ```python", "     ~~~", "\t```", "- ```python", "``", "```x```"),
        *('"""', "'''", 'x = """a', 'y = \'a"""\'', "# '''", '"\\"', "z = 1", "def f():", ""),
        *("    return 1", '    """Text."""', "Some prose, isn't it?", "r'''\\", "  - ~~~"),
    ]
)


@settings(max_examples=EXAMPLES)
@given(st.lists(LINES, max_size=14))
def test_blocks_are_those_of_a_slow_reading(lines: list[str]) -> None:
    assert [tuple(block) for block in blocks_of("\n".join(lines))] == slow_blocks(lines)


def slow_blocks(lines: list[str]) -> list[tuple[str, str]]:
    """The blocks by trying all closings, without regard to time."""
    found = []
    start = 0
    while start < len(lines):
        opened = slow_opening(lines[start])
        start += 1
        if opened is None:
            continue
        columns, fence, tag = opened
        ends = [n for n in range(start, len(lines)) if slow_closes(lines[n], columns, fence)]
        if not ends:
            break
        end = ends[0]
        if tag in ("python", "") and not parses(lines[start:end], columns):
            longer = [n for n in ends[1:] if parses(lines[start:n], columns)]
            # What is joined must begin within a string: else the first fence is Python, too.
            if longer and is_in_string(lines[start:end], columns):
                end = longer[0]
        found.append((tag, slow_content(lines[start:end], columns)))
        start = end + 1
    return found


def slow_opening(line: str) -> tuple[int, str, str] | None:
    rest = line.lstrip(" \t")
    if rest.startswith("- "):
        rest = rest[2:].lstrip(" \t")
    sign = rest[:1]
    count = len(rest) - len(rest.lstrip(sign)) if sign in ("`", "~") and sign else 0
    info = rest[count:]
    if count < 3 or (sign == "`" and "`" in info):
        return None
    columns = len(line[: len(line) - len(rest)].expandtabs(4))
    word = info.split()[0] if info.split() else ""
    return columns, sign * count, "python" if word in ("python", "py") else word


def slow_closes(line: str, columns: int, fence: str) -> bool:
    text = line.strip(" \t")
    indent = len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))
    is_fence = set(text) == {fence[0]} and len(text) >= len(fence)
    return is_fence and indent <= columns + 3


def slow_content(lines: list[str], columns: int) -> str:
    code = ""
    first = next((line for line in lines if line.strip(" \t")), "").expandtabs(4)
    columns = min(columns, len(first) - len(first.lstrip(" ")))
    for line in lines:
        spaces = line.expandtabs(4) if line.startswith("\t") else line
        indent = len(spaces) - len(spaces.lstrip(" "))
        code += (spaces[min(indent, columns) :] if columns else line) + "\n"
    if columns and code.lstrip("\n")[:1] in (" ", "\t"):
        code = textwrap.dedent(code)
    return code


def parses(lines: list[str], columns: int) -> bool:
    try:
        ast.parse(slow_content(lines, columns))
    except (SyntaxError, ValueError):
        return False
    return True


def is_in_string(lines: list[str], columns: int) -> bool:
    """Whether a closing triple quote of some kind makes Python of what is no Python."""
    code = slow_content(lines, columns)
    return any(parses([code + quote], 0) for quote in ('"""', "'''")) or "def f():" in code


N = 100_000
LONG = {
    "tildes": "~" * N + "`\n",
    "backticks": "`" * N + " `",
    "spaces": " " * N + "x",
    "both": "`~" * (N // 2),
    "lines of tildes": ("~" * 400 + "\n") * (N // 401),
    "fences": "```\n" * (N // 4),
    "blocks": '```python\n"""\n```\n' * (N // 18),
    "one string": '```python\n"""\n' + "```\n" * (N // 4),
    "quotes": "```python\n" + "'\\" * (N // 2) + "\n```",
    "marks": "- " * (N // 2),
    "braces": "```" + "{" * N,
    "a word": "```python\n" + "x" * N + "\n```",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_text_is_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    code_of(text, ["f"])
    assert time.process_time() - began < 5  # a quadratic reading takes minutes


def test_completion_of_fences_is_wrong_and_not_ungraded() -> None:
    row = {"tests": "assert add(1, 2) == 3", "problem": "", "entry_point": ""}
    tildes = "~" * 2400 + "`\n"
    wrong = "```python\ndef add(a, b): return 7\n```"
    texts = [tildes + wrong, ("~" * 400 + "`\n") * 200 + wrong, *LONG.values()]
    right = f"`{tildes}\n```python\n{ADD}```"
    with closing(Sandboxes(Limits(seconds=1), count=1)) as sandboxes:
        outcomes = sandboxes.run([row | {"answer": text} for text in [*texts, right]])
    assert all(outcome.has_begun for outcome in outcomes)
    *kinds, of_right = [[event[0] for event in outcome.events] for outcome in outcomes]
    assert not any({"broken", "passed"} & {*found} for found in kinds)
    assert of_right == ["tests", "reached", "passed", "end"]
