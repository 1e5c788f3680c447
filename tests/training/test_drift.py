"""Drift of the student from its base on fixed prompts."""

from pathlib import Path

import pytest
import torch

from conftest import logits_alone, move
from paint.config.run_folder import read_metrics
from paint.models.policy import load_policy
from paint.models.teacher import open_teacher
from paint.training.drift import open_drift
from runs import adapter, assert_same, changed, small_run, train, train_in_parts

SMALL = small_run(
    12, limit=100, at_once=4, steps=2, batch_size=4, micro_batch_size=4, learning_rate=3e-3
)
MEASURED = {"health": {"drift_path": "demo"}}


def test_drift_is_kl_of_base_and_student_on_tokens_of_the_base() -> None:
    config = changed("demo-paint", SMALL, MEASURED)
    policy = load_policy(config.model, seed=0)
    drift = open_drift(config, policy, open_teacher(policy, config.teacher))
    assert drift is not None
    assert len(drift.prompts) == 8
    assert drift.measure() == pytest.approx(0, abs=1e-7)

    def log_probs() -> torch.Tensor:
        rows = zip(drift.prompts, drift.completions, strict=True)
        return torch.cat([logits_alone(policy.model, *row).log_softmax(-1) for row in rows])

    with torch.no_grad():
        base = log_probs()
        move(policy, by=0.02)
        student = log_probs()
    expected = (base.exp() * (base - student)).sum(-1).mean()
    assert expected > 1e-3
    assert drift.measure() == pytest.approx(float(expected), rel=1e-3)


def test_train_with_drift_logs_it_changes_nothing_and_resumes(tmp_path: Path) -> None:
    whole = changed("demo-paint", SMALL, MEASURED)
    train(changed("demo-paint", SMALL), tmp_path / "without")
    train(whole, tmp_path / "with")
    assert_same(adapter(tmp_path / "without"), adapter(tmp_path / "with"))
    drifts = [row["drift"] for row in read_metrics(tmp_path / "with")]
    assert drifts[0] > 0
    assert "drift" not in read_metrics(tmp_path / "without")[0]

    train_in_parts(whole, tmp_path / "cut", first=1)
    assert [row["drift"] for row in read_metrics(tmp_path / "cut")] == pytest.approx(drifts)
