"""The Algorithm contract: properties of the built-in ones, and one from outside of the package."""

from dataclasses import replace
from pathlib import Path

import pytest

from extensions.reward_weighted import RewardWeighted
from paint.algorithms.base import ALGORITHMS, find_algorithm
from paint.config.run_folder import read_metrics, read_run
from paint.config.schema import Config, GrpoConfig, TrainConfig
from paint.core.errors import ConfigError
from paint.core.plugins import spec_of
from paint.training.trainer import train
from runs import adapter, changed, stored

SPEC = "extensions.reward_weighted:RewardWeighted"


def test_find_algorithm_built_in_properties() -> None:
    config = Config(grpo=GrpoConfig(iterations=3))
    found = {name: find_algorithm(name) for name in ALGORITHMS}
    assert list(found) == ["distillation", "mixed", "grpo", "sft"]
    assert [a.needs_teacher(config) for a in found.values()] == [True, True, False, False]
    assert found["grpo"].needs_teacher(replace(config, grpo=GrpoConfig(kl=0.1)))
    assert [a.min_samples for a in found.values()] == [1, 2, 2, 1]
    assert [a.updates_per_batch(config) for a in found.values()] == [1, 1, 3, 1]
    assert [a.needs_rollouts for a in found.values()] == [True, True, True, False]


@pytest.mark.parametrize(
    "name", ["ppo", "no_such_module:A", "extensions.reward_weighted:Absent", "pathlib:Path"]
)
def test_find_algorithm_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.method .*{name}|{name}.*train\.method"):
        Config(train=TrainConfig(method=name))


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
