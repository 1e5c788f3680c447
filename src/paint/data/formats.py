"""Rows of published sets, by the names of their columns.

    GSM8K       question, answer ("... #### 72")
    MBPP        text or prompt, code, test_list
    HumanEval   prompt, canonical_solution, test

Other sets use these names, too, so the texts must be those of the set. The sentence with the box
and frames of code are ours.

A converted row keeps its own columns, and gets `problem` and `solution`. Only rows without a
problem are converted, while `data.problem_field` is the default.
"""

import re
from collections import Counter
from collections.abc import Mapping

from paint.config.schema import DataConfig
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
    } | _task_id(fields)


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
    } | _task_id(fields)


def _as_block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _task_id(fields: Mapping[str, object]) -> Fields:
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


PUBLISHED = {"GSM8K": gsm8k, "MBPP": mbpp, "HumanEval": humaneval}
COLUMNS = {
    "GSM8K": "question, answer",
    "MBPP": "text or prompt, code and test_list",
    "HumanEval": "prompt, canonical_solution",
}
"""Where the problem and the solution of each format come from."""


def convert_row(fields: Fields, data: DataConfig) -> tuple[Fields, str]:
    """Return a row with the columns of a problem, and the name of its format.

    The name is "" where the row has a problem already, or no known format.
    """
    # In Arrow files a row has null in the columns of other rows.
    names = {name.casefold() for name, value in fields.items() if value is not None}
    if data.problem_field != "problem" or not names.isdisjoint(("problem", "messages")):
        return fields, ""
    for name, convert in PUBLISHED.items():
        converted = convert(fields)
        if converted is not None:
            # What the row itself calls a solution stands before the format's.
            if data.solution_field != "solution" or "solution" in fields:
                converted.pop("solution", None)
            return fields | converted, name
    return fields, ""


def describe_formats(found: Counter[str]) -> list[str]:
    """Return a line for each format in which rows were read."""
    lines = []
    for name, columns in COLUMNS.items():
        share = ""
        if found[name] < found.total():
            share = f" ({found[name]:,} of {found.total():,} rows)"
        if found[name]:
            lines.append(f"read as {name}{share}: problem and solution from {columns}")
    return lines


def find_column(fields: Mapping[str, object], name: str) -> str | None:
    """Return the column of that name, or else the only one that differs only in case."""
    if name in fields:
        return name
    # Sets of the hub write Answer or ANSWER.
    near = [column for column in fields if column.casefold() == name.casefold()]
    return near[0] if len(near) == 1 else None
