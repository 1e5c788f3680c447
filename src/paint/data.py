"""Which problems does a run train on, and in which order?

`read_problems` reads a JSONL file and refuses, or skips and counts, every row that would train on nothing, on
the wrong thing, or twice on the same thing. `batch_indices` says which problems an optimizer step takes: a
pure function of seed and step, so that a resumed run sees the same data.

Left out on purpose: prompt lengths, which need the model's tokenizer and are checked where prompts are made;
any change to the texts, which reach the prompts exactly as written; CSV and Parquet.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from paint import PaintError
from paint.config import Data


class DataError(PaintError, ValueError):
    """A file or a row that cannot be used; the message names the file, the row, the field and the way out."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One training example: x, y* and the final gold answer, as text (paper: section 'Background')."""

    problem: str
    solution: str
    answer: str
    id: str


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """The good rows in file order, and how many rows were skipped for each reason."""

    problems: list[Problem]
    skipped: dict[str, int]


class _Number(str):
    """A JSON number as its own digits, so that a gold answer 0.10 stays 0.10."""

    __slots__ = ()


class _BadRow(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason + detail)
        self.reason = reason


def lab_file(name: str) -> Path:
    """A file of the embedded lab, which is shipped with the package; the empty name is the model's folder."""
    return Path(__file__).parent / "lab_model" / name


def read_problems(data: Data) -> ProblemSet:
    """The problems of `data.path`: one JSON object a line, in UTF-8; "lab" is the lab's training set.

    A good row has its problem, its solution and its answer as text that is not blank (an answer or an id may
    be a number), and repeats neither the problem (white space aside) nor the id of an earlier good row. Its
    id is its line number where the file has none. Blank lines are passed over. With `data.limit`, reading
    stops at that many good rows.

    Raises DataError when the file cannot be read, when it holds no good row, and, with on_bad_row "error", at
    the first bad row.
    """
    path = lab_file("train.jsonl") if data.path == "lab" else Path(data.path)
    found = ProblemSet([], {})
    seen: dict[tuple[str, str], int] = {}
    try:
        with path.open("rb") as lines:
            # Only "\n" ends a row: text may hold U+2028 and its like, at which str.splitlines would cut.
            for row, line in enumerate(lines, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if row == 1 else line
                if not line.strip():
                    continue
                try:
                    problem = _parse(line, row, data)
                    keys = (("problem", " ".join(problem.problem.split())), ("id", problem.id))
                    for what, text in keys:
                        if (what, text) in seen:
                            detail = f", row {seen[what, text]} (value {_short(text)})"
                            raise _BadRow(f"same {what} as an earlier row", detail)
                except _BadRow as bad:
                    if data.on_bad_row == "error":
                        way_out = "fix the row or pass --data.on-bad-row skip"
                        raise DataError(f"{path} row {row}: {bad}; {way_out}") from None
                    found.skipped[bad.reason] = found.skipped.get(bad.reason, 0) + 1
                    continue
                seen |= dict.fromkeys(keys, row)
                found.problems.append(problem)
                if len(found.problems) == data.limit:
                    break
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; set --data.path to a JSONL file of problems") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; set --data.path to a JSONL file of problems") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not found.problems and found.skipped:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in found.skipped.items())
        raise DataError(f"{path} holds no row that can be used ({reasons})")
    if not found.problems:
        raise DataError(f"{path} is empty; it must hold one JSON object a line")
    return found


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The indices, in [0, count), of the `batch_size` problems that optimizer step `step` (from 0) trains on.

    Epochs are seeded permutations of all problems laid end to end: nothing repeats within an epoch, nothing
    is left out, and a step may straddle epochs (or hold several, when the batch is larger than the data). The
    result depends on the arguments alone, on every Python version. Raises ValueError when count or batch_size
    is below 1 or step below 0. (paper: Algorithm 'complete adaptive privileged re-scoring recipe', 'Sample a
    minibatch')
    """
    if count < 1 or batch_size < 1 or step < 0:
        limits = "count and batch_size must be at least 1 and step at least 0"
        raise ValueError(f"{limits}, got count {count}, batch_size {batch_size}, step {step}")
    first, end = step * batch_size, (step + 1) * batch_size
    epochs = range(first // count, (end - 1) // count + 1)
    laid_out = [index for epoch in epochs for index in _permutation(count, f"{seed}/{epoch}")]
    skip = first - epochs[0] * count
    return laid_out[skip : skip + batch_size]


def _permutation(count: int, seed: str) -> list[int]:
    # Python promises the same random() in every version, not the same shuffle().
    rng = random.Random(seed)
    keys = [rng.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def _parse(line: bytes, row: int, data: Data) -> Problem:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadRow("invalid UTF-8", f" at byte {error.start + 1}: {error.reason}") from None
    try:
        fields = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _BadRow("invalid JSON", f" at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _BadRow("invalid JSON", ": nested too deeply") from None
    if not isinstance(fields, dict):
        raise _BadRow("not a JSON object", f" but {_kind(fields)}; write one object a line")
    # The default name is optional; a name that was chosen and is not there is a slip of the pen.
    numbered = data.id_field == "id" and "id" not in fields
    return Problem(
        problem=_text(fields, data.problem_field, "problem"),
        solution=_text(fields, data.solution_field, "solution"),
        answer=_text(fields, data.answer_field, "answer"),
        id=str(row) if numbered else _text(fields, data.id_field, "id"),
    )


def _text(fields: dict[str, object], name: str, role: str) -> str:
    if name not in fields:
        there = ", ".join(fields) or "none"
        detail = f" (fields of the row: {there}); set --data.{role}-field to the one that holds the {role}"
        raise _BadRow(f'field "{name}" is missing', detail)
    value = fields[name]
    if not isinstance(value, str) or (isinstance(value, _Number) and role not in ("answer", "id")):
        raise _BadRow(f'field "{name}" is not text', f" but {_kind(value)} (value {_short(value)})")
    if not value.strip():
        raise _BadRow(f'field "{name}" is empty', f" (value {_short(value)})")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f": half a surrogate pair at character {error.start + 1}"
        raise _BadRow(f'field "{name}" is not valid Unicode', detail) from None
    return str(value)


def _refuse_constant(name: str) -> NoReturn:
    raise _BadRow("invalid JSON", f": {name} is not a JSON number")


def _kind(value: object) -> str:
    if isinstance(value, _Number):
        return "a number"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names[type(value)]


def _short(value: object) -> str:
    shown = str(value) if isinstance(value, _Number) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
