"""The paper's three ablation tables for any model, and controls: the setting of each row.

The grids are the paper's (section 'Ablation Studies'), row by row, and one of ours: what is shown
in place of the problem's own solution. A setting that stands in several tables is trained once.
Each row is shown with its interval, and with its paired difference to the row without what is
ablated.

Left out on purpose: the paper's own figures, which are of another model's single run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paint.config.schema import Config, ConfigError, ContextSource
from paint.core.display import Display
from paint.demo.files import NAME
from paint.experiments.eval_protocols import demo_protocol, paper_protocol
from paint.experiments.report import Report, Result, publish
from paint.experiments.runner import ExperimentRun, run_experiment


@dataclass(frozen=True)
class AblationRow:
    """One row of a table: the settings that the tables vary; others keep their defaults."""

    correct: float = 0.40
    wrong: float = 0.30
    placement: Literal["suffix", "prefix", "middle", "random"] = "suffix"
    mix: float = 0.0
    top_fraction: float = 0.0
    shown: ContextSource = "own"

    @property
    def name(self) -> str:
        """The setting's name in every table, such as suffix-0.40-0.30-mix-0.03-0.01."""
        masking = f"{self.placement}-{self.correct:.2f}-{self.wrong:.2f}"
        control = "" if self.shown == "own" else f"-{self.shown.replace('_', '-')}"
        return f"{masking}-mix-{self.mix:.2f}-{self.top_fraction:.2f}{control}"

    def of(self, config: Config) -> Config:
        """The config with this setting in it."""
        context = replace(
            config.context,
            mask_ratio_correct=self.correct,
            mask_ratio_wrong=self.wrong,
            placement=self.placement,
            source=self.shown,
        )
        objective = replace(
            config.objective, interpolation_weight=self.mix, top_fraction=self.top_fraction
        )
        return replace(config, context=context, objective=objective)


@dataclass(frozen=True)
class AblationTable:
    """A table.

    Attributes:
        points: by label, in the order of the rows.
        baseline: label of the row that the others are compared with.
        is_papers: whether the paper has it.
    """

    title: str
    points: dict[str, AblationRow]
    baseline: str
    is_papers: bool = True


def _ratios(*pairs: tuple[float, float]) -> dict[str, AblationRow]:
    return {
        f"{correct:.2f}/{wrong:.2f}": AblationRow(correct=correct, wrong=wrong)
        for correct, wrong in pairs
    }


def _mixes(*pairs: tuple[float, float]) -> dict[str, AblationRow]:
    return {
        f"{mix:.2f}/{share:.2f}": AblationRow(mix=mix, top_fraction=share) for mix, share in pairs
    }


ABLATION_TABLES = {
    # Paper: table 'mask_ratio_ablation'.
    "mask-ratio": AblationTable(
        "Mask ratios (correct/wrong): suffix, no interpolation",
        _ratios(
            (0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75), (0.5, 0.25), (0.5, 0.3), (0.4, 0.3)
        ),
        "0.00/0.00",
    ),
    # Paper: table 'mask_strategy_ablation'.
    "mask-placement": AblationTable(
        "Mask placement: ratios 0.40 and 0.30, no interpolation",
        {
            "prefix": AblationRow(placement="prefix"),
            "middle": AblationRow(placement="middle"),
            "random": AblationRow(placement="random"),
            "suffix": AblationRow(placement="suffix"),
        },
        "suffix",
    ),
    # Paper: table 'interpolation_ablation'.
    "interpolation": AblationTable(
        "Interpolation (mix/top fraction): suffix, ratios 0.40 and 0.30",
        _mixes(
            (0.0, 0.0),
            (0.01, 1.0),
            (0.03, 1.0),
            (0.05, 1.0),
            (0.03, 0.01),
            (0.03, 0.03),
            (0.03, 0.05),
        ),
        "0.00/0.00",
    ),
    # Ours: how much of a gain comes of what the solution says, and of nothing else?
    "controls": AblationTable(
        "What the teacher is shown (context.source): ratios 0.40 and 0.30, interpolation 0.03/0.03",
        {
            "none": AblationRow(mix=0.03, top_fraction=0.03, shown="none"),
            "another problem's solution": AblationRow(mix=0.03, top_fraction=0.03, shown="other"),
            "a wrong answer": AblationRow(mix=0.03, top_fraction=0.03, shown="wrong_answer"),
            "the right answer": AblationRow(mix=0.03, top_fraction=0.03, shown="answer"),
            "its own solution": AblationRow(mix=0.03, top_fraction=0.03),
        },
        "its own solution",
        is_papers=False,
    ),
}


def ablate(
    table: str,
    config: Config,
    folder: Path,
    *,
    seeds: Sequence[int],
    benchmark: str | None,
    problems: int | None,
    samples: int,
    every_checkpoint: bool = False,
) -> list[Result]:
    """Train and evaluate every row of a table, and print it.

    Args:
        table: mask-ratio, mask-placement, interpolation or controls.
        config: what all rows have in common; what the table varies is replaced.
        benchmark: a set as for `paint eval`; None is the demo's held-out problems for the demo's
            model, and AIME 2024 for others.
        problems: how many of its problems are asked, from the first; None is all.
        samples: k, a problem.
        every_checkpoint: evaluate all checkpoints of each run, not the last one alone.

    Raises:
        ConfigError: the config masks nothing.
        PaintError: what `paint.experiments.runner.run_experiment` raises.
    """
    grid, display = ABLATION_TABLES[table], Display()
    if not config.algorithm.needs_context or config.context.source != "own":
        raise ConfigError(
            f"an ablation varies how the problem's own solution is masked, and this recipe has "
            f'train.method "{config.train.method}" and context.source "{config.context.source}"; '
            f"take one like paint-qwen3-1.7b"
        )
    if config.model.path == NAME:
        exam = demo_protocol(problems, samples, benchmark or NAME)
    else:
        exam = paper_protocol(config, benchmark or "aime_2024", problems, samples)

    cells = [ExperimentRun(point.name, point.of(config)) for point in grid.points.values()]
    results = run_experiment(cells, seeds, folder, exam, display, every_checkpoint=every_checkpoint)

    labels = {point.name: label for label, point in grid.points.items()}
    baseline = grid.points[grid.baseline].name
    pairs = {name: (name, baseline) for name in labels if name != baseline}
    report = Report(table, grid.title, labels, pairs, f"less that of {grid.baseline}")
    publish(report, results, folder, display)
    return results
