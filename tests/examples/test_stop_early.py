"""The callback of examples/ that ends a run by its validation, and names the best checkpoint."""

from pathlib import Path

import pytest
import stop_early
from stop_early import StopEarly

import paint


@pytest.mark.parametrize(
    ("scores", "stops"),
    [
        ([], False),
        ([0.5], False),
        ([0.5, 0.4], False),
        ([0.5, 0.4, 0.5], True),
        ([0.5, 0.4, 0.6], False),
        ([0.5, 0.6, 0.6, 0.5], True),
    ],
)
def test_stop_early_ends_after_two_validations_without_a_better_score(
    scores: list[float], stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_early, "scores_of", lambda run: dict(enumerate(scores, start=1)))
    callback = StopEarly()
    assert not callback.on_step(1, {}, [])
    callback.on_checkpoint(tmp_path / "checkpoints/step-000001")
    assert callback.on_step(2, {}, []) is stops
    assert not callback.on_step(3, {}, [])  # no validation since


@pytest.mark.slow
def test_stop_early_ends_a_run_and_names_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StopEarly, "patience", 1)
    settings = {"steps": 30, "batch_size": 2, "checkpoint_every": 1, "learning_rate": 1e-9}
    validation = {"path": "demo", "limit": 2, "samples": 1}
    callbacks = [StopEarly()]
    folder = tmp_path / "run"
    run = paint.train(
        "demo-paint", output_dir=folder, train=settings, validation=validation, callbacks=callbacks
    )
    # A rate of 1e-9 changes no sample: the first checkpoint is the best, and the second no better.
    assert len(run.metrics) == 3
    assert f"best: {folder}/checkpoints/step-000001, " in capsys.readouterr().out
