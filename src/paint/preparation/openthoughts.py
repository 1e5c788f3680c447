"""Which problems of OpenThoughts can a model be trained on?

    rows -> decide -> contaminated? -> verify -> OUT.decided.jsonl -> no duplicates -> sample -> OUT

OpenThoughts-114k (configuration `metadata`) has problems with a solution by DeepSeek-R1 and a ground truth. Kept are
those of mathematics whose solution ends in a boxed answer that is verified against the boxed answer of the ground
truth, and which repeat no benchmark problem; of these, a seeded uniform sample without replacement.

Every decision is stored as it is made, so that an interrupted run goes on where it stopped, and another sample or
seed needs no second verification. Which problems are drawn depends on the seed and on the problems alone: neither on
their order, nor on the number of workers.

Left out on purpose: how hard a problem is, how long its solution may be (`data.max_prompt_tokens`), and mathematics
without a boxed ground truth, such as proofs.
"""

import dataclasses
import hashlib
import heapq
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from paint.data.problem_sets import Benchmark
from paint.data.readers import BadRow, DataError, count_rows, data_files, read_rows
from paint.display import Display
from paint.grading.equality import boxed
from paint.grading.grader import Grader, Item, answer_text
from paint.latex import normalize
from paint.preparation.contamination import NGRAM, SHARE, Index, build_index, contaminated

HUB = "open-thoughts/OpenThoughts-114k:metadata"
HUB_ROWS = 113_957  # for the estimate of the time that is left
Solution = Literal["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"]
FIELDS = ("problem", "deepseek_reasoning", "deepseek_solution", "ground_truth_solution")
CHUNK = 256

_HALF_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can spell it, and no UTF-8 file can hold it

WRONG = {"wrong": "wrong", "unparsable gold": "ground truth cannot be parsed", "timed out": "timed out"}
REASONS = (
    "row cannot be read",
    "not mathematics",
    *(f"no {field}" for field in FIELDS),
    "no final answer in the solution",
    "no final answer in the ground truth",
    "contaminated",
    *WRONG.values(),
    "duplicate problem",
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that may be trained on, if its checked text gives the answer of the ground truth."""

    problem: str
    solution: str
    answer: str
    trace: str
    source: str
    checked: str


@dataclass(frozen=True, slots=True)
class Report:
    """What became of every row, and what it would take to do it again."""

    rows: int
    dropped: dict[str, int]
    contaminated: dict[str, int]
    kept: int
    sampled: int
    sample: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]


def prepare(
    out: Path,
    *,
    benchmarks: Sequence[Benchmark],
    source: str = HUB,
    sample: int = 30_000,
    seed: int = 0,
    solution: Solution = "deepseek_solution",
    ngram: int = NGRAM,
    share: float = SHARE,
    workers: int | None = None,
    deadline: float = 5.0,
    display: Display | None = None,
) -> Report:
    """Write the sample to `out`, one JSON object a line: id, problem, solution, answer, trace, source.

    Beside it: .report.json (counts, settings, versions), .contaminated.jsonl (row, problem and what it repeats) and
    .decided.jsonl (every decision; it may be deleted when no other sample is wanted).

    Args:
        benchmarks: whose problems must not be trained on.
        source: the data set of the hub, or a local file or folder with its columns.
        sample: problems to draw, at least 1; all that are kept if there are fewer.
        solution: the column that becomes y*. What is verified is always deepseek_solution.
        ngram, share: what counts as contaminated (paint.preparation.contamination).
        workers, deadline: processes that verify, and the processor seconds of one answer (paint.grading.grader).

    Raises:
        DataError: a source that cannot be read, decisions in the way that were made with other settings, or an
            `out` that does not end in .jsonl.
    """
    if out.suffix != ".jsonl":
        raise DataError(f"{out} must end in .jsonl, by which its readers know what it holds")
    display = display or Display()
    decided = out.with_suffix(".decided.jsonl")
    settings = {
        "source": source,
        "solution": solution,
        "ngram": ngram,
        "share": share,
        "deadline": deadline,
        "benchmarks": {benchmark.name: _digest(*(p.problem for p in benchmark.problems)) for benchmark in benchmarks},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    rows, complete = _resume(decided, settings)
    if not complete:
        index = build_index(benchmarks, ngram=ngram, share=share)
        waiting = islice(_fields(source), rows, None)
        counting = display.counting("rows decided", _count(source), done=rows)
        with decided.open("ab") as file, Grader(workers=workers, deadline=deadline) as grader, counting as counter:
            try:
                while chunk := list(islice(waiting, CHUNK)):
                    decisions = _decide_all(chunk, solution, index, grader)
                    file.write(b"".join(_line(decision) for decision in decisions))
                    file.flush()
                    rows += len(chunk)
                    counter.to(rows)
            except (KeyboardInterrupt, DataError):
                display.note(f"{rows:,} rows are decided and stored; the same command goes on from there")
                raise
            file.write(_line({"rows": rows}))
    return _draw(out, decided, sample, seed, settings)


def print_report(report: Report, out: Path, display: Display) -> None:
    """Say what became of the rows: one line for each reason that dropped some."""
    display.note(f"{report.rows:,} rows, {report.kept:,} kept, {report.sampled:,} drawn to {out}")
    for reason, count in report.dropped.items():
        if count:
            display.note(f"  {count:>9,} dropped: {reason}")
    for name, count in report.contaminated.items():
        display.note(f"  {count:>9,} repeat a problem of {name}")
    if not report.contaminated:
        display.note("  no benchmark was named: contamination was not checked")
    if report.sampled < report.sample:
        display.note(f"  fewer than the {report.sample:,} that were asked for")


def decide(fields: dict[str, object] | BadRow, solution: Solution = "deepseek_solution") -> Candidate | str:
    """The candidate that a row is, or the reason why it is none. Looks at nothing but the row."""
    if isinstance(fields, BadRow):
        return "row cannot be read"
    if fields.get("domain") != "math":
        return "not mathematics"
    texts = {}
    for name in FIELDS:
        value = fields.get(name)
        if not isinstance(value, str) or not value.strip() or _HALF_SURROGATE.search(value):
            return f"no {name}"
        texts[name] = value
    if answer_text(texts["deepseek_solution"]) is None:
        return "no final answer in the solution"
    answer = boxed(texts["ground_truth_solution"])
    if answer is None:
        return "no final answer in the ground truth"
    return Candidate(
        problem=texts["problem"],
        solution=texts[solution],
        answer=answer,
        trace=texts["deepseek_reasoning"],
        source=str(fields.get("source") or ""),
        checked=texts["deepseek_solution"],
    )


def _decide_all(
    chunk: Iterable[dict[str, object] | BadRow], solution: Solution, index: Index, grader: Grader
) -> list[dict[str, Any]]:
    """One decision a row: {"dropped": reason} or {"kept": the row to write, "fingerprint": of its problem}."""
    decisions: list[dict[str, Any]] = []
    candidates: dict[int, Candidate] = {}
    for number, fields in enumerate(chunk):
        found = decide(fields, solution)
        if isinstance(found, str):
            decisions.append({"dropped": found})
        elif match := contaminated(found.problem, index):
            repeated = {"problem": found.problem, **dataclasses.asdict(match)}
            decisions.append({"dropped": "contaminated", "contaminated": repeated})
        else:
            decisions.append({})
            candidates[number] = found
    grades = grader.grade([Item(candidate.checked, candidate.answer) for candidate in candidates.values()])
    for (number, candidate), grade in zip(candidates.items(), grades, strict=True):
        if not grade.strict.correct:
            decisions[number] = {"dropped": WRONG[grade.strict.reason]}
            continue
        fingerprint = _digest(normalize(candidate.problem))
        row = {"id": f"openthoughts-{fingerprint[:16]}"} | dataclasses.asdict(candidate)
        del row["checked"]
        decisions[number] = {"kept": row, "fingerprint": fingerprint}
    return decisions


def _draw(out: Path, decided: Path, sample: int, seed: int, settings: dict[str, Any]) -> Report:
    """Draw the sample from the decisions, and write it with its report."""
    dropped: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    repeated = []
    best: dict[str, tuple[str, int]] = {}  # of the rows with one problem, the one with the smallest digest stays
    rows = 0
    with decided.open("rb") as file:
        place = len(file.readline())  # the settings
        for rows, line in enumerate(file):  # the last line is no row
            decision = _decision(line, decided)
            if "kept" in decision:
                candidate = (_digest(json.dumps(decision["kept"])), place)
                known = best.get(decision["fingerprint"])
                dropped["duplicate problem"] += known is not None
                best[decision["fingerprint"]] = min(candidate, known or candidate)
            elif "dropped" in decision:
                dropped[decision["dropped"]] += 1
            if "contaminated" in decision:
                repeats[decision["contaminated"]["benchmark"]] += 1
                repeated.append(_line({"row": rows + 1, **decision["contaminated"]}))
            place += len(line)
        chosen = heapq.nsmallest(sample, best, key=lambda fingerprint: _digest(str(seed), fingerprint))
        _write(out, (_line(_read(file, best[fingerprint][1])["kept"]) for fingerprint in chosen))
    report = Report(
        rows=rows,
        dropped={reason: dropped[reason] for reason in REASONS},
        contaminated={name: repeats[name] for name in settings["benchmarks"]},
        kept=len(best),
        sampled=len(chosen),
        sample=sample,
        seed=seed,
        settings=settings,
        versions={name: version(name) for name in ("paint", "math-verify", "latex2sympy2_extended", "sympy")},
    )
    _write(out.with_suffix(".contaminated.jsonl"), repeated)
    _write(out.with_suffix(".report.json"), [json.dumps(dataclasses.asdict(report), indent=2).encode() + b"\n"])
    return report


def _resume(decided: Path, settings: dict[str, Any]) -> tuple[int, bool]:
    """How many rows are decided already, and whether these are all; a last line that was cut is dropped."""
    decided.touch()
    with decided.open("rb+") as file:
        first = file.readline()
        rows, whole, last = 0, len(first), first
        for line in file:
            if line.endswith(b"\n"):
                rows, whole, last = rows + 1, whole + len(line), line
        if rows == 0:
            file.seek(0)
            file.truncate()
            file.write(_line(settings))
            return 0, False
        before = _decision(first, decided)
        if changed := [name for name in settings if before.get(name) != settings[name]]:
            raise DataError(
                f"{decided} was made with other settings ({', '.join(changed)}); delete it, or write to another file"
            )
        file.truncate(whole)
    stated = _decision(last, decided).get("rows")
    if stated not in (None, rows - 1):
        raise DataError(f"{decided} is damaged: of {stated} decisions it holds {rows - 1}; delete it")
    return rows - (stated is not None), stated is not None


def _decision(line: bytes, decided: Path) -> dict[str, Any]:
    try:
        decision = json.loads(line)
    except ValueError:
        decision = None
    if not isinstance(decision, dict):
        raise DataError(f"{decided} is damaged: a line of it is no decision; delete it, or mend {line[:60]!r}")
    return decision


def _fields(source: str) -> Iterator[dict[str, object] | BadRow]:
    for part in data_files(Path(source)) if Path(source).exists() else [source]:
        for _, fields in read_rows(part):
            yield fields


def _count(source: str) -> int:
    return sum(map(count_rows, data_files(Path(source)))) if Path(source).exists() else HUB_ROWS


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _read(file: Any, place: int) -> dict[str, Any]:
    file.seek(place)
    decision: dict[str, Any] = json.loads(file.readline())
    return decision


def _write(path: Path, lines: Iterable[bytes]) -> None:
    """All or nothing: a file of that name is whole, even if the machine stops while it is written."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
