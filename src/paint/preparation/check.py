"""What does a training file hold, and what would a run make of it?

The whole file is read and every bad row counted, whatever `data.on_bad_row` says: this is where one looks before a
run. The checks are the run's own (paint.data.problems), and so are the prompts (paint.model.policy.encode).

Left out on purpose: mending. Nothing is written.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from paint.config import Data
from paint.context import MARKER, anchors, teacher_messages
from paint.data.problems import DataError, Problem, judge
from paint.data.readers import BadRow, Row, count_rows, read_rows
from paint.display import Display
from paint.grading.grader import Grader, Item
from paint.lab.files import model_path, problems_path
from paint.model.policy import encode

SHOWN_ROWS = 5
CHUNK = 256


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of texts, in tokens."""

    median: float
    p95: float
    longest: int


@dataclass(slots=True)
class BadRows:
    """How many rows are bad for one reason, and the first of them: number and message."""

    count: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a file holds. Rows are good or bad; of the good ones, those over the token limit are named too.

    Attributes:
        columns: how many rows have the column.
        bad: by reason.
        lengths: of problem, solution and the longest prompt that the teacher may read.
        too_long: good rows whose teacher prompt is over `limit` tokens.
        without_anchors: good rows whose overlap will always count as 0.
        boxed: verdicts on the solutions as if they were completions: "right" where the box holds the answer.
    """

    path: str
    columns: dict[str, int]
    good: int
    bad: dict[str, BadRows]
    lengths: dict[str, Lengths]
    limit: int
    too_long: BadRows
    without_anchors: int
    boxed: dict[str, int]


def survey(
    data: Data,
    tokenizer: str,
    *,
    teacher_thinking: bool = True,
    workers: int | None = None,
    display: Display | None = None,
) -> Survey:
    """Go over all rows of `data.path`, or up to `data.limit` good ones.

    Args:
        tokenizer: folder or hub name of the model that is to be trained; "lab" is the embedded one.
        teacher_thinking: thinking mode of the teacher's prompt, as in `model.teacher_thinking`.
        workers: processes that compare answers, by default one for each core.

    Raises:
        DataError: a source that cannot be read or is empty, a tokenizer that cannot be loaded or has no chat template.
    """
    display = display or Display()
    tokens = load_tokenizer(tokenizer)
    source = problems_path(data.path)
    columns: dict[str, int] = {}
    bad: dict[str, BadRows] = {}
    too_long = BadRows()
    lengths: dict[str, list[int]] = {"problem": [], "solution": [], "teacher prompt": []}
    without_anchors = 0
    boxed: dict[str, int] = {}
    total = count_rows(Path(source)) if Path(source).is_file() else 0
    judged = _first(judge(_noting(read_rows(source), columns), data), data.limit)
    with Grader(workers=workers) as grader, display.counting("rows", total) as counter:
        while chunk := list(islice(judged, CHUNK)):
            good = []
            for row, problem in chunk:
                if isinstance(problem, BadRow):
                    _add(bad.setdefault(problem.reason, BadRows()), row, str(problem))
                    continue
                good.append(problem)
                found = prompt_lengths(tokens, problem, teacher_thinking)
                for name, length in found.items():
                    lengths[name].append(length)
                if found["teacher prompt"] > data.max_prompt_tokens:
                    _add(too_long, row, f"a teacher prompt of {found['teacher prompt']} tokens")
            without_anchors += sum(not anchors(problem.solution) for problem in good)
            for grade in grader.grade([Item(problem.solution, problem.answer) for problem in good]):
                boxed[grade.strict.reason] = boxed.get(grade.strict.reason, 0) + 1
            counter.to(chunk[-1][0])
    if not columns and not bad:
        raise DataError(f"{source} is empty; it must hold one problem a row")
    return Survey(
        path=source,
        columns=columns,
        good=len(lengths["problem"]),
        bad=bad,
        lengths={name: summary(found) for name, found in lengths.items() if found},
        limit=data.max_prompt_tokens,
        too_long=too_long,
        without_anchors=without_anchors,
        boxed=boxed,
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder or hub name, or of "lab". DataError when it has none or no chat template."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_path(name))
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"no tokenizer at {name!r} ({reason}); name the folder or hub name of a model") from None
    if tokenizer.chat_template is None:
        raise DataError(f"the tokenizer of {name!r} has no chat template; take that of an instruction-tuned model")
    return tokenizer


def prompt_lengths(tokenizer: PreTrainedTokenizerBase, problem: Problem, teacher_thinking: bool) -> dict[str, int]:
    """Tokens of problem, solution and teacher prompt; the last with the whole solution and the omission marker."""
    messages = teacher_messages(problem.problem, f"{problem.solution} {MARKER}", complete=False)
    return {
        "problem": len(tokenizer.encode(problem.problem, add_special_tokens=False)),
        "solution": len(tokenizer.encode(problem.solution, add_special_tokens=False)),
        "teacher prompt": len(encode(tokenizer, messages, thinking=teacher_thinking)),
    }


def summary(lengths: Sequence[int]) -> Lengths:
    """Median, 95th percentile (the smallest length that 95 % do not exceed) and maximum of at least one length."""
    ordered = sorted(lengths)
    return Lengths(statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1])


def print_survey(found: Survey, console: Console | None = None) -> None:
    """Show a survey: what is there, what is wrong and where, how long the texts are."""
    console = console or Console(highlight=False, soft_wrap=True)
    count = found.good + sum(rows.count for rows in found.bad.values())
    console.print(f"{found.path}: {count:,} rows, {found.good:,} good", markup=False)
    columns = (name if rows == count else f"{name} (in {rows:,} rows)" for name, rows in found.columns.items())
    console.print(f"columns: {', '.join(columns)}", markup=False)
    notes = {f"bad: {reason}": rows for reason, rows in found.bad.items()}
    if found.too_long.count:
        notes[f"over data.max_prompt_tokens, {found.limit:,}"] = found.too_long
    for title, rows in notes.items():
        console.print(f"{title}: {rows.count:,} rows", markup=False)
        for row, message in rows.first:
            console.print(f"  row {row}: {message}", markup=False)
        if rows.count > len(rows.first):
            console.print("  ...")
    if not found.good:
        return
    console.print(
        f"solutions whose box holds the answer: {found.boxed.get('right', 0) / found.good:.1%} "
        f"({', '.join(f'{count:,} {reason}' for reason, count in sorted(found.boxed.items()))})",
        f"solutions without anchors (their overlap counts as 0): {found.without_anchors / found.good:.1%}",
        sep="\n",
        markup=False,
    )
    table = Table("tokens", *(("median", "95 %", "longest")))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, length in found.lengths.items():
        table.add_row(name, f"{length.median:,.0f}", f"{length.p95:,}", f"{length.longest:,}")
    console.print(table)


def _noting(rows: Iterable[Row], columns: dict[str, int]) -> Iterator[Row]:
    """The rows as they are; on their way, which columns they have is counted."""
    for row, fields in rows:
        for name in () if isinstance(fields, BadRow) else fields:
            columns[name] = columns.get(name, 0) + 1
        yield row, fields


def _first(judged: Iterable[tuple[int, Problem | BadRow]], limit: int | None) -> Iterator[tuple[int, Problem | BadRow]]:
    """All items up to the one that holds the last good row of the limit."""
    good = 0
    for row, problem in judged:
        yield row, problem
        good += isinstance(problem, Problem)
        if good == limit:
            return


def _add(rows: BadRows, row: int, message: str) -> None:
    rows.count += 1
    if len(rows.first) < SHOWN_ROWS:
        rows.first.append((row, message))
