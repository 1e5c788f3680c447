"""The paper's three ablation tables (section 'Ablation Studies'), row by row, and controls of ours.

A setting in several tables is trained once. The paper's results are a single run of another model,
and are not shown.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.context_sources import SOURCES
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.errors import format_value
from paint.data.contexts import with_source
from paint.lab.checkpoint_results import CheckpointResult
from paint.lab.comparison_report import publish
from paint.lab.eval_protocols import protocol_for
from paint.lab.plots import Layout
from paint.lab.runner import ExperimentRun, run_experiment
from paint.objective.masking import Placement
from paint.resolve.check import Resolved


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
    baseline: str
    rows: Mapping[str, AblationRow]


def read_tables() -> dict[str, AblationTable]:
    """The tables of ablations.toml, by name."""
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    tables = {}
    for name, table in found.items():
        rows = {label: AblationRow(**row) for label, row in table["rows"].items()}
        tables[name] = AblationTable(table["title"], table["baseline"], rows)
    return tables


ABLATION_TABLES = read_tables()


def controls_of_text(source: str) -> AblationTable:
    """The table of controls for a recipe whose teacher reads one text for all rows."""
    control = SOURCES[source].control
    labels = {"none": "none", control: "other problems' text", source: "its own text"}
    rows = {}
    for shown, label in labels.items():
        rows[label] = AblationRow(mix=0.03, top_fraction=0.03, source=shown)
    title = f"Context of the teacher (context.source {source}): interpolation 0.03/0.03"
    return AblationTable(title, "its own text", rows)


def ablate(
    table: str,
    run: Resolved,
    folder: Path,
    *,
    seeds: Sequence[int],
    benchmark: str | None,
    problems: int | None,
    samples: int,
    every_checkpoint: bool = False,
) -> list[CheckpointResult]:
    """Train and evaluate every row of a table, and print the table.

    The table replaces the settings of the run that it varies. Benchmark, problems and samples
    are those of ``protocol_for``.

    Raises:
        ConfigError: there is no such table, or the recipe's teacher reads another kind of context.
    """
    if table not in ABLATION_TABLES:
        raise ConfigError(
            f"table must be one of {', '.join(ABLATION_TABLES)}, got {format_value(table)}"
        )
    grid, display = ABLATION_TABLES[table], Display()
    # The rows replace the source: a recipe for another one would be trained on what it is not for.
    config, sources = run.config, run.config.context.source
    readable: list[tuple[str, ...]] = [("solution",)]
    if table == "controls":
        readable += [(name,) for name, source in SOURCES.items() if source.origin == "setting"]
        if sources in readable[1:]:
            grid = controls_of_text(sources[0])
    if table == "feedback":
        readable.append(("feedback",))
    if not run.algorithm.needs_context or sources not in readable:
        allowed = ", ".join(source for [source] in readable)
        raise ConfigError(
            f"table {table} is for a teacher with context.source {allowed}, and this recipe has "
            f'train.method "{config.train.method}" and context.source {", ".join(sources)}; take '
            f"one like paint-qwen3-1.7b"
        )
    protocol = protocol_for(config, benchmark, problems, samples)

    runs = [ExperimentRun(row.name, row.of(config)) for row in grid.rows.values()]
    results = run_experiment(
        runs, seeds, folder, protocol, display, every_checkpoint=every_checkpoint
    )

    labels = {row.name: label for label, row in grid.rows.items()}
    baseline = grid.rows[grid.baseline].name
    pairs = {name: (name, baseline) for name in labels if name != baseline}
    layout = Layout(table, grid.title, labels, pairs, f"less that of {grid.baseline}")
    publish(layout, results, folder, display)
    return results
