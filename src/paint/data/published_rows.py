"""Rows of GSM8K, MBPP and HumanEval, in the columns that the hub has, as problems.

    GSM8K       question, answer ("... #### 72")           -> problem, solution, answer
    MBPP        text or prompt, code, test_list            -> problem, solution, tests
    HumanEval   prompt, canonical_solution, test           -> problem, solution, tests

Each function returns the columns to add to a row, or None where the row is another one's. Others
use the names of the columns, too, so the texts must be those of the set. The sentence with the box
and the frames of code are ours.
"""

import re
from collections.abc import Mapping

from paint.data.readers import is_text, not_text

Fields = dict[str, object]

_CALCULATION = re.compile(r"<<[^<>]*>>")
"""A calculator's note in a solution of GSM8K: 48/2 = <<48/2=24>>24."""


_LAST_LINE = re.compile(
    r"####[ \t]*(?P<answer>[-+]?[$€£]?[-+]?"
    # Commas stand before three digits: 1,5 may be a decimal fraction.
    r"(?:(?:\d[\d,]*,\d{3}|\d+)(?:\.\d*)?|\.\d+)(?:/\d+)? ?(?:\\?%)?)"
)
"""The last line of an answer of GSM8K: a number behind four signs."""


def gsm8k(fields: Mapping[str, object]) -> Fields | None:
    """Return the problem, solution and answer of a row whose answer ends in one line "#### 72".

    The solution loses the calculator's notes, and ends in a box, for which the prompts ask. The
    answer loses the commas of thousands.
    """
    question, written = fields.get("question"), fields.get("answer")
    if not is_text(question) or not is_text(written):
        return None
    steps, _, last = written.rstrip().rpartition("\n")
    found = _LAST_LINE.fullmatch(last)
    if found is None or "####" in steps:
        return None
    answer = found["answer"].replace(",", "")
    steps = _CALCULATION.sub("", steps).strip()
    solution = f"{steps}\nThe answer is \\boxed{{{answer}}}."
    return {"problem": question, "solution": solution, "answer": answer}


def mbpp(fields: Mapping[str, object]) -> Fields | None:
    """Return the problem, which shows the tests as the set's authors do, solution and tests.

    The sanitized set has the text in ``prompt``, and ``test_imports``. Each test is an assertion.
    """
    code, tests = fields.get("code"), fields.get("test_list")
    text = fields.get("text") or fields.get("prompt")
    if not (is_text(code) and is_text(text) and isinstance(tests, list) and tests):
        return None
    if not all(is_text(test) and re.match(r"\s*assert\b", test) for test in tests):
        return None
    asserts = _texts(fields, "test_list")
    setup = [*_texts(fields, "test_imports"), *_texts(fields, "test_setup_code")]
    shown = "\n".join(asserts)
    return {
        "problem": f"{text}\nYour code should pass these tests:\n\n{shown}",
        "solution": _as_block(code.replace("\r\n", "\n")),
        "tests": "\n".join([*setup, *asserts]),
    } | _named(fields)


def humaneval(fields: Mapping[str, object]) -> Fields | None:
    """Return the problem, solution and tests of a row with the head of a Python function.

    The tests are a function ``check``.
    """
    prompt, body = fields.get("prompt"), fields.get("canonical_solution")
    test, name = fields.get("test"), fields.get("entry_point")
    if not all(map(is_text, (prompt, body, test, name))):
        return None
    head = rf"^def\s+{re.escape(str(name))}\s*\("
    if not re.search(head, str(prompt), re.MULTILINE):
        return None
    if not re.search(r"^def\s+check\s*\(", str(test), re.MULTILINE):
        return None
    return {
        "problem": f"Complete this function.\n\n{_as_block(str(prompt))}",
        "solution": _as_block(f"{prompt}{body}"),
        "tests": f"{test}\ncheck({name})\n",
    } | _named(fields)


def _as_block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _named(fields: Mapping[str, object]) -> Fields:
    if "id" in fields or "task_id" not in fields:
        return {}
    return {"id": fields["task_id"]}


def _texts(fields: Mapping[str, object], name: str) -> list[str]:
    """The texts of a field that is a text or a list of them. Raises BadRow for others."""
    value = fields.get(name)
    if value is None or value == "":
        return []
    texts: list[object] = list(value) if isinstance(value, list | tuple) else [value]
    if not all(map(is_text, texts)):
        raise not_text(name, value)
    return list(map(str, texts))
