"""Training data from OpenThoughts: verified, decontaminated, sampled (`paint data openthoughts`).

    rows -> decide -> contaminated? -> verify -> OUT.decided -> no duplicates -> sample -> OUT

OpenThoughts-114k (configuration `metadata`) has problems with a solution by DeepSeek-R1 and a
ground truth. A row is kept if its problem is mathematics, its solution ends in a boxed answer that
equals the boxed answer of the ground truth, and its problem repeats no benchmark problem. The
training data are a seeded uniform sample of the kept rows without replacement.

Every decision is stored at once, with a checksum. An interrupted command resumes, and another
sample or seed needs no second verification. The sample depends only on the seed and the problems,
neither on their order nor on the number of workers. The report contains the digest of OUT, by which
readers detect changes (paint.data.readers).

Not included: filters by difficulty or length (see `data.max_prompt_tokens`), and mathematics
without a boxed ground truth, such as proofs.
"""

import dataclasses
import heapq
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from paint.core import storage
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.versions import versions
from paint.core.workspace import Workspace
from paint.data.benchmarks import Benchmark
from paint.data.decontaminate import NGRAM, SHARE, Index, build_index, contaminated
from paint.data.readers import (
    REPORTED,
    BadRow,
    DataError,
    count_rows,
    data_files,
    read_rows,
    report_of,
)
from paint.grading.contract import Grader, Item
from paint.grading.graders import find_grader
from paint.grading.math.equality import boxed
from paint.grading.math.grader import answer_text
from paint.objective.anchors import normalize

HUB = "open-thoughts/OpenThoughts-114k:metadata"
HUB_ROWS = 113_957  # for the estimate of the remaining time
Solution = Literal["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"]
FIELDS = ("problem", "deepseek_reasoning", "deepseek_solution", "ground_truth_solution")
CHUNK = 256
FREE_SPACE = "free some space, or write to another folder; the same command resumes"

# JSON can spell half of a surrogate pair, but no UTF-8 file can hold it.
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")

WRONG = {
    "wrong": "wrong",
    "unparsable gold": "ground truth cannot be parsed",
    "timed out": "timed out",
}
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
class Preparation:
    """Report: numbers of kept, dropped and sampled rows, settings and versions."""

    rows: int
    dropped: dict[str, int]
    contaminated: dict[str, int]
    found_by: dict[str, int]
    kept: int
    sampled: int
    sample: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]


def make_training_data(
    out: Path,
    *,
    benchmarks: Sequence[Benchmark],
    source: str = HUB,
    sample: int = 30_000,
    seed: int = 0,
    solution: Solution = "deepseek_solution",
    ngram: int = NGRAM,
    share: float = SHARE,
    masked: bool = False,
    workers: int | None = None,
    deadline: float = 5.0,
    display: Display | None = None,
) -> Preparation:
    """Write the sample of verified problems to `out`, one JSON object a line.

    An object has id, problem, solution, answer, trace and source. More files are written:

    - .report.json: counts, settings, versions, and the SHA-256 of `out`.
    - .contaminated.jsonl: row, problem, the repeated benchmark problem, and the pass that found it.
    - .decided/: a folder with every decision. It may be deleted if no other sample is needed.

    Args:
        benchmarks: evaluation sets whose problems are removed.
        source: the hub data set, or a local file or folder with its columns.
        sample: number of problems to write, at least 1; all kept ones if there are fewer.
        solution: the column for y*. The verified column is always deepseek_solution.
        ngram, share: thresholds of contamination (paint.data.decontaminate).
        masked: whether copies with other numbers or letters are contamination, too.
        workers, deadline: number of verifying processes, and processor seconds for one answer
            (paint.grading.math.grader).

    Raises:
        DataError: the source cannot be read, a file cannot be written, existing decisions were made
            with other settings or from a local source whose content was another, or `out` does not
            end in .jsonl.
        CorruptFileError: a line of the existing decisions cannot be read.
        FolderInUse: another process writes the same file.
    """
    if out.suffix != ".jsonl":
        raise DataError(f"{out} must end in .jsonl, the suffix of its format")

    display = display or Display()
    decided = out.with_suffix(".decided")
    workspace = Workspace(
        decided,
        "decisions.jsonl",
        "decisions",
        DataError,
        hint=f"delete {decided} to repeat them",
        elsewhere="delete it, or write to another file",
    )
    settings = {
        "source": source,
        "solution": solution,
        "ngram": ngram,
        "share": share,
        "masked": masked,
        "deadline": deadline,
        "benchmarks": {
            benchmark.name: storage.digest(*(problem.problem for problem in benchmark.problems))
            for benchmark in benchmarks
        },
    }
    with wrap_errors(out.parent, DataError, "name another file"):
        out.parent.mkdir(parents=True, exist_ok=True)

    if Path(source).exists():
        with wrap_errors(source, DataError, "name a file or folder that can be read"):
            digests = map(storage.digest_of_file, data_files(Path(source)))
            settings["source_sha256"] = storage.digest(*digests)

    with storage.lock_folder(out.parent, f".{out.name}.lock"):
        # Decisions are complete without their source, too.
        has_source = "source_sha256" in settings or source == HUB
        workspace.require_same(settings, () if has_source else {"source_sha256"})
        if not workspace.is_finished:
            workspace.begin(settings)
            index = build_index(benchmarks, ngram=ngram, share=share, masked=masked)
            with find_grader(deadline=deadline, workers=workers) as grader:
                _decide_rows(workspace, source, solution, index, grader, display)

        return _write_sample(out, workspace, sample, seed, settings)


def print_preparation(preparation: Preparation, out: Path, display: Display) -> None:
    """Print the counts, with one line for each reason of dropped rows."""
    display.note(
        f"{preparation.rows:,} rows, {preparation.kept:,} kept, "
        f"{preparation.sampled:,} drawn to {out}"
    )
    for reason, count in preparation.dropped.items():
        if count:
            display.note(f"  {count:>9,} dropped: {reason}")

    for name, count in preparation.contaminated.items():
        display.note(f"  {count:>9,} repeat a problem of {name}")
    if preparation.found_by["masked"]:
        count = preparation.found_by["masked"]
        display.note(f"  {count:>9,} of these with another number or letter (--masked)")
    if not preparation.contaminated:
        display.note("  no benchmark was given: contamination was not checked")

    if preparation.sampled < preparation.sample:
        display.note(f"  fewer than the {preparation.sample:,} requested")


def decide(
    fields: dict[str, object] | BadRow, solution: Solution = "deepseek_solution"
) -> dict[str, str]:
    """Decide a row from itself alone: {"dropped": reason}, or what is written of it if verified."""
    if isinstance(fields, BadRow):
        return {"dropped": "row cannot be read"}
    if fields.get("domain") != "math":
        return {"dropped": "not mathematics"}

    texts = {}
    for name in FIELDS:
        value = fields.get(name)
        if not isinstance(value, str) or not value.strip() or _HALF_SURROGATE.search(value):
            return {"dropped": f"no {name}"}
        texts[name] = value

    if answer_text(texts["deepseek_solution"]) is None:
        return {"dropped": "no final answer in the solution"}
    answer = boxed(texts["ground_truth_solution"])
    if answer is None:
        return {"dropped": "no final answer in the ground truth"}

    return {
        "problem": texts["problem"],
        "solution": texts[solution],
        "answer": answer,
        "trace": texts["deepseek_reasoning"],
        "source": str(fields.get("source") or ""),
    }


def _decide_rows(
    workspace: Workspace,
    source: str,
    solution: Solution,
    index: Index,
    grader: Grader,
    display: Display,
) -> None:
    """Append the decisions on the rows that have none."""
    rows = sum(1 for _ in workspace.rows())
    files = data_files(Path(source)) if Path(source).exists() else None
    total = sum(map(count_rows, files)) if files else HUB_ROWS
    parts: Sequence[str | Path] = files or [source]
    fields = (fields for part in parts for _, fields in read_rows(part))
    undecided = islice(fields, rows, None)

    with display.counting("rows decided", total, done=rows) as counter:
        try:
            while chunk := list(islice(undecided, CHUNK)):
                workspace.append(*_decide_chunk(chunk, solution, index, grader))
                rows += len(chunk)
                counter.to(rows)
        except (KeyboardInterrupt, DataError):
            display.note(
                f"{rows:,} rows are decided and stored; the same command resumes from there"
            )
            raise
    workspace.finish()


def _decide_chunk(
    chunk: Iterable[dict[str, object] | BadRow], solution: Solution, index: Index, grader: Grader
) -> list[dict[str, Any]]:
    """Decide rows: {"dropped": reason}, or {"kept": row to write, "fingerprint": hash} for each.

    The fingerprint is the hash of the normalised problem.
    """
    decisions: list[dict[str, Any]] = []
    items: dict[int, Item] = {}  # of the rows to verify, by their place in the chunk
    for number, fields in enumerate(chunk):
        row: dict[str, Any] = decide(fields, solution)
        if "dropped" not in row and (match := contaminated(row["problem"], index)):
            repeated = {"problem": row["problem"], **dataclasses.asdict(match)}
            row = {"dropped": "contaminated", "contaminated": repeated}
        elif "dropped" not in row:
            assert isinstance(fields, dict)
            items[number] = Item(str(fields["deepseek_solution"]), row["answer"])
        decisions.append(row)

    for number, grade in zip(items, grader.grade(list(items.values())), strict=True):
        row = decisions[number]
        if grade.correct:
            fingerprint = storage.digest(normalize(row["problem"]))
            kept = {"id": f"openthoughts-{fingerprint[:16]}", **row}
            decisions[number] = {"kept": kept, "fingerprint": fingerprint}
        else:
            decisions[number] = {"dropped": WRONG[grade.reason]}
    return decisions


def _write_sample(
    out: Path, workspace: Workspace, sample: int, seed: int, settings: dict[str, Any]
) -> Preparation:
    """Draw the sample from the decisions, and write it with its report."""
    dropped, repeats, found_by = Counter[str](), Counter[str](), Counter[str]()
    repeated = []
    # Of several rows with the same problem, the one with the smallest hash is kept.
    best: dict[str, tuple[str, int]] = {}  # fingerprint -> hash of the row, offset of its line
    rows = 0

    with workspace.rows_path.open("rb") as file:
        offset = 0
        for rows, (line, decision) in enumerate(zip(file, workspace.rows(), strict=True), start=1):
            if "kept" in decision:
                candidate = (storage.digest(json.dumps(decision["kept"])), offset)
                known = best.get(decision["fingerprint"])
                dropped["duplicate problem"] += known is not None
                best[decision["fingerprint"]] = min(candidate, known or candidate)
            elif "dropped" in decision:
                dropped[decision["dropped"]] += 1

            match = decision.get("contaminated")
            if match:
                repeats[match["benchmark"]] += 1
                found_by[match["found_by"]] += 1
                repeated.append({"row": rows, **match})
            offset += len(line)

        chosen = heapq.nsmallest(
            sample, best, key=lambda problem: storage.digest(str(seed), problem)
        )
        report = report_of(out)

        def kept(problem: str) -> dict[str, Any]:
            file.seek(best[problem][1])
            row: dict[str, Any] = json.loads(file.readline())["kept"]
            return row

        with wrap_errors(out, DataError, FREE_SPACE):
            report.unlink(missing_ok=True)  # it describes the replaced file
            storage.write_jsonl(out, map(kept, chosen))

    preparation = Preparation(
        rows=rows,
        dropped={reason: dropped[reason] for reason in REASONS},
        contaminated={name: repeats[name] for name in settings["benchmarks"]},
        found_by={name: found_by[name] for name in ("words", "masked")},
        kept=len(best),
        sampled=len(chosen),
        sample=sample,
        seed=seed,
        settings=settings,
        versions=versions("math-verify", "latex2sympy2_extended", "sympy"),
    )
    with wrap_errors(report, DataError, FREE_SPACE):
        storage.write_jsonl(out.with_suffix(".contaminated.jsonl"), repeated)
        digest = {REPORTED: storage.digest_of_file(out)}
        storage.write_json(report, dataclasses.asdict(preparation) | digest)
    return preparation
