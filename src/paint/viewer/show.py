"""``paint show``: choice of the page for its targets, and writing of the file."""

import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paint.config.run_folder import RunError
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.evaluation.frame import chart_rows, reports_in, to_json
from paint.evaluation.store import find_stores
from paint.viewer.evaluation import evaluation_data
from paint.viewer.page import write_page
from paint.viewer.run import EVERYTHING, PageSpec, compare_data, run_data


def show_targets(
    targets: Sequence[Path],
    display: Display,
    page: PageSpec = EVERYTHING,
    *,
    out: Path | None = None,
    opens: bool = False,
) -> Path:
    """Write the page of some runs, evaluations or tables, and return its path.

    The arguments are those of `paint show`.

    Raises:
        ConfigError: incompatible targets or arguments.
        PaintError: a target cannot be read; the message has the cause and a hint.
    """
    are_runs = [(target / "run.json").exists() for target in targets]
    if any(are_runs) and not all(are_runs):
        raise ConfigError(
            f"{targets[are_runs.index(False)]} is not a run, and others are; show runs or "
            f"evaluations, not both"
        )
    # A page scores one completion at a time: other completions of the step are not at hand.
    wrong = {"text", "file", "rollout", "other_feedback"} & set(page.contexts)
    if wrong:
        raise ConfigError(
            f"--contexts names {min(wrong)!r}; choose from solution, neighbour, feedback, none, "
            f"other, answer, wrong_answer, fields of the rows and module:function"
        )
    if page != EVERYTHING and are_runs != [True]:
        raise ConfigError("--steps, --row, --contexts and --no-rescore are for one run")
    if page.contexts and not page.again:
        raise ConfigError("--contexts needs the model, which --no-rescore does not load; drop one")

    kind, data = _page_data(targets, page, display)
    path = out or targets[0] / "show.html"
    with wrap_errors(path, RunError, "choose another place with --out"):
        size = write_page(path, kind, f"{data['name']} · paint show", data)
    display.note(f"written to {path} ({size / 1e6:.1f} MB)")
    has_screen = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if opens and has_screen and sys.stdout.isatty():
        webbrowser.open(path.resolve().as_uri())
    return path


def _page_data(
    targets: Sequence[Path], page: PageSpec, display: Display
) -> tuple[str, dict[str, Any]]:
    if (targets[0] / "run.json").exists():
        if len(targets) == 1:
            return "run", run_data(targets[0], page, display)
        return "compare", compare_data(targets, display)

    if any(map(reports_in, targets)):
        return "tables", tables_data(targets)

    for target in targets:
        if not find_stores(target):
            raise ConfigError(
                f"{target} holds neither a run (run.json), an evaluation (completions.jsonl) nor "
                f"a report of advice, a comparison or a bake"
            )
    return "evaluation", evaluation_data(targets)


def tables_data(folders: Sequence[Path]) -> dict[str, Any]:
    """The tables and charts in some folders: of `paint advise`, `compare`, `ablate` and `bake`.

    Raises:
        ConfigError: a folder has none.
        CorruptFileError: a file cannot be read.
    """
    reports = []
    for folder in folders:
        found = reports_in(folder)
        if not found:
            raise ConfigError(f"{folder} has no report, and others do")
        for name, report in found.items():
            title = name if len(folders) == 1 else f"{folder.resolve().name}: {name}"
            charts = []
            for chart in report.charts:
                rows = chart_rows(report, chart)
                if rows:
                    charts.append({**asdict(chart), "rows": rows})
            reports.append({"name": title, **to_json(report), "charts": charts})
    return {"name": " · ".join(folder.resolve().name for folder in folders), "reports": reports}
