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
from paint.core.storage import read_json
from paint.evaluation.frame import Chart, Report, read_report, select_rows
from paint.lab.viewer.evaluation import evaluation_data
from paint.lab.viewer.page import PAGE, write_page
from paint.lab.viewer.run import EVERYTHING, PageSpec, run_data
from paint.lab.viewer.runs import runs_data, runs_in


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

    With ``live`` the page of the runs is served until Ctrl-C, and written then. Raises PaintError
    for targets that cannot be read, or do not go together with the arguments of `paint show`.
    """
    kind = _kind_of(targets, live=live)
    if page != EVERYTHING and kind != "run":
        raise ConfigError("--steps, --row, --contexts and --no-rescore are for a run")
    if page.contexts and not page.again:
        raise ConfigError("--contexts needs the model, which --no-rescore does not load; drop one")

    path = out or targets[0] / PAGE
    if live:
        # Imported here, since other pages have no server.
        from paint.lab.viewer.watch import PageServer

        server = PageServer(targets, display)
        if opens:
            _open(server.url)
        server.watch()
    match kind:
        case "run":
            data = run_data(targets[0], page, display, path)
        case "runs":
            data = runs_data(targets, path, display)
        case "tables":
            data = tables_data(targets)
        case _:
            data = evaluation_data(targets)
    with wrap_errors(path, RunError, "choose another place with --out"):
        size = write_page(path, kind, f"{data['name']} · paint show", data)
    display.note(f"written to {path} ({size / 1e6:.1f} MB)")
    if opens:
        _open(path.resolve().as_uri())
    return path


def _kind_of(targets: Sequence[Path], *, live: bool) -> str:
    runs = [target for target in targets if (target / "run.json").exists()]
    if len(runs) == 1 and len(targets) == 1 and not live:
        return "run"
    if runs or live:
        if not runs_in(targets):
            raise ConfigError(f"--watch is for runs, and {targets[0]} holds none")
        return "runs"
    # A comparison has runs and evaluations below it, too: its report comes first.
    if tables_data(targets)["reports"]:
        return "tables"
    return "runs" if runs_in(targets) else "evaluation"


def _open(address: str) -> None:
    # Without a screen, webbrowser would start a text browser in this terminal.
    has_screen = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if has_screen and sys.stdout.isatty():
        webbrowser.open(address)


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
