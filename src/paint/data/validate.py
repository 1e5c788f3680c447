"""Validation of a training file before a run (`paint data validate`).

The complete file is read and every bad row is counted, whatever `data.on_bad_row` is. Checks and
prompts are the same as in a run (paint.data.problems, paint.models.policy.encode). Nothing is
written.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from paint.config.schema import Config
from paint.core.display import Display
from paint.data.benchmarks import Benchmark
from paint.data.contexts import Contexts
from paint.data.decontaminate import Index, Pass, build_index, contaminated
from paint.data.formats import convert_rows, describe_formats
from paint.data.gold_answer_checks import gold_warnings
from paint.data.problems import DataError, Problem, validate_rows
from paint.data.readers import BadRow, Row, count_rows, describe_separator, read_rows, shorten
from paint.demo.files import problems_path
from paint.grading.contract import Item
from paint.grading.graders import find_grader
from paint.models.policy import encode, load_tokenizer
from paint.models.prompts import (
    describe_replaced,
    replaced_system_turns,
    student_chat,
    teacher_chat,
)
from paint.models.special_tokens import REASON, special_text_finder
from paint.objective.masking import anchors
from paint.training.check import check_config

SHOWN_ROWS = 5
CHUNK = 256
FOUND_BY: dict[Pass, str] = {
    "words": "repeat a benchmark problem",
    "masked": "repeat one except for numbers or letters (docs/how-to/own-data.md)",
}

WRONG_REFERENCES = (
    "wrong boxes: with the last 40 % of every reference wrong, the demo lost 82 points by SFT, 15 "
    "by OPSD and 1 by PAINT, which hides the end (docs/results/demo.md#references-that-go-wrong)"
)
"""What references that end in a wrong answer cost; its numbers are of the page that it names."""


NO_BOXES = (
    "no solution has a box, which the paper's prompt asks the student for; where answers are not "
    "mathematics, set prompts.student (docs/how-to/own-context.md#prompts)"
)


@dataclass(frozen=True, slots=True)
class LengthQuantiles:
    """Lengths of texts, in tokens."""

    median: float
    p95: float
    longest: int


RowMessages = list[tuple[int, str]]  # number and message of each


@dataclass(slots=True)
class FileCheck:
    """Result of the validation of a file.

    Attributes:
        limit: most tokens of a teacher prompt.
        rows: number of rows; with `data.turns` "all" a row may be several problems, its turns.
        columns: number of rows that have each column.
        notes: how the file was read, and what its rows and the prompts do to each other.
        good: number of valid rows, or turns; the following count these, too.
        bad: number and message of bad rows, by reason.
        lengths: token lengths of problem, solution, student prompt and longest teacher prompt.
        too_long: valid rows whose teacher prompt is over `limit` tokens, as `bad`.
        without_anchors: number of valid rows whose context has no anchors.
        boxed: number of solutions by verdict, graded as if they were completions: "right" if the
            box holds the answer. Rows without solution or answer are left out.
        gold_warnings: valid rows with a gold answer that does not parse or may be misread.
        contaminated: valid rows that repeat a benchmark problem, by the pass that found them; empty
            without benchmarks.
        views: prompts of the first valid row, by view.
    """

    path: str
    limit: int
    rows: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    good: int = 0
    bad: dict[str, RowMessages] = field(default_factory=dict)
    lengths: dict[str, LengthQuantiles] = field(default_factory=dict)
    too_long: RowMessages = field(default_factory=list)
    without_anchors: int = 0
    boxed: Counter[str] = field(default_factory=Counter)
    gold_warnings: RowMessages = field(default_factory=list)
    contaminated: dict[str, RowMessages] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)


def check_file(
    config: Config, *, benchmarks: Sequence[Benchmark] = (), display: Display | None = None
) -> FileCheck:
    """Validate all rows of `data.path`, or up to `data.limit` valid ones.

    Args:
        config: settings of the run.
        benchmarks: evaluation sets that the problems should not repeat.

    Raises:
        DataError: the source cannot be read or is empty.
        PolicyError: the tokenizer cannot be loaded, or has no working chat template.
    """
    display = display or Display()
    tokenizer = load_tokenizer(config.model.path)
    check = FileCheck(problems_path(config.data.path), config.data.max_prompt_tokens)
    index = build_index(benchmarks, masked=True)
    check.contaminated = {FOUND_BY[pieces.name]: [] for pieces in index.passes if benchmarks}
    row_checks = _RowChecks(config, tokenizer, index, check)

    total = count_rows(Path(check.path)) if Path(check.path).is_file() else 0
    formats: Counter[str] = Counter()
    rows = _checked_rows(config, tokenizer, check, formats)
    replaced = 0
    are_asked_for_boxes = False
    with find_grader() as grader, display.counting("rows", total) as counter:
        while chunk := list(islice(rows, CHUNK)):
            good = [problem for _, problem in chunk if isinstance(problem, Problem)]
            contexts = Contexts(config.context, good)
            replaced += replaced_system_turns(config.prompts, good)
            are_asked_for_boxes |= any(not problem.turns for problem in good)
            for row, problem in chunk:
                if isinstance(problem, BadRow):
                    check.bad.setdefault(problem.reason, []).append((row, str(problem)))
                else:
                    row_checks.add(row, problem, contexts)

            graded = [problem for problem in good if problem.solution and problem.answer]
            items = [Item(problem.solution, problem.answers) for problem in graded]
            check.boxed.update(grade.reason for grade in grader.grade(items))
            counter.to(check.rows)
        counter.total = counter.done  # the count before was an estimate

    if not check.columns and not check.bad:
        raise DataError(f"{check.path} is empty; it must hold one problem a row")
    check.notes = [describe_separator(check.path), *describe_formats(formats)]
    if replaced:
        check.notes.append(describe_replaced(replaced, check.good))
    if are_asked_for_boxes and not config.prompts.student and set(check.boxed) == {"no box"}:
        check.notes.append(NO_BOXES)
    check.notes = [note for note in check.notes if note]
    check.lengths = {
        name: length_quantiles(lengths) for name, lengths in row_checks.lengths.items()
    }
    return check


@dataclass
class _RowChecks:
    """The checks of valid rows, whose findings are added to ``check``."""

    config: Config
    tokenizer: PreTrainedTokenizerBase
    index: Index
    check: FileCheck
    lengths: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, row: int, problem: Problem, contexts: Contexts) -> None:
        """Check one row; ``contexts`` are those of its chunk."""
        check = self.check
        check.good += 1
        aligned = contexts.aligned(problem, contexts.of_own_row(problem))
        check.without_anchors += not anchors(aligned)
        if not check.views:
            check.views = self._texts_of_prompts(problem, contexts)

        warnings = gold_warnings([problem])
        if warnings:
            texts = (f"{shorten(warning.answer)}: {warning.why}" for warning in warnings)
            check.gold_warnings.append((row, ", ".join(texts)))
        match = contaminated(problem.problem, self.index)
        if match:
            message = f"{match.benchmark}, problem {match.id}: {shorten(match.shared)}"
            check.contaminated[FOUND_BY[match.found_by]].append((row, message))

        prompts = longest_prompts(self.tokenizer, problem, self.config, contexts.longest(problem))
        length = len(prompts["teacher"])
        if length > check.limit:
            check.too_long.append((row, f"a teacher prompt of {length} tokens"))
        self.lengths["problem"].append(self._count_tokens(problem.problem))
        self.lengths["solution"].append(self._count_tokens(problem.solution))
        for name, ids in prompts.items():
            self.lengths[f"{name} prompt"].append(len(ids))

    def _texts_of_prompts(self, problem: Problem, contexts: Contexts) -> dict[str, str]:
        """The prompts of a row by view, with the context of the first step, before a completion."""
        seed = self.config.train.seed
        references = contexts.references(problem, seed)
        ratio = contexts.measure("", problem, references)["mask_ratio"]
        context = contexts.context(references, ratio, seed)
        prompts = longest_prompts(
            self.tokenizer, problem, self.config, context.text, complete=context.complete
        )
        return {name: str(self.tokenizer.decode(ids)) for name, ids in prompts.items()}

    def _count_tokens(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def longest_prompts(
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    config: Config,
    context: str | None,
    *,
    complete: bool = False,
) -> dict[str, list[int]]:
    """Token ids of the student's prompt, and of the teacher's with a context."""
    options = config.prompts
    student = teacher = student_chat(options, problem)
    if context is not None:
        teacher = teacher_chat(options, problem, context, complete=complete)
    return {
        "student": encode(tokenizer, student, thinking=config.model.student_thinking),
        "teacher": encode(tokenizer, teacher, thinking=config.model.teacher_thinking),
    }


def length_quantiles(lengths: Sequence[int]) -> LengthQuantiles:
    """Compute median, 95th percentile and maximum of at least one length.

    The 95th percentile is the smallest length that is at least as long as 95 % of them.
    """
    ordered = sorted(lengths)
    p95 = ordered[-(-95 * len(ordered) // 100) - 1]
    return LengthQuantiles(statistics.median(ordered), p95, ordered[-1])


def print_check(check: FileCheck, console: Console) -> None:
    """Print the counts, the first bad rows by reason, and the lengths."""
    count = check.good + sum(map(len, check.bad.values()))
    unit, turns = ("rows", "") if count == check.rows else ("turns", f" with {count:,} turns")
    console.print(f"{check.path}: {check.rows:,} rows{turns}, {check.good:,} good")
    columns = (
        name if rows == check.rows else f"{name} (in {rows:,} rows)"
        for name, rows in check.columns.items()
    )
    console.print(f"columns: {', '.join(columns)}")
    for note in check.notes:
        console.print(note)

    notes = {}
    for reason, rows in check.bad.items():
        notes[f"bad: {reason}"] = rows
    notes[f"over data.max_prompt_tokens, {check.limit:,}"] = check.too_long
    notes["gold answers to check (docs/how-to/own-data.md)"] = check.gold_warnings
    for title, found in (notes | check.contaminated).items():
        if found:
            console.print(f"{title}: {len(found):,} {unit}")
        listed = found[:SHOWN_ROWS]
        if len(listed) > 1 and len({message for _, message in listed}) == 1:
            numbers = ", ".join(str(row) for row, _ in listed)
            listed = []
            console.print(f"  rows {numbers}: {found[0][1]}")
        for row, message in listed:
            console.print(f"  row {row}: {message}")
        if len(found) > SHOWN_ROWS:
            console.print("  ...")

    if check.contaminated and not any(check.contaminated.values()):
        console.print("no row repeats a benchmark problem")

    if not check.good:
        return

    for name, text in check.views.items():
        console.print(f"--- the {name} reads of the first row ---", text, sep="\n", markup=False)
    console.print("---")
    if check.boxed:
        right = check.boxed.get("right", 0) / check.boxed.total()
        verdicts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(check.boxed.items()))
        console.print(f"solutions whose box holds the answer: {right:.1%} ({verdicts})")
    if check.without_anchors == check.good:  # as of chats, whose contexts need none
        console.print("no context has anchors (numbers, formulas): overlap is not measured")
    else:
        share = check.without_anchors / check.good
        console.print(f"contexts without anchors (their overlap by anchors is 0): {share:.1%}")

    if check.boxed.get("wrong"):
        console.print(WRONG_REFERENCES)

    table = Table("tokens", "median", "95 %", "longest")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, length in check.lengths.items():
        table.add_row(name, f"{length.median:,.0f}", f"{length.p95:,}", f"{length.longest:,}")
    console.print(table)


def _checked_rows(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    check: FileCheck,
    formats: Counter[str],
) -> Iterator[tuple[int, Problem | BadRow]]:
    """Yield all rows up to the last valid one within the limit, count their columns and formats.

    A row whose text contains special tokens is bad.
    """

    def rows() -> Iterator[Row]:
        for row, fields in read_rows(check.path):
            check.rows += 1
            check.columns.update(() if isinstance(fields, BadRow) else fields.keys())
            yield row, fields

    valid = 0
    for row, problem in validate_rows(
        convert_rows(rows(), config.data, formats),
        config.data,
        needs=check_config(config).needed_fields,
    ):
        found = isinstance(problem, Problem) and special_text_finder(
            tokenizer, problem=problem.problem, solution=problem.solution, answer=problem.answer
        )
        yield row, BadRow(REASON, found) if found else problem
        valid += isinstance(problem, Problem)
        if valid == config.data.limit:
            return
