"""``paint data openthoughts`` and ``paint data validate``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional

from paint.cli.options import (
    Count,
    OptionalCount,
    Place,
    Recipe,
    Seconds,
    Seed,
    Settings,
    bounded,
)


@dataclass(frozen=True)
class OpenThoughts:
    """Draw a verified, decontaminated sample of OpenThoughts-114k (paper: Experimental Setup).

    Problems of mathematics are drawn whose solutions are verified and which repeat no benchmark
    problem. The same command continues where it was interrupted.

    Example: paint data openthoughts openthoughts.jsonl --sample 30000
    """

    out: Positional[Place]
    """File to write, OUT.jsonl; OUT.report.json and others are written to the same folder."""
    source: str = "open-thoughts/OpenThoughts-114k:metadata"
    """Data set of the hub, or a local file or folder with its columns."""
    sample: Count = 30_000
    """Problems to draw (paper: up to 30K)."""
    seed: Seed = 0
    """Seed of the draw, at least 0."""
    solution: Literal["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"] = (
        "deepseek_solution"
    )
    """Column that becomes the solution y*; deepseek_solution is always the one that is verified."""
    benchmarks: tuple[str, ...] | None = None
    """Problem sets, NAME or NAME=PATH as in `paint eval`, whose problems must not be trained on.
    None: aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_feb_2026 and math_500."""
    ngram: Count = 13
    """Length in words of a shared passage that counts as a repetition."""
    share: Annotated[float, bounded(float, 0, 1)] = 0.6
    """Share of a problem that must be repeated, in [0, 1]."""
    masked: bool = False
    """Also drop problems that repeat one with other numbers or letters, and some that only sound
    alike (docs/how-to/own-data.md)."""
    workers: OptionalCount = None
    """Processes for verification; None: one per core."""
    deadline: Seconds = 5.0
    """CPU seconds for one answer, in [0.01, 86400]."""

    def run(self) -> int:
        """Write the sample, and print what was kept."""
        from paint.api import prepare_openthoughts

        prepare_openthoughts(**vars(self))
        return 0


@dataclass(frozen=True)
class Validate:
    """Count a file's rows that are good, bad, long, doubled or without a verified answer.

    Checks and prompts are those of a run of the recipe. The exit status is 1 if a run would refuse
    the file.

    Example: paint data validate demo demo-paint --data.limit 50
    """

    file: Positional[str]
    """JSONL, CSV or Parquet file, a hub data set (owner/name), or demo."""
    recipe: Recipe
    """Recipe to train by; where it is left out, the paper's settings."""
    config: Settings
    benchmarks: tuple[str, ...] = ()
    """Problem sets, as in `paint eval`, whose problems are searched for in the file."""

    def run(self) -> int:
        """Print the counts and both views; return 1 if a run would refuse the file."""
        from paint.api import validate_data

        check = validate_data(self.file, self.config, benchmarks=self.benchmarks)
        return 1 if check.bad or check.too_long else 0
