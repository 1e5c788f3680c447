"""The Algorithm contract: properties of the built-in ones, and one from outside of the package."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from extensions.reward_weighted import RewardWeighted
from paint.config.run_folder import read_metrics, read_run
from paint.core.errors import ConfigError, NonFiniteError
from paint.core.extensions import spec_of
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts
from paint.training.step_checks import require_scores
from runs import adapter, changed, stored, train

SPEC = "extensions.reward_weighted:RewardWeighted"


def test_train_outside_algorithm_learns_from_correct_completions(tmp_path: Path) -> None:
    assert spec_of(RewardWeighted) == SPEC
    steps = {"method": SPEC, "steps": 2, "batch_size": 8, "checkpoint_every": 2}
    train(changed("demo-paint", {"train": steps}), tmp_path)
    assert read_run(tmp_path).train.method == SPEC
    assert 0 < sum(row["correct"] for row in stored(tmp_path)) < 8
    assert [row["loss"] > 0 for row in read_metrics(tmp_path)] == [True, True]
    weights = adapter(tmp_path)
    trained = [value for name, value in weights.items() if "lora_B" in name]  # 0 at the start
    assert trained
    assert all(value.any() for value in trained)


class Changed(RewardWeighted):
    """RewardWeighted with another result of its step."""

    result: ClassVar[Callable[[list[Rollout], float], Any]]

    def step(self, setup, batch, step_index, clock):  # type: ignore[no-untyped-def]
        scored, norm = super().step(setup, batch, step_index, clock)  # type: ignore[no-untyped-call]
        return Changed.result(scored, norm)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda scored, norm: (scored[1:], norm), r"rows \[1\], not each of 0 to 1 once"),
        (lambda scored, norm: (scored, math.nan), "the gradient norm nan"),
    ],
)
def test_train_step_of_ones_own_with_other_result_is_refused(
    result: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Changed, "result", staticmethod(result), raising=False)
    steps = {"method": spec_of(Changed), "steps": 1, "batch_size": 2}
    with pytest.raises(ConfigError, match=rf"train\.method \S*Changed.*{message}"):
        train(changed("demo-paint", {"train": steps}), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


ONES = torch.ones(3)


def test_require_scores_of_other_length_or_reserved_name_are_refused() -> None:
    config = changed("demo-paint", {"train": {"method": SPEC}})
    for values in ({"loss": ONES[1:]}, {"step": ONES}):
        with pytest.raises(ConfigError, match=SPEC):
            require_scores(config, values, 3)
    require_scores(config, {"loss": ONES}, 3)


class Infinite(RewardWeighted):
    """RewardWeighted whose loss, or a value of its tokens, is not finite."""

    what: ClassVar[str]

    def step(self, setup, batch, step_index, clock):  # type: ignore[no-untyped-def]
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)

        def score(micro):  # type: ignore[no-untyped-def]
            log_prob = ts.student_log_probs(setup, micro, 1.0).log_prob
            values = log_prob.detach().clone()
            if Infinite.what == "values":
                values[-1] = math.inf
                return log_prob.mean(), {"values": values}
            return log_prob.mean() + math.nan, {"values": values}

        return ts.learn(setup, rollouts, score, step_index, clock)


@pytest.mark.parametrize("what", ["loss", "values"])
def test_train_on_loss_or_values_not_finite_updates_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Infinite, "what", what, raising=False)
    steps = {"method": spec_of(Infinite), "steps": 1, "batch_size": 2}
    with pytest.raises(NonFiniteError, match=rf"^{what} of train\.method .* is not finite"):
        train(changed("demo-paint", {"train": steps}), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
    assert not [*tmp_path.glob("checkpoints/step-*")]
