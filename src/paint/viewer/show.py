"""``paint show``: choice of the page for its targets, and writing of the file."""

import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from paint.config.run_folder import RunError
from paint.config.schema import ConfigError, ContextSource
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.evaluation.store import find_stores
from paint.viewer.page import write_page
from paint.viewer.run import PageSpec, run_data

SOURCES = get_args(ContextSource)


@dataclass(frozen=True)
class ShowArgs:
    """Arguments of ``paint show`` (docs/how-to/inspect-rollouts.md)."""

    targets: Sequence[Path]
    steps: Sequence[int] = ()
    row: int | None = None
    contexts: Sequence[str] = ()
    again: bool = True
    format: str = "html"
    out: Path | None = None
    opens: bool = False


def show_targets(args: ShowArgs, display: Display) -> Path:
    """Write the page of some runs or evaluations, and open it if there is a display.

    Raises:
        ConfigError: incompatible targets or flags.
        PaintError: a target cannot be read; the message has the cause and a hint.
    """
    are_runs = [(target / "run.json").exists() for target in args.targets]
    if any(are_runs) and not all(are_runs):
        other = args.targets[are_runs.index(False)]
        raise ConfigError(
            f"{other} is not a run, and others are; show runs or evaluations, not both"
        )
    if unknown := [name for name in args.contexts if name not in SOURCES]:
        raise ConfigError(f"--contexts names {unknown[0]!r}; choose from {', '.join(SOURCES)}")
    has_run_flags = bool(args.steps or args.row is not None or args.contexts or not args.again)
    is_one_run = are_runs == [True]
    if has_run_flags and not is_one_run:
        raise ConfigError("--step, --row, --contexts and --no-rescore are for one run")
    if args.contexts and not args.again:
        raise ConfigError("--contexts needs the model, which --no-rescore does not load; drop one")
    if args.format == "inspect" and any(are_runs):
        raise ConfigError("--format inspect is for evaluations, such as RUN/validation")

    first = args.targets[0]
    if args.format == "inspect":
        from paint.viewer.inspect_log import write_logs

        return write_logs(args.targets, args.out or first / "inspect", display)
    for target in args.targets:
        if not any(are_runs) and not find_stores(target):
            raise ConfigError(
                f"{target} holds neither a run (run.json) nor an evaluation (asked.json)"
            )

    if is_one_run:
        kind, data = (
            "run",
            run_data(first, PageSpec(args.steps, args.row, args.contexts, args.again), display),
        )
    elif all(are_runs):
        from paint.viewer.compare import compare_data

        kind, data = "compare", compare_data(args.targets, display)
    else:
        from paint.viewer.evaluation import evaluation_data

        kind, data = "evaluation", evaluation_data(args.targets)

    path = args.out or first / "show.html"
    with wrap_errors(path, RunError, "choose another place with --out"):
        size = write_page(path, kind, f"{data['name']} · paint show", data)
    display.note(f"written to {path} ({size / 1e6:.1f} MB)")
    if args.opens and has_display():
        webbrowser.open(path.resolve().as_uri())
    return path


def has_display() -> bool:
    """Whether the process has a screen and an interactive terminal."""
    has_screen = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return has_screen and sys.stdout.isatty()
