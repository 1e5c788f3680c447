"""What the page of several runs holds: their curves over each other, and what differs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paint.config import Config
from paint.display import Display
from paint.evaluation.intervals import compare
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.stages import stored_in
from paint.recipe import to_table
from paint.runs import read_metrics, read_run, step_of, step_places
from paint.show.evaluation import read_graded
from paint.show.run import columns_of, validation_of


def compare_data(runs: Sequence[Path], display: Display) -> dict[str, Any]:
    """The page's data.

    Raises:
        RunError: no such run. Damaged: a file was changed since it was written.
    """
    names = names_of(runs)
    configs = [read_run(run) for run in runs]
    return {
        "name": " · ".join(names),
        "runs": [
            {
                "name": name,
                "metrics": columns_of(read_metrics(run)),
                "validation": validation_of(run, display),
            }
            for name, run in zip(names, runs, strict=True)
        ],
        "settings": differing(configs),
        "differences": paired(runs, names),
    }


def names_of(runs: Sequence[Path]) -> list[str]:
    """The runs' folders, or whole paths where two folders share a name."""
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def differing(configs: Sequence[Config]) -> list[list[str]]:
    """Every setting that is not the same in all runs: its name and its values."""
    tables = [to_table(config) for config in configs]
    return [
        [f"{section}.{key}", *(str(table[section][key]) for table in tables)]
        for section, keys in tables[0].items()
        for key in keys
        if len({str(table[section][key]) for table in tables}) > 1
    ]


def paired(runs: Sequence[Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """Each run's validation less the first run's, where problems and step are the same."""
    validated = [graded_by_step(run) for run in runs]
    made = []
    for name, other in zip(names[1:], validated[1:], strict=True):
        for benchmark, base in validated[0].items():
            steps = [
                step
                for step, graded in base.items()
                if step in other.get(benchmark, {})
                and graded.problems == other[benchmark][step].problems
            ]
            for step in steps:
                after = other[benchmark][step]
                found = compare([base[step].correct], [after.correct])
                made.append(
                    {
                        "run": name,
                        "less": names[0],
                        "benchmark": benchmark,
                        "step": step,
                        "p": found.p_value,
                        **found.difference.table(),
                    }
                )
    return made


def graded_by_step(run: Path) -> dict[str, dict[int, GradedSamples]]:
    """The graded validation of a run, by problem set and step."""
    found: dict[str, dict[int, GradedSamples]] = {}
    for place in step_places(run / "validation"):
        for folder in stored_in([place]):
            found.setdefault(folder.name, {})[step_of(place)] = read_graded(folder).graded
    return found
