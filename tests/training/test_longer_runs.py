"""Resuming with more steps: refused where the steps so far would have been others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from paint.cli import main
from paint.config.run_folder import RunError
from paint.config.schema import Config, TrainConfig
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.resolve.check import check_config, require_same_beginning
from paint.resolve.optimizer import AdamW
from paint.training.run_log import new_run, validate_resume
from runs import changed

FACTS: dict[str, Any] = {"problems": "", "context": "", "model": {}}


class Sinking(AdamW):
    def learning_rate(self, config: TrainConfig, step_index: int) -> float:
        return 1e-3 if step_index < 2 else 1e-3 * (1 - step_index / config.steps)


class Halving(AdamW):
    def learning_rate(self, config: TrainConfig, step_index: int) -> float:
        return float(1e-3 / 2**step_index)


def begun(folder: Path, done: int, **settings: Any) -> Config:
    """The config of a run of 4 steps of which some are done, in the folder."""
    config = changed("demo-paint", {"train": {"steps": 4, **settings}})
    new_run(config, folder, FACTS)
    if done:
        (folder / f"checkpoints/step-{done:06d}").mkdir()
    return config


@pytest.mark.parametrize(
    ("settings", "done", "rates"),
    [
        ({"schedule": "constant"}, 4, None),
        ({"schedule": "cosine"}, 0, None),
        ({"schedule": "cosine", "warmup_steps": 3}, 3, None),
        ({"schedule": "cosine"}, 1, None),  # of the first step, at the peak
        ({"schedule": "cosine"}, 4, (2, "0.000854", "0.000962")),
        ({"schedule": "linear"}, 2, (2, "0.00075", "0.000875")),
        ({"schedule": "linear", "warmup_steps": 1}, 4, (3, "0.000667", "0.000857")),
        ({"optimizer": spec_of(Sinking)}, 2, None),
        ({"optimizer": spec_of(Sinking)}, 3, (3, "0.0005", "0.00075")),
        ({"optimizer": spec_of(Halving)}, 4, None),
    ],
)
def test_require_same_beginning_refuses_other_learning_rates_of_steps_that_are_done(
    tmp_path: Path, settings: dict[str, Any], done: int, rates: tuple[int, str, str] | None
) -> None:
    config = begun(tmp_path, done, learning_rate=1e-3, **settings)
    longer = check_config(config.changed("train", steps=8))
    assert require_same_beginning(check_config(config), tmp_path) == ()
    if rates is None:
        lines = require_same_beginning(longer, tmp_path)
        assert len(lines) == ("optimizer" in settings)  # which may read the number otherwise
        return
    step, before, now = rates
    said = f"of 8 steps, step {step} would have had the learning rate {now}, not {before};"
    with pytest.raises(RunError, match=re.escape(said)):
        require_same_beginning(longer, tmp_path)


def test_resume_with_other_steps_is_refused_before_the_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path / "run", 3, schedule="linear")
    for steps, message in [("3", "not lowered to 3"), ("8", "start a new run with --train.steps")]:
        assert main(["resume", str(tmp_path / "run"), "--steps", steps]) == 2
        said = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert message in said
        assert "contexts" not in said


def test_validate_resume_says_that_own_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "own_grader_of_a_run.py"
    code.write_text("def grade(completion, row):\n    return 1\n")
    config = changed("demo-grpo", {"grading": {"grader": [f"{code.stem}:grade"]}})
    check_config(config)
    __import__(code.stem)  # as the start does, which opens the grader
    new_run(config, tmp_path / "run", FACTS)
    assert set(json.loads((tmp_path / "run/run.json").read_text())["code"]) == {
        f"{code.stem}:grade"
    }
    validate_resume(config, tmp_path / "run", FACTS, Display())
    assert "has changed" not in capsys.readouterr().out
    code.write_text("def grade(completion, row):\n    return 0\n")
    validate_resume(config, tmp_path / "run", FACTS, Display())
    assert f"the file of {code.stem}:grade has changed since" in " ".join(
        capsys.readouterr().out.split()
    )
