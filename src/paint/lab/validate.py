"""Validation of a training file before a run (`paint data validate`).

The complete file is read and every bad row is counted, whatever `data.on_bad_row` is. Checks and
prompts are those of a run. Nothing is written.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from chatforms.conventions import read_thinking
from chatforms.lengths import token_lengths
from paint.core.demo_files import problems_path
from paint.core.display import Display
from paint.data.contexts import Contexts
from paint.data.formats import describe_formats
from paint.data.problems import DataError, Problem, validate_rows
from paint.data.readers import BadRow, Row, read_rows, shorten
from paint.data.row_checks import check_rows, gold_warnings
from paint.evaluation.generate import other_form
from paint.grading.contract import Item
from paint.grading.graders import find_grader, open_grader
from paint.models.lengths import chunks, spaced
from paint.models.model_errors import REASON, PromptError, chat_errors
from paint.models.policy import load_tokenizer
from paint.models.prompts import ViewWriter, differing_lines
from paint.models.references import Reference, describe_changes, fit_reference
from paint.resolve.check import Resolved
from paint.training.row_prompts import LONGEST, RowPrompts, measure_rows, rows_to_count
from paint.training.teacher_views import masked_context
from strictgrade.choice import named_letters

SHOWN_ROWS = 5

WRONG_REFERENCES = "what wrong boxes cost: docs/results/demo.md#references-that-go-wrong"

GRADES_ANSWERS = ("math", "exact", "choice")
"""Graders that solutions are graded by. Others may cost money or run code."""

NO_BOXES = (
    "no solution has a box, which the paper's prompt asks the student for; where answers are not "
    "mathematics, set prompts.student (docs/how-to/own-context.md#prompts)"
)

# Reasons for which a row is bad.
TURNS = "turns that the chat template does not take"
THOUGHTS = "a thought that does not fit the model's chat format"

RowMessages = list[tuple[int, str]]  # row number and message


class LengthQuantiles(NamedTuple):
    """Lengths of texts, in tokens."""

    median: float
    p95: float
    longest: float


@dataclass(slots=True, repr=False)
class FileCheck:
    path: str
    limit: int  # most tokens of a teacher prompt
    rows: int = 0
    columns: Counter[str] = field(default_factory=Counter)  # number of rows that have each
    notes: list[str] = field(default_factory=list)  # how rows and prompts were read
    good: int = 0  # valid rows, which all that follows counts
    measured: int = 0  # of which lengths are: all, or a sample of many (``spaced``)
    bad: dict[str, RowMessages] = field(default_factory=dict)  # by reason
    lengths: dict[str, LengthQuantiles] = field(default_factory=dict)
    too_long: RowMessages = field(default_factory=list)  # of all rows
    grader: str = ""  # of the run's graders, one of GRADES_ANSWERS; "" without any
    boxed: Counter[str] = field(default_factory=Counter)  # solutions by that grader's verdict
    gold_warnings: RowMessages = field(default_factory=list)  # gold answers that may be misread
    ungradable: RowMessages = field(default_factory=list)  # that no completion can be right of
    views: dict[str, str] = field(default_factory=dict)  # prompts of the first valid row

    @property
    def findings(self) -> dict[str, RowMessages]:
        findings = {f"bad: {reason}": rows for reason, rows in self.bad.items()}
        findings[f"over data.max_prompt_tokens, {self.limit:,}"] = self.too_long
        findings["gold answers to check (docs/how-to/own-data.md)"] = self.gold_warnings
        findings["cannot be graded"] = self.ungradable
        return {title: rows for title, rows in findings.items() if rows}

    def __repr__(self) -> str:
        """Return the counts; the fields have the rows and the prompts."""
        lines = [f"{self.path}: {self.rows:,} rows, {self.good:,} good", *self.notes]
        lines += [f"{title}: {len(rows):,} rows" for title, rows in self.findings.items()]
        return "\n".join(lines)


def check_file(run: Resolved, *, display: Display | None = None) -> FileCheck:
    """Validate all rows of `data.path`, or up to `data.limit` valid ones.

    Raises DataError if the source cannot be read or is empty, PolicyError if the tokenizer has no
    working chat template.
    """
    display, config = display or Display(), run.config
    tokenizer = load_tokenizer(config.model.path)
    check = FileCheck(problems_path(config.data.place), config.data.max_prompt_tokens)
    problems = _read_problems(run, check, display)
    if not problems and not check.bad:
        raise DataError(f"{check.path} is empty; it must hold one problem a row")

    problems = _check_thoughts(run, tokenizer, problems, check)
    problems = _check_prompts(run, tokenizer, problems, check, display)
    check.good = len(problems)
    for problem in display.track("gold answers read", problems):
        doubts = _doubts(problem, config.grading.grader)
        if doubts:
            check.gold_warnings.append((problem.row, ", ".join(doubts)))
    # One of the run's graders that costs no call and runs no code.
    check.grader = next((name for name in config.grading.grader if name in GRADES_ANSWERS), "")
    if check.grader:
        _grade_solutions(problems, check, display)

    _try_rows(run, problems, check, display)

    # The paper's prompt asks for a box; a chat is shown as it is.
    is_asked_for_boxes = not config.prompts.student and any(not p.turns for p in problems)
    is_math = check.grader == "math"
    if is_math and is_asked_for_boxes and set(check.boxed) == {"no box"}:
        check.notes.append(NO_BOXES)
    if problems:
        warning = other_form(config.prompts, config.grading.grader, problems[0])
        check.notes += filter(None, [warning])
    return check


def _read_problems(run: Resolved, check: FileCheck, display: Display) -> list[Problem]:
    """Return the valid rows; count all rows, their columns and formats, and list the bad ones."""
    problems: list[Problem] = []
    formats: Counter[str] = Counter()

    def rows() -> Iterator[Row]:
        with display.counting("rows", 0) as counter:
            for row, fields in read_rows(check.path):
                check.rows += 1
                counter.to(check.rows)
                if not isinstance(fields, BadRow):
                    check.columns.update(fields.keys())
                yield row, fields

    data = run.config.data
    for row, problem in validate_rows(rows(), data, needs=run.needed_fields, formats=formats):
        if not isinstance(problem, Problem):
            check.bad.setdefault(problem.reason, []).append((row, str(problem)))
            continue
        problems.append(problem)
        if len(problems) == data.limit:
            break
    check.notes = describe_formats(formats)
    return problems


def _check_prompts(
    run: Resolved,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    check: FileCheck,
    display: Display,
) -> list[Problem]:
    """Measure the prompts of valid rows, show those of the first, and return the good rows.

    A row with control text, or whose turns the chat template does not take, is bad.
    """
    contexts, views = Contexts(run.config.context, problems), ViewWriter.of(tokenizer, run.config)
    places = spaced(range(len(problems)))
    counted: Collection[int] = places
    if len(places) < len(problems):
        counted = {*places, *rows_to_count(run, contexts, problems)}
    # Without a teacher, a prompt is learned together with its solution.
    is_alone = bool(run.learns_solutions) and not run.algorithm.needs_context
    if is_alone:
        counted = range(len(problems))
    measured = measure_rows(
        run, views, contexts, problems, display, limit=check.limit, counted=counted
    )
    good: dict[int, Problem] = {}
    for place, (problem, row) in enumerate(zip(problems, measured, strict=True)):
        if row.control:
            check.bad.setdefault(REASON, []).append((problem.row, f"{REASON}{row.control}"))
            continue
        if row.refused:
            check.bad.setdefault(TURNS, []).append((problem.row, str(row.refused)))
            continue
        good[place] = problem
        kind, length = "teacher prompt", row.teacher
        if not length:
            kind, length = "prompt", row.student
        if is_alone:
            kind, length = "prompt with its solution", row.student + row.solution
        if length > check.limit:
            check.too_long.append((problem.row, f"a {kind} of {length} tokens"))

    sampled = [place for place in places if place in good]
    check.measured = len(sampled)
    shown = [*sampled, *(place for place in counted if place in good)]
    _keep_lengths(check, tokenizer, [(good[place], measured[place]) for place in shown])
    for problem in [*good.values()][:1]:
        # The context of the first step, before a completion.
        context, _ = masked_context(contexts, problem, run.config.train.seed)
        written = views.texts(problem, [context.text], complete=context.complete)
        for name, text in zip(("student", "teacher"), written, strict=True):
            ids = tokenizer.encode(text, add_special_tokens=False)
            check.views[name] = str(tokenizer.decode(ids))
    return list(good.values())


def _keep_lengths(
    check: FileCheck, tokenizer: PreTrainedTokenizerBase, rows: Sequence[tuple[Problem, RowPrompts]]
) -> None:
    """Keep the lengths of the first rows, ``check.measured``, and the longest of all."""
    lengths = {
        "problem": token_lengths(tokenizer, [problem.problem for problem, _ in rows]),
        "solution": token_lengths(tokenizer, [problem.solution for problem, _ in rows]),
        "student prompt": [row.student for _, row in rows],
        "teacher prompt": [row.teacher for _, row in rows],
    }
    for name, counts in lengths.items():
        if any(counts):
            quantiles = length_quantiles(counts[: check.measured])
            check.lengths[name] = quantiles._replace(longest=max(counts))


def _check_thoughts(
    run: Resolved, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], check: FileCheck
) -> list[Problem]:
    """Note how SFT changes the thoughts of solutions, and return the rows that the run takes."""
    with chat_errors():
        tags = read_thinking(tokenizer)
    thinking = run.config.model.student_thinking
    references: list[Reference] = []
    refused: RowMessages = []
    for problem in problems:
        try:
            references.append(fit_reference(problem.solution, tags, thinking=thinking))
        except PromptError as error:
            refused.append((problem.row, str(error)))
    notes = describe_changes(references)
    if not run.algorithm.needs_rollouts:
        if refused:
            check.bad[THOUGHTS] = refused
    elif refused:
        notes.append(f"{len(refused):,} of {len(problems):,} solutions have {THOUGHTS}")
    for note in notes:
        check.notes.append(f"in SFT, {note}")
    rows = {row for row, _ in check.bad.get(THOUGHTS, [])}
    return [problem for problem in problems if problem.row not in rows]


def _doubts(problem: Problem, graders: Sequence[str]) -> list[str]:
    doubts: list[str] = []
    if "math" in graders:
        doubts += [f"{shorten(one.answer)}: {one.why}" for one in gold_warnings([problem])]
    if "choice" in graders:
        wrong = [answer for answer in problem.answers if len(named_letters(answer)) != 1]
        doubts += [f"{shorten(answer)}: it is no letter" for answer in wrong]
    return doubts


def _grade_solutions(problems: Sequence[Problem], check: FileCheck, display: Display) -> None:
    items = [
        Item(problem.solution, problem.answers)
        for problem in problems
        if problem.solution and problem.answer
    ]
    grader = find_grader(check.grader)
    with grader, display.counting("solutions graded", len(items)) as counter:
        for chunk in chunks(items):
            grades = grader.grade(chunk)
            check.boxed.update(grade.reason for grade in grades)
            counter.to(check.boxed.total())


def _try_rows(
    run: Resolved, problems: Sequence[Problem], check: FileCheck, display: Display
) -> None:
    with (
        closing(open_grader(run.config.grading)) as grader,
        display.counting("rows tried by their own solutions", len(problems)) as counter,
    ):
        checks = check_rows(grader, problems, seconds=math.inf, count=counter.to)
    check.ungradable = [(problem.row, why) for problem, why in checks.faults]
    check.notes += checks.lines()


def length_quantiles(lengths: Sequence[int]) -> LengthQuantiles:
    """Return median, 95th percentile and maximum of at least one length.

    The 95th percentile is the smallest length that is at least as long as 95 % of them.
    """
    median = float(np.median(lengths))
    p95 = float(np.percentile(lengths, 95, method="inverted_cdf"))
    return LengthQuantiles(median, p95, max(lengths))


def print_check(check: FileCheck, console: Console) -> None:
    """Print the counts, the first bad rows by reason, and the lengths."""
    console.print(f"{check.path}: {check.rows:,} rows, {check.good:,} good")
    columns = []
    for name, count in check.columns.items():
        columns.append(name if count == check.rows else f"{name} (in {count:,} rows)")
    console.print(f"columns: {', '.join(columns)}")
    for note in check.notes:
        console.print(note)

    for title, rows in check.findings.items():
        _print_rows(title, rows, console)
    if not check.good:
        return

    student = check.views.get("student", "")
    for name, view in check.views.items():
        text = view if name == "student" else differing_lines(view, student)
        # No markup: a prompt may hold brackets that rich would read as a style.
        console.print(f"--- the {name} reads of the first row ---", text, sep="\n", markup=False)
    console.print("---")
    if check.boxed:
        right = check.boxed["right"] / check.boxed.total()
        verdicts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(check.boxed.items()))
        what = "whose box holds the answer"
        if check.grader != "math":
            what = f"that grading.grader {check.grader} accepts"
        console.print(f"solutions {what}: {right:.1%} ({verdicts})")
    if check.grader == "math" and check.boxed["wrong"]:
        console.print(WRONG_REFERENCES)

    if check.measured < check.good:
        console.print(
            f"lengths are those of {check.measured:,} of {check.good:,} rows, at equal "
            f"distances; longest is also of the {LONGEST} with the most bytes, and every row is "
            f"held against data.max_prompt_tokens"
        )
    table = Table("tokens", "median", "95 %", "longest")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, length in check.lengths.items():
        table.add_row(name, *(f"{quantile:,.0f}" for quantile in length))
    console.print(table)


def _print_rows(title: str, rows: RowMessages, console: Console) -> None:
    console.print(f"{title}: {len(rows):,} rows")
    # Every row of a file with other columns has the same message.
    by_message: dict[str, list[str]] = {}
    for row, message in rows[:SHOWN_ROWS]:
        by_message.setdefault(message, []).append(str(row))
    for message, numbers in by_message.items():
        word = "row" if len(numbers) == 1 else "rows"
        console.print(f"  {word} {', '.join(numbers)}: {message}")
    if len(rows) > SHOWN_ROWS:
        console.print("  ...")
