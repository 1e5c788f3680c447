"""What the tests of pages share: a small run with rollouts, tokens and validation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import launched
from paint.display import Display
from paint.lab.files import HELD_OUT_PROBLEMS
from paint.show.show import Asked, show_targets
from paint.training.run import train
from runs import changed

SMALL = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "data": {"limit": 40},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 3, "batch_size": 6, "micro_batch_size": 6, "checkpoint_every": 2},
    "validation": {
        "path": str(HELD_OUT_PROBLEMS),
        "limit": 4,
        "samples": 3,
        "thinking": False,
        "max_new_tokens": 60,
        "top_p": 1.0,
    },
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, a checkpoint after the second and third, four rows' tokens a step: read only."""
    folder = tmp_path_factory.mktemp("runs") / "shown"
    train(changed("lab-paint", SMALL), folder)
    return folder


@pytest.fixture(scope="session")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's page, with other contexts."""
    out = tmp_path_factory.mktemp("pages") / "run.html"
    contexts = ("own", "none", "other", "wrong_answer")
    return show_targets(Asked([run], contexts=contexts, out=out), Display(enabled=False))
