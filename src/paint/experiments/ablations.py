"""The paper's three ablation tables and a table of controls, for any model.

Three grids are the paper's (section 'Ablation Studies'), row by row. The others are ours. A setting
in several tables is trained once. The paper's results are a single run of another model, and are
not shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.errors import format_value
from paint.core.options import OptionTable
from paint.data.contexts import with_source
from paint.experiments.checkpoint_results import CheckpointResult
from paint.experiments.comparison_report import publish
from paint.experiments.eval_protocols import protocol_for
from paint.experiments.plots import Layout
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.objective.masking import Placement
from paint.training.check import check_config


@dataclass(frozen=True)
class AblationRow:
    """One row of a table: the settings that the tables vary."""

    correct: float = 0.40
    wrong: float = 0.30
    placement: Placement = "suffix"
    mix: float = 0.0
    top_fraction: float = 0.0
    source: str = "solution"
    teacher: tuple[tuple[str, Any], ...] = ()
    base_weight: float = 0.0  # of a teacher that is held near the base model

    @property
    def name(self) -> str:
        """The name of the row's run, such as suffix-0.40-0.30-mix-0.03-0.01."""
        masking = f"{self.placement}-{self.correct:.2f}-{self.wrong:.2f}"
        control = "" if self.source == "solution" else f"-{self.source.replace('_', '-')}"
        teacher = "".join(f"-{name.replace('_', '-')}-{value}" for name, value in self.teacher)
        if self.base_weight:
            teacher += f"-base-weight-{self.base_weight}"
        return f"{masking}-mix-{self.mix:.2f}-{self.top_fraction:.2f}{teacher}{control}"

    def of(self, config: Config) -> Config:
        """Return the config with the settings of this row."""
        ratios = {"mask_ratio_correct": self.correct, "mask_ratio_wrong": self.wrong}
        target = {"interpolation_weight": self.mix, "top_fraction": self.top_fraction}
        context = with_source(config.context, self.source, placement=self.placement, **ratios)
        config = replace(config, context=context)
        config = config.changed("objective", **target).changed("teacher", **dict(self.teacher))
        if not self.base_weight:
            return config
        options = OptionTable({"base_weight": self.base_weight})
        return config.changed("train", method="paint.variants.anchored:Anchored", options=options)


@dataclass(frozen=True)
class AblationTable:
    """A table: its rows by label, and the label of the row that the others are compared with."""

    title: str
    points: dict[str, AblationRow]
    baseline: str


CONTROLS: dict[str, str] = {
    "none": "none",
    "other": "another problem's solution",
    "wrong_answer": "a wrong answer",
    "answer": "the right answer",
    "solution": "its own solution",
}
"""What the teacher reads, and how tables call it."""

FEEDBACK_CONTROLS: dict[str, str] = {
    "none": "none",
    "other_feedback": "feedback on another completion",
    "answer": "the right answer",
    "feedback": "feedback on its own completion",
}
"""The same where the teacher reads what the grader says."""

PLACEMENTS: tuple[Placement, ...] = ("prefix", "middle", "random", "suffix")

MASK_RATIOS = (
    (0.0, 0.0),
    (0.25, 0.25),
    (0.5, 0.5),
    (0.75, 0.75),
    (0.5, 0.25),
    (0.5, 0.3),
    (0.4, 0.3),
)
"""Of correct and of wrong rollouts (paper: table 'mask_ratio_ablation')."""

INTERPOLATIONS = (
    (0.0, 0.0),
    (0.01, 1.0),
    (0.03, 1.0),
    (0.05, 1.0),
    (0.03, 0.01),
    (0.03, 0.03),
    (0.03, 0.05),
)
"""Weight and top fraction (paper: table 'interpolation_ablation')."""


def strong_interpolation(correct: float, wrong: float) -> dict[str, AblationRow]:
    """Weights and shares beyond the paper's, towards the student and towards the base model.

    The base model stands still. What it does as well is softening; what the student alone does is
    that the target follows it. At the start both are the same.
    """
    row, weights = AblationRow(correct, wrong), (0.2, 0.5, 0.8)
    ema = (("weights", "ema"), ("decay", 0.9))
    return {
        "0.00/0.00": row,
        **{
            f"{mix:.2f}/{share:.2f}": replace(row, mix=mix, top_fraction=share)
            for mix in (0.03, *weights)
            for share in (0.03, 0.1, 0.3, 1.0)
        },
        **{f"base model, {k:.2f}": replace(row, base_weight=k) for k in weights},
        "ema, 0.00/0.00": replace(row, teacher=ema),
        "ema, 0.50/1.00": replace(row, teacher=ema, mix=0.5, top_fraction=1.0),
        "ema, base model, 0.50": replace(row, teacher=ema, base_weight=0.5),
    }


ABLATION_TABLES = {
    "mask-ratio": AblationTable(
        "Mask ratios (correct/wrong): suffix, no interpolation",
        {
            f"{correct:.2f}/{wrong:.2f}": AblationRow(correct=correct, wrong=wrong)
            for correct, wrong in MASK_RATIOS
        },
        "0.00/0.00",
    ),
    # Paper: table 'mask_strategy_ablation'.
    "mask-placement": AblationTable(
        "Mask placement: ratios 0.40 and 0.30, no interpolation",
        {name: AblationRow(placement=name) for name in PLACEMENTS},
        "suffix",
    ),
    "interpolation": AblationTable(
        "Interpolation (mix/top fraction): suffix, ratios 0.40 and 0.30",
        {
            f"{mix:.2f}/{share:.2f}": AblationRow(mix=mix, top_fraction=share)
            for mix, share in INTERPOLATIONS
        },
        "0.00/0.00",
    ),
    # Ours: does a strong interpolation soften the target, or let it follow the student?
    "strong-interpolation": AblationTable(
        "Interpolation (mix/top fraction), strong: suffix, ratios 0.40 and 0.30",
        strong_interpolation(0.40, 0.30),
        "0.00/0.00",
    ),
    "strong-interpolation-whole": AblationTable(
        "Interpolation (mix/top fraction), strong: nothing hidden",
        strong_interpolation(0.0, 0.0),
        "0.00/0.00",
    ),
    # Ours: how much of a gain comes from the content of the solution?
    "controls": AblationTable(
        "Context of the teacher (context.source): ratios 0.40 and 0.30, interpolation 0.03/0.03",
        {
            label: AblationRow(mix=0.03, top_fraction=0.03, source=source)
            for source, label in CONTROLS.items()
        },
        "its own solution",
    ),
    "feedback": AblationTable(
        "Feedback as context (context.source): nothing hidden, no interpolation",
        {
            label: AblationRow(correct=0.0, wrong=0.0, source=source)
            for source, label in FEEDBACK_CONTROLS.items()
        },
        "feedback on its own completion",
    ),
}


def controls_of_text(source: str) -> AblationTable:
    """The table of controls for a recipe whose teacher reads one text for all rows."""
    labels = {"none": "none", "other_text": "other problems' text", source: "its own text"}
    points = {}
    for shown, label in labels.items():
        points[label] = AblationRow(mix=0.03, top_fraction=0.03, source=shown)
    title = f"Context of the teacher (context.source {source}): interpolation 0.03/0.03"
    return AblationTable(title, points, "its own text")


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
) -> list[CheckpointResult]:
    """Train and evaluate every row of a table, and print the table.

    The table replaces the settings of the config that it varies. Benchmark, problems and samples
    are those of ``protocol_for``.

    Raises:
        ConfigError: there is no such table, or the recipe has no solution to mask.
    """
    if table not in ABLATION_TABLES:
        raise ConfigError(
            f"table must be one of {', '.join(ABLATION_TABLES)}, got {format_value(table)}"
        )
    grid, display = ABLATION_TABLES[table], Display()
    sources = config.context.source
    has_text = sources in (("text",), ("file",))
    if table == "controls" and has_text:
        grid = controls_of_text(sources[0])
    has_context = sources == ("solution",) or (table == "controls" and has_text)
    if not check_config(config).algorithm.needs_context or not has_context:
        raise ConfigError(
            f"an ablation varies how the problem's own solution is masked, and this recipe has "
            f'train.method "{config.train.method}" and context.source {config.context.source}; '
            f"take one like paint-qwen3-1.7b (controls also take context.source text and file)"
        )
    protocol = protocol_for(config, benchmark, problems, samples)

    runs = [ExperimentRun(point.name, point.of(config)) for point in grid.points.values()]
    results = run_experiment(
        runs, seeds, folder, protocol, display, every_checkpoint=every_checkpoint
    )

    labels = {}
    for label, point in grid.points.items():
        labels[point.name] = label
    baseline = grid.points[grid.baseline].name
    pairs = {}
    for name in labels:
        if name != baseline:
            pairs[name] = (name, baseline)
    layout = Layout(table, grid.title, labels, pairs, f"less that of {grid.baseline}")
    publish(layout, results, folder, display)
    return results
