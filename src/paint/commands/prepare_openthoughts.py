"""``paint data openthoughts``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from paint.commands.api import arguments
from paint.core.settings import within

if TYPE_CHECKING:
    from paint.data.openthoughts import Preparation

NAME = "data openthoughts"
CONTINUES = True


def prepare_openthoughts(
    out: str | Path,
    *,
    source: str = "open-thoughts/OpenThoughts-114k:metadata",
    sample: arguments.Count = 30_000,
    seed: arguments.Seed = 0,
    solution: Literal[
        "deepseek_solution", "ground_truth_solution", "deepseek_reasoning"
    ] = "deepseek_solution",
    benchmarks: Sequence[str] | None = None,
    workers: arguments.OptionalCount = None,
    deadline: Annotated[float, *within("[0.01, 86400]")] = 5.0,
) -> "Preparation":
    """Draw a verified, decontaminated sample of OpenThoughts-114k (paper: Experimental Setup).

    Problems of mathematics are drawn whose solutions are verified and which repeat no benchmark
    problem. The same command continues where it was interrupted.

    Example: paint data openthoughts openthoughts.jsonl --sample 30000

    Args:
        out: File to write, OUT.jsonl; OUT.report.json and others are written to the same folder.
        source: Data set of the hub, or a local file or folder with its columns.
        sample: Problems to draw (paper: up to 30K).
        seed: Seed of the draw, at least 0.
        solution: Column that becomes the solution y*; deepseek_solution is always the one that is
            verified.
        benchmarks: Problem sets, NAME or NAME=PATH as in `paint eval`, whose problems must not be
            trained on. None: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026 and
            math_500.
        workers: Processes for verification; None: one per core.
        deadline: CPU seconds for one answer, in [0.01, 86400].

    Returns:
        The numbers of rows that were kept, dropped for each reason, and sampled.

    Raises:
        DataError: the source cannot be read, or ``out`` cannot be written.
    """
    from paint.core.display import Display
    from paint.data.benchmarks import COMPETITIONS, load_benchmark
    from paint.data.openthoughts import make_training_data, print_preparation

    if benchmarks is None:
        benchmarks = COMPETITIONS
    preparation = make_training_data(
        Path(out),
        source=source,
        sample=sample,
        seed=seed,
        solution=solution,
        benchmarks=[load_benchmark(name) for name in benchmarks],
        workers=workers,
        deadline=deadline,
    )
    print_preparation(preparation, Path(out), Display())
    return preparation
