"""``paint show``: choice of the page for its targets, and writing of the file."""

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import sleep
from typing import Any

from paint.config.run_folder import RunError
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.storage import read_json
from paint.evaluation.frame import Chart, Report, read_report, select_rows
from paint.lab.viewer.evaluation import evaluation_data
from paint.lab.viewer.page import PAGE, write_page
from paint.lab.viewer.run import EVERYTHING, PageSpec, run_data
from paint.lab.viewer.runs import runs_data, runs_in, version_of

POLL_SECONDS = 1.0
"""Between two looks at runs that are watched."""


def show_targets(
    targets: Sequence[Path],
    display: Display,
    page: PageSpec = EVERYTHING,
    *,
    out: Path | None = None,
    opens: bool = False,
    live: bool = False,
) -> Path:
    """Write the page of a run, of several, or of evaluations or tables, and return its path.

    With ``live`` the page of the runs is written whenever they change, until Ctrl-C. Raises
    PaintError for targets that cannot be read, or do not go together with the arguments of
    `paint show`.
    """
    kind = _kind_of(targets, live=live)
    if page != EVERYTHING and kind != "run":
        raise ConfigError("--steps, --row, --contexts and --no-rescore are for a run")
    if page.contexts and not page.again:
        raise ConfigError("--contexts needs the model, which --no-rescore does not load; drop one")

    path = out or targets[0] / PAGE
    if live:
        _watch(targets, path, display, opens=opens)
    size = _write(path, kind, _data_of(kind, targets, display, page))
    display.note(f"written to {path} ({size / 1e6:.1f} MB)")
    if opens and not live:
        _open(path)
    return path


def _watch(targets: Sequence[Path], path: Path, display: Display, *, opens: bool) -> None:
    """Write the page of some runs whenever they change, until Ctrl-C."""
    shown = ""
    try:
        while True:
            version = version_of(targets)
            if version != shown:
                _write(path, "runs", runs_data(targets, display, live=True))
                if not shown:
                    display.note(f"{path} has new steps as they come; Ctrl-C ends it")
                    if opens:
                        _open(path)
                shown = version
            sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _write(path: Path, kind: str, data: Mapping[str, Any]) -> int:
    with wrap_errors(path, RunError, "choose another place with --out"):
        return write_page(path, kind, f"{data['name']} · paint show", data)


def _kind_of(targets: Sequence[Path], *, live: bool) -> str:
    runs = [target for target in targets if (target / "run.json").exists()]
    if len(runs) == 1 and len(targets) == 1 and not live:
        return "run"
    if runs or live:
        for target in targets:
            if not runs_in([target]):
                raise ConfigError(
                    f"{target} holds no run, so it is not shown with runs or --watch; give it a "
                    f"page of its own"
                )
        return "runs"
    # A comparison has runs and evaluations below it, too: its report comes first.
    if tables_data(targets)["reports"]:
        return "tables"
    return "runs" if runs_in(targets) else "evaluation"


def _data_of(
    kind: str, targets: Sequence[Path], display: Display, page: PageSpec
) -> dict[str, Any]:
    if kind == "run":
        return run_data(targets[0], page, display)
    if kind == "runs":
        return runs_data(targets, display)
    return tables_data(targets) if kind == "tables" else evaluation_data(targets)


def _open(path: Path) -> None:
    # Without a screen, webbrowser would start a text browser in this terminal.
    has_screen = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if has_screen and sys.stdout.isatty():
        webbrowser.open(path.resolve().as_uri())


def tables_data(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the tables and charts in some folders: of `paint advise`, `compare` and `bake`."""
    hint = "the same command writes it again"
    reports = []
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            # Reports of evaluations have no charts: their page draws them with the samples.
            if not read_json(path, hint).get("charts"):
                continue
            report = read_report(path, hint)
            title = path.stem
            if len(folders) > 1:
                title = f"{folder.resolve().name}: {title}"
            charts = [{**asdict(chart), "rows": _drawn(report, chart)} for chart in report.charts]
            drawn = [chart for chart in charts if chart["rows"]]
            reports.append({"name": title, **asdict(report), "charts": drawn})
    return {"name": " · ".join(folder.resolve().name for folder in folders), "reports": reports}


def _drawn(report: Report, chart: Chart) -> dict[str, dict[str, float | None]]:
    drawn = {}
    for row in select_rows(report.rows, metric=chart.metric, step=None, against=...):
        is_on_benchmark = chart.benchmark in ("", row.benchmark)
        is_of_chart = row.p is not None if chart.is_difference else not row.against
        if is_on_benchmark and is_of_chart:
            label = f"{row.policy} less {row.against}" if row.against else row.policy
            drawn[label] = {"mean": row.mean, "low": row.low, "high": row.high}
    return drawn
