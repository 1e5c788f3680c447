"""Training data from OpenThoughts: verified, decontaminated, sampled (paper: Experimental Setup).

    python examples/openthoughts/prepare.py openthoughts-math-30k.jsonl
    python examples/openthoughts/prepare.py OUT.jsonl --source FOLDER --sample 1000 --seed 1

    rows -> decide -> contaminated? -> verify -> OUT.decided -> no duplicates -> sample -> OUT

OpenThoughts-114k (configuration `metadata`) has problems with a solution by DeepSeek-R1 and a
ground truth. A row is kept if its problem is mathematics, its solution ends in a boxed answer that
equals the boxed answer of the ground truth, and its problem repeats no benchmark problem. The
training data are a seeded uniform sample of the kept rows without replacement
(docs/how-to/own-data.md).

Every decision is stored at once. An interrupted call continues when it is repeated, and another
sample or seed needs no second verification.
"""

import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import tyro

from decontaminate import Index, build_index, contaminated
from paint.core import storage
from paint.core.display import Display
from paint.core.errors import PaintError
from paint.core.workspace import Workspace
from paint.data.benchmarks import COMPETITIONS, Benchmark, load_benchmark
from paint.data.readers import BadRow, DataError, read_rows
from paint.grading.contract import Grader, Item
from paint.grading.graders import find_grader
from strictgrade.comparer import answer_text
from strictgrade.equality import boxed
from strictgrade.text import normalize

HUB = "open-thoughts/OpenThoughts-114k:metadata"
HUB_ROWS = 113_957  # for the estimate of the remaining time
Solution = Literal["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"]
FIELDS = ("problem", "deepseek_reasoning", "deepseek_solution", "ground_truth_solution")
CHUNK = 256

WRONG = {
    "wrong": "wrong",
    "unparsable gold": "ground truth cannot be parsed",
    "timed out": "timed out",
}


@dataclass(frozen=True, slots=True)
class Preparation:
    """Report: numbers of rows, and the settings.

    Attributes:
        dropped: rows by the reason, the most frequent first.
        contaminated: dropped rows by the benchmark whose problem they repeat.
        kept: verified problems, of which ``sampled`` were written.
    """

    rows: int
    dropped: dict[str, int]
    contaminated: dict[str, int]
    kept: int
    sampled: int
    seed: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The sample.

    Attributes:
        out: file to write, OUT.jsonl; OUT.report.json and the folder OUT.decided lie beside it.
        source: the hub data set, or a local file or folder with its columns.
        sample: problems to draw (paper: up to 30K); all kept ones if there are fewer.
        seed: of the draw.
        solution: the column that becomes y*. The verified column is always deepseek_solution.
        benchmarks: problem sets, NAME or NAME=PATH as in `paint eval`, whose problems are removed.
        workers: verifying processes; None: one per core.
        deadline: processor seconds for one answer.
    """

    out: tyro.conf.Positional[Path]
    source: str = HUB
    sample: int = 30_000
    seed: int = 0
    solution: Solution = "deepseek_solution"
    benchmarks: tuple[str, ...] = COMPETITIONS
    workers: int | None = None
    deadline: float = 5.0


def make_training_data(
    options: Options, benchmarks: Sequence[Benchmark], display: Display
) -> Preparation:
    """Write the sample of verified problems that repeat none of the benchmarks'.

    A line of the file is an object with id, problem, solution, answer, trace and source.

    Raises:
        DataError: the source cannot be read, a file cannot be written, existing decisions were made
            with other settings, or ``out`` does not end in .jsonl.
        FolderInUse: another process writes the same file.
    """
    out = options.out
    if out.suffix != ".jsonl":
        raise DataError(f"{out} must end in .jsonl, the suffix of its format")

    decided = out.with_suffix(".decided")
    workspace = Workspace(
        decided,
        "decisions.jsonl",
        "decisions",
        DataError,
        hint=f"delete {decided} to repeat them",
        elsewhere="delete it, or write to another file",
    )
    # Other benchmarks would have dropped other rows.
    digests = {}
    for benchmark in benchmarks:
        digests[benchmark.name] = storage.digest(*(p.problem for p in benchmark.problems))
    # Not the number of workers: no verdict depends on it.
    settings = {
        "source": options.source,
        "solution": options.solution,
        "deadline": options.deadline,
        "benchmarks": digests,
    }
    with storage.lock_target(out):
        workspace.require_same(settings)
        if not workspace.is_finished:
            workspace.begin(settings)
            index = build_index(benchmarks)
            with find_grader(deadline=options.deadline, workers=options.workers) as grader:
                decide_rows(workspace, options, index, grader, display)
        return write_sample(workspace, options, settings)


def print_preparation(preparation: Preparation, out: Path, display: Display) -> None:
    """Print the counts, with one line for each reason of dropped rows."""
    display.note(
        f"{preparation.rows:,} rows, {preparation.kept:,} kept, "
        f"{preparation.sampled:,} drawn to {out}"
    )
    for reason, count in preparation.dropped.items():
        display.note(f"  {count:>9,} dropped: {reason}")
    for name, count in preparation.contaminated.items():
        display.note(f"  {count:>9,} repeat a problem of {name}")
    if not preparation.settings["benchmarks"]:
        display.note("  no benchmark was given: contamination was not checked")


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
        if not isinstance(value, str) or not value.strip():
            return {"dropped": f"no {name}"}
        texts[name] = value

    # Outside of a thought, as completions are graded.
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


def decide_rows(
    workspace: Workspace, options: Options, index: Index, grader: Grader, display: Display
) -> None:
    """Decide the rows that have no decision yet, and store each decision."""
    count = sum(1 for _ in workspace.rows())
    # A name of the hub, or a file or folder of this machine.
    parts: Sequence[str | Path] = [options.source]
    if Path(options.source).is_dir():
        # macOS leaves files such as ._train.parquet beside copies.
        parts = sorted(Path(options.source).glob("**/[!.]*.parquet"))
    rows = (fields for _, fields in chain.from_iterable(map(read_rows, parts)))
    # Decisions have the order of the rows: their number is where to go on.
    undecided = islice(rows, count, None)
    total = HUB_ROWS if options.source == HUB else 0
    with display.counting("rows decided", total, done=count) as counter:
        while chunk := list(islice(undecided, CHUNK)):
            workspace.append(*decide_chunk(chunk, options.solution, index, grader))
            count += len(chunk)
            counter.to(count)
    workspace.finish()


def decide_chunk(
    chunk: Iterable[dict[str, object] | BadRow], solution: Solution, index: Index, grader: Grader
) -> list[dict[str, Any]]:
    """Decide rows: {"dropped": reason} or {"kept": row to write} for each."""
    decisions: list[dict[str, Any]] = []
    items: dict[int, Item] = {}  # of the rows to verify, by their place in the chunk
    for number, fields in enumerate(chunk):
        row: dict[str, Any] = decide(fields, solution)
        if "dropped" not in row:
            match = contaminated(row["problem"], index)
            if match:
                repeated = {"problem": row["problem"], **asdict(match)}
                row = {"dropped": "contaminated", "contaminated": repeated}
            else:
                assert isinstance(fields, dict)
                # Whatever column becomes y*, it is R1's written-out solution that is verified.
                items[number] = Item(str(fields["deepseek_solution"]), row["answer"])
        decisions.append(row)

    for number, grade in zip(items, grader.grade(list(items.values())), strict=True):
        row = decisions[number]
        if grade.correct:
            # Problems that differ only in their LaTeX spelling have one id.
            fingerprint = storage.digest(normalize(row["problem"]))
            decisions[number] = {"kept": {"id": f"openthoughts-{fingerprint[:16]}", **row}}
        else:
            decisions[number] = {"dropped": WRONG[grade.reason]}
    return decisions


def write_sample(workspace: Workspace, options: Options, settings: dict[str, Any]) -> Preparation:
    """Draw the sample of the kept rows, and write it with its report."""
    rows = 0
    dropped, repeats = Counter[str](), Counter[str]()
    kept: dict[str, int] = {}  # id of a problem -> its first row
    for rows, decision in enumerate(workspace.rows(), start=1):
        if "dropped" in decision:
            dropped[decision["dropped"]] += 1
        # Here, since a decision is of one row alone.
        elif decision["kept"]["id"] in kept:
            dropped["duplicate problem"] += 1
        else:
            kept[decision["kept"]["id"]] = rows
        if "contaminated" in decision:
            repeats[decision["contaminated"]["benchmark"]] += 1

    # A smaller sample of a seed is the beginning of a larger one.
    chosen = heapq.nsmallest(
        options.sample, kept, key=lambda name: storage.digest(str(options.seed), name)
    )
    drawn = {kept[name] for name in chosen}
    # A second pass: of all rows only the ids are in memory.
    found = {}
    for row, decision in enumerate(workspace.rows(), start=1):
        if row in drawn:
            found[decision["kept"]["id"]] = decision["kept"]
    storage.write_jsonl(options.out, (found[name] for name in chosen))
    preparation = Preparation(
        rows=rows,
        dropped=dict(dropped.most_common()),
        contaminated=dict(repeats),
        kept=len(kept),
        sampled=len(chosen),
        seed=options.seed,
        settings=settings,
    )
    storage.write_json(options.out.with_suffix(".report.json"), asdict(preparation))
    return preparation


def main(options: Options) -> Preparation:
    """Make the training data, and print the numbers of rows."""
    display = Display()
    benchmarks = [load_benchmark(name) for name in options.benchmarks]
    preparation = make_training_data(options, benchmarks, display)
    print_preparation(preparation, options.out, display)
    return preparation


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except PaintError as error:
        sys.exit(str(error))
