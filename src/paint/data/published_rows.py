"""Rows of GSM8K, MBPP and HumanEval, in the columns that the hub has, as problems.

    GSM8K       question, answer ("... #### 72")           -> problem, solution, answer
    MBPP        text or prompt, code, test_list            -> problem, solution, tests
    HumanEval   prompt, canonical_solution, test           -> problem, solution, tests

Each function returns the columns to add to a row, or None where the row is another one's. The names
of the columns are not enough, which others use, too: the texts must be those of the set. Imports
that are no texts raise BadRow. What a function adds besides the row's own texts is ours: the
sentence with the box, and the frames of code.
"""

import re
from collections.abc import Mapping

from paint.data.readers import BadRow, is_text, not_text, shorten

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
    """Problem, solution and answer of a row whose answer ends in one line "#### 72".

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


def require_no_near_gsm8k(fields: Mapping[str, object]) -> None:
    """Raise BadRow for a row that ``gsm8k`` does not take, although its answer has "####"."""
    written = fields.get("answer")
    if is_text(fields.get("question")) and is_text(written) and "####" in written:
        detail = (
            f", alone and with a number (it ends in {shorten(written[-40:])}); correct it, or name "
            f"the row's columns, by which it is read as it is"
        )
        raise BadRow('field "answer" does not end in a line "#### 72", as GSM8K has it', detail)


def mbpp(fields: Mapping[str, object]) -> Fields | None:
    """Problem, solution and tests of a row; the problem shows the tests, as the set's authors do.

    The text is in ``text``, or in ``prompt`` of the sanitized set, which has ``test_imports``. Each
    test is an assertion.
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
    """Problem, solution and tests of a row: the head of a function that is to be completed.

    The head is Python's, which sets of this form in other languages do not have, and the tests are
    a function ``check``.
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
    """The row's id by the name that it has everywhere."""
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
