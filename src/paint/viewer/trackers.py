"""The page of a run as HTML where wandb or trackio track it."""

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
    """Log the page of what a run kept; where that fails, the run says so and ends all the same."""
    trackers = [tracker for tracker in accelerator.trackers if tracker.name in TAKE_HTML]
    if not trackers:
        return
    try:
        data = run_data(run, PageSpec(again=False), Display(enabled=False))
        page = render("run", f"{data['name']} · paint show", data)
        for tracker in trackers:
            html = importlib.import_module(tracker.name).Html(page)
            tracker.log({NAME: html})
    except Exception as error:  # whatever a tracker raises: the training is done, and is kept
        display.note(f"the run's page was not logged: {reason(error)}")
