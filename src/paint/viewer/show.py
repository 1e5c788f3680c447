"""``paint show``: what its targets are, which page they get, and where it goes."""

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

SHOWN = get_args(ContextSource)


@dataclass(frozen=True)
class ShowArgs:
    """What ``paint show`` is asked for; docs/how-to/inspect-rollouts.md has each."""

    targets: Sequence[Path]
    steps: Sequence[int] = ()
    row: int | None = None
    contexts: Sequence[str] = ()
    again: bool = True
    format: str = "html"
    out: Path | None = None
    opens: bool = False


def show_targets(asked: ShowArgs, display: Display) -> Path:
    """Write the page of some runs or evaluations, and open it where there is a display.

    Raises:
        ConfigError: targets that do not belong together, or flags that do not belong to them.
        PaintError: of what is read; the message says what is wrong and the way out.
    """
    are_runs = [(target / "run.json").exists() for target in asked.targets]
    if any(are_runs) and not all(are_runs):
        other = asked.targets[are_runs.index(False)]
        raise ConfigError(f"{other} is no run, and others are; show runs or evaluations, not both")
    if unknown := [name for name in asked.contexts if name not in SHOWN]:
        raise ConfigError(f"--contexts names {unknown[0]!r}; there are {', '.join(SHOWN)}")
    of_a_run = bool(asked.steps or asked.row is not None or asked.contexts or not asked.again)
    is_one_run = are_runs == [True]
    if of_a_run and not is_one_run:
        raise ConfigError("--step, --row, --contexts and --no-rescore are for one run")
    if asked.contexts and not asked.again:
        raise ConfigError("--contexts needs the model, which --no-rescore does not load; drop one")
    if asked.format == "inspect" and any(are_runs):
        raise ConfigError("--format inspect is for evaluations, such as RUN/validation")

    first = asked.targets[0]
    if asked.format == "inspect":
        from paint.viewer.inspect_log import write_logs

        return write_logs(asked.targets, asked.out or first / "inspect", display)
    for target in asked.targets:
        if not any(are_runs) and not find_stores(target):
            raise ConfigError(
                f"{target} holds neither a run (run.json) nor an evaluation (asked.json)"
            )

    if is_one_run:
        kind, data = (
            "run",
            run_data(first, PageSpec(asked.steps, asked.row, asked.contexts, asked.again), display),
        )
    elif all(are_runs):
        from paint.viewer.compare import compare_data

        kind, data = "compare", compare_data(asked.targets, display)
    else:
        from paint.viewer.evaluation import evaluation_data

        kind, data = "evaluation", evaluation_data(asked.targets)

    path = asked.out or first / "show.html"
    with wrap_errors(path, RunError, "choose another place with --out"):
        size = write_page(path, kind, f"{data['name']} · paint show", data)
    display.note(f"written to {path} ({size / 1e6:.1f} MB)")
    if asked.opens and has_display():
        webbrowser.open(path.resolve().as_uri())
    return path


def has_display() -> bool:
    """Whether a person sits at this process, with a screen."""
    has_screen = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return has_screen and sys.stdout.isatty()
