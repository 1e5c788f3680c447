"""The paper's three ablation tables and a table of controls, for any model.

Three grids are the paper's (section 'Ablation Studies'), row by row. The others are ours. A setting
in several tables is trained once. The paper's results are a single run of another model, and are
not shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.errors import format_value
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

    @property
    def name(self) -> str:
        """The name of the row's run, such as suffix-0.40-0.30-mix-0.03-0.01."""
        # Tables share a folder: rows with equal settings have one name, and are trained once.
        masking = f"{self.placement}-{self.correct:.2f}-{self.wrong:.2f}"
        control = "" if self.source == "solution" else f"-{self.source.replace('_', '-')}"
        return f"{masking}-mix-{self.mix:.2f}-{self.top_fraction:.2f}{control}"

    def of(self, config: Config) -> Config:
        """Return the config with the settings of this row."""
        ratios = {"mask_ratio_correct": self.correct, "mask_ratio_wrong": self.wrong}
        target = {"interpolation_weight": self.mix, "top_fraction": self.top_fraction}
        context = with_source(config.context, self.source, placement=self.placement, **ratios)
        return replace(config, context=context).changed("objective", **target)


@dataclass(frozen=True)
class AblationTable:
    """A table: its rows by label, and the label of the row that the others are compared with."""

    title: str
    points: dict[str, AblationRow]
    baseline: str


ABLATION_TABLES = {
    # Paper: table 'mask_ratio_ablation'.
    "mask-ratio": AblationTable(
        "Mask ratios (correct/wrong): suffix, no interpolation",
        {
            "0.00/0.00": AblationRow(0.0, 0.0),
            "0.25/0.25": AblationRow(0.25, 0.25),
            "0.50/0.50": AblationRow(0.5, 0.5),
            "0.75/0.75": AblationRow(0.75, 0.75),
            "0.50/0.25": AblationRow(0.5, 0.25),
            "0.50/0.30": AblationRow(0.5, 0.3),
            "0.40/0.30": AblationRow(0.4, 0.3),
        },
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
        {
            "0.00/0.00": AblationRow(),
            "0.01/1.00": AblationRow(mix=0.01, top_fraction=1.0),
            "0.03/1.00": AblationRow(mix=0.03, top_fraction=1.0),
            "0.05/1.00": AblationRow(mix=0.05, top_fraction=1.0),
            "0.03/0.01": AblationRow(mix=0.03, top_fraction=0.01),
            "0.03/0.03": AblationRow(mix=0.03, top_fraction=0.03),
            "0.03/0.05": AblationRow(mix=0.03, top_fraction=0.05),
        },
        "0.00/0.00",
    ),
    # Ours: how much of a gain comes from the content of the solution?
    "controls": AblationTable(
        "Context of the teacher (context.source): ratios 0.40 and 0.30, interpolation 0.03/0.03",
        {
            "none": AblationRow(mix=0.03, top_fraction=0.03, source="none"),
            "another problem's solution": AblationRow(mix=0.03, top_fraction=0.03, source="other"),
            "a wrong answer": AblationRow(mix=0.03, top_fraction=0.03, source="wrong_answer"),
            "the right answer": AblationRow(mix=0.03, top_fraction=0.03, source="answer"),
            "its own solution": AblationRow(mix=0.03, top_fraction=0.03),
        },
        "its own solution",
    ),
    # Ours: the same where the teacher reads what the grader says.
    "feedback": AblationTable(
        "Feedback as context (context.source): nothing hidden, no interpolation",
        {
            "none": AblationRow(0.0, 0.0, source="none"),
            "feedback on another completion": AblationRow(0.0, 0.0, source="other_feedback"),
            "the right answer": AblationRow(0.0, 0.0, source="answer"),
            "feedback on its own completion": AblationRow(0.0, 0.0, source="feedback"),
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
        ConfigError: there is no such table, or the recipe's teacher reads another kind of context.
    """
    if table not in ABLATION_TABLES:
        raise ConfigError(
            f"table must be one of {', '.join(ABLATION_TABLES)}, got {format_value(table)}"
        )
    grid, display = ABLATION_TABLES[table], Display()
    sources = config.context.source
    readable: list[tuple[str, ...]] = [("solution",)]
    if table == "controls":
        readable += [("text",), ("file",)]
        if sources in readable[1:]:
            grid = controls_of_text(sources[0])
    if table == "feedback":
        readable.append(("feedback",))
    if not check_config(config).algorithm.needs_context or sources not in readable:
        allowed = ", ".join(source for [source] in readable)
        raise ConfigError(
            f"table {table} is for a teacher with context.source {allowed}, and this recipe has "
            f'train.method "{config.train.method}" and context.source {", ".join(sources)}; take '
            f"one like paint-qwen3-1.7b"
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
