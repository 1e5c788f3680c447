"""Page of several runs: overlaid curves, differing settings and paired differences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paint.config.recipe import to_table
from paint.config.run_folder import latest_checkpoint, read_history, read_metrics, read_run, step_of
from paint.config.schema import Config
from paint.core.display import Display
from paint.evaluation.intervals import compare
from paint.evaluation.metrics import GradedSamples
from paint.viewer.evaluation import graded_validation
from paint.viewer.run import columns_of, validation_metrics


def compare_data(runs: Sequence[Path], display: Display) -> dict[str, Any]:
    """The data of the page.

    Raises:
        RunError: a folder holds no run, or metrics of finished steps are missing.
        CorruptFileError: a file was changed since it was written.
    """
    short = [run.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run) for run in runs]
    configs = [read_run(run) for run in runs]
    for run in runs:
        saved = latest_checkpoint(run)
        read_history(run, step_of(saved) if saved else 0)
    validated = [graded_validation(run, display) for run in runs]
    return {
        "name": " · ".join(names),
        "runs": [
            {
                "name": name,
                "metrics": columns_of(read_metrics(run)),
                "validation": validation_metrics(graded),
            }
            for name, run, graded in zip(names, runs, validated, strict=True)
        ],
        "settings": differing(configs),
        "differences": paired(names, validated),
    }


def differing(configs: Sequence[Config]) -> list[list[str]]:
    """Name and values of every setting that differs between runs."""
    tables = [to_table(config) for config in configs]
    return [
        [f"{section}.{key}", *(str(table[section][key]) for table in tables)]
        for section, keys in tables[0].items()
        for key in keys
        if len({str(table[section][key]) for table in tables}) > 1
    ]


def paired(
    names: Sequence[str], validated: Sequence[Mapping[tuple[int, str], GradedSamples]]
) -> list[dict[str, Any]]:
    """Paired differences of validations to the first run, at equal steps, sets and problems."""
    first = validated[0]
    differences = []
    for name, other in zip(names[1:], validated[1:], strict=True):
        for (step, benchmark), base in first.items():
            after = other.get((step, benchmark))
            if after is None or after.problems != base.problems:
                continue
            found = compare([base.correct], [after.correct])
            differences.append(
                {
                    "run": name,
                    "less": names[0],
                    "benchmark": benchmark,
                    "step": step,
                    "p": found.p_value,
                    **found.difference.table(),
                }
            )
    return differences
