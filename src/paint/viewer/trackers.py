"""Logging of a run's page to wandb or trackio as HTML."""

import importlib
from pathlib import Path

from accelerate import Accelerator

from paint.core.display import Display
from paint.core.errors import reason
from paint.viewer.page import render
from paint.viewer.run import PageSpec, run_data

NAME = "paint_show"
TAKE_HTML = ("wandb", "trackio")


def log_page(run: Path, accelerator: Accelerator, display: Display) -> None:
    """Log the run's page, without rescoring; a failure is only noted."""
    trackers = [tracker for tracker in accelerator.trackers if tracker.name in TAKE_HTML]
    if not trackers:
        return
    try:
        data = run_data(run, PageSpec(again=False), Display(enabled=False))
        page = render("run", f"{data['name']} · paint show", data)
        for tracker in trackers:
            html = importlib.import_module(tracker.name).Html(page)
            tracker.log({NAME: html})
    except Exception as error:  # any tracker error: the training is finished and saved
        display.note(f"the run's page was not logged: {reason(error)}")
