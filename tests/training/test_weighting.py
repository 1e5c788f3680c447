"""Steps whose completions are weighted by their verdicts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ConfigError
from paint.training import train_step
from paint.training.check import check_config
from paint.training.rollouts import Rollout
from paint.training.train_step import Setup, weigh_by_verdict
from paint.training.trainer import train
from runs import adapter, assert_same, changed, stored

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3, "checkpoint_every": 1},
}


def small(**objective: Any) -> Config:
    return changed("demo-paint", SMALL, {"objective": objective})


@pytest.mark.slow
def test_train_wrong_weight_zero_learns_from_correct_completions(tmp_path: Path) -> None:
    train(small(), tmp_path / "all")
    train(small(wrong_weight=0.0), tmp_path / "correct")
    rows = stored(tmp_path / "all")
    correct = [row["loss"] for row in rows if row["correct"]]
    assert 0 < len(correct) < len(rows)

    (metrics,) = read_metrics(tmp_path / "correct")
    assert metrics["loss"] == pytest.approx(sum(correct) / len(correct), rel=1e-5)
    assert metrics["loss_weight"] == pytest.approx(1)
    weights = [row["loss_weight"] for row in stored(tmp_path / "correct")]
    share = len(rows) / len(correct)
    assert weights == pytest.approx([share * row["correct"] for row in rows])
    (plain,) = read_metrics(tmp_path / "all")
    assert metrics["kl"] == plain["kl"]
    assert metrics["gradient_norm"] != plain["gradient_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_train_wrong_divergence_joins_losses_and_gradients_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impl: str
) -> None:
    gradients: list[torch.Tensor] = []
    take = train_step.update

    def update(setup: Setup, step_index: int) -> float:
        found = [p.grad.flatten() for p in setup.policy.trainable if p.grad is not None]
        gradients.append(torch.cat(found).clone())
        return take(setup, step_index)

    monkeypatch.setattr(train_step, "update", update)
    cases: dict[str, dict[str, Any]] = {
        "both": {"wrong_divergence": "reverse_kl"},
        "correct": {"wrong_weight": 0.0},
        "wrong": {"divergence": "reverse_kl", "correct_weight": 0.0},
    }
    for name, objective in cases.items():
        train(small(**objective, impl=impl), tmp_path / name)

    rows = {name: stored(tmp_path / name) for name in cases}
    verdicts = [row["correct"] for row in rows["both"]]
    assert 0 < sum(verdicts) < len(verdicts)
    for is_correct, *figures in zip(verdicts, *rows.values(), strict=True):
        weighed = figures[1 if is_correct else 2]
        expected = weighed["loss"] / weighed["loss_weight"]
        assert figures[0]["loss"] == pytest.approx(expected, rel=1e-4, abs=1e-7)
    share = sum(verdicts) / len(verdicts)
    both, correct, wrong = gradients
    torch.testing.assert_close(both, share * correct + (1 - share) * wrong, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "sections", "message"),
    [
        ("paint", {"wrong_divergence": "sampled_token"}, r"must be forward_kl.*sampled_token"),
        ("paint", {"wrong_divergence": "kl"}, r"objective\.wrong_divergence.*forward_kl"),
        ("sft", {"wrong_weight": 0.0}, r"wrong_weight must be 1.*distillation"),
        ("sft", {"wrong_divergence": "jsd"}, r"wrong_divergence must be.*distillation"),
    ],
)
def test_config_verdicts_that_cannot_be_used_are_refused(
    recipe: str, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(changed(f"demo-{recipe}", {"objective": sections}))
    config = changed(
        "demo-paint", {"objective": {"wrong_weight": 0}, "grading": {"grader": "none"}}
    )
    with pytest.raises(ConfigError, match="wrong_weight, which needs grades"):
        check_config(config)


def test_train_answer_weights_learn_from_boxes_alone(tmp_path: Path) -> None:
    train(small(position_weights="answer"), tmp_path / "run")
    is_boxed = ["\\boxed{" in row["text"] for row in stored(tmp_path / "run")]
    assert [row["loss"] != 0 for row in stored(tmp_path / "run")] == is_boxed


def test_train_step_without_weight_updates_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter((1, 0))

    def weigh(setup: Setup, rollouts: Sequence[Rollout]) -> list[Rollout]:
        share = next(steps)
        return [
            replace(r, metrics={**r.metrics, "loss_weight": share * r.metrics["loss_weight"]})
            for r in weigh_by_verdict(setup, rollouts)
        ]

    monkeypatch.setattr("paint.algorithms.paint.weigh_by_verdict", weigh)
    config = changed("demo-paint", SMALL, {"train": {"steps": 2}, "objective": {"wrong_weight": 2}})
    train(config, tmp_path / "run")
    assert [row["gradient_norm"] > 0 for row in read_metrics(tmp_path / "run")] == [True, False]
    # Momentum of the first step moves nothing in the second.
    assert_same(adapter(tmp_path / "run", 1), adapter(tmp_path / "run", 2))
    lines = [line for line in capsys.readouterr().out.splitlines() if "has a weight" in line]
    assert [line[:7] for line in lines] == ["step 2:"]


def test_config_verdict_weights_need_gold_answers_of_graders_that_compare() -> None:
    for grader, needs in (("math", True), ("mine:grade", False)):
        config = small(wrong_weight=0.0).changed("grading", grader=grader)
        assert ("answer" in check_config(config).needed_fields) == needs
