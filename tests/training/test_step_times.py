"""What bounds a run: seconds of its first steps, and the split of its GPUs that would be faster."""

from pathlib import Path
from typing import Any

import pytest

from paint.training.check import check_config
from paint.training.step_times import bottleneck, describe_phases, measured_steps
from paint.training.trainer import train
from runs import changed


def asking(gpus: str, rollout: dict[str, Any] | None = None) -> Any:
    """A run whose servers have these GPUs, separated by spaces; "": none."""
    servers = {"engine": "vllm", "server_gpus": gpus.split()} if gpus else {}
    return changed("demo-paint", {"train": {"batch_size": 8}, "rollout": servers | (rollout or {})})


SLOW = {"sync": 90.0, "rollout": 90.0, "loss": 90.0}
"""The first step, which is not counted."""


@pytest.mark.parametrize(
    ("servers", "rollout", "ranks", "step", "split"),
    [
        ("4 5 6 7", {}, 4, {"sync": 0.1, "rollout": 8.9, "loss": 0.5, "update": 0.5}, "2+6"),
        ("4 5 6 7", {}, 4, {"sync": 0.1, "rollout": 0.9, "loss": 8.0, "update": 1.0}, "6+2"),
        ("4 5 6 7", {}, 4, {"rollout": 5.0, "loss": 5.0}, None),
        ("4,5 6,7", {}, 4, {"rollout": 9.0, "loss": 1.0}, "2+6"),  # servers of two GPUs
        ("2 3 4 5 6 7", {}, 2, {"rollout": 1.0, "loss": 99.0}, "7+1"),
        ("4 5 6 7", {"off_policy_steps": 1}, 4, {"wait": 6.0, "loss": 3.0}, "2+6"),
        ("4 5 6 7", {"off_policy_steps": 1}, 4, {"loss": 3.0}, None),
        ("0 1", {"colocate": True}, 2, {"rollout": 9.0, "loss": 1.0}, None),
        ("", {}, 1, {"rollout": 9.0, "loss": 1.0}, None),
        ("", {"off_policy_steps": 1}, 1, {"rollout": 9.0, "loss": 1.0}, None),
    ],
)
def test_bottleneck_names_split_that_is_faster(
    servers: str, rollout: dict[str, Any], ranks: int, step: dict[str, float], split: str | None
) -> None:
    said = bottleneck(check_config(asking(servers, rollout)), ranks, [SLOW, step, step])
    assert ("--split" in said) == (split is not None)
    assert split is None or f"`--split {split}`" in said


def test_bottleneck_estimates_seconds_of_split() -> None:
    steps = [SLOW, {"rollout": 790.0, "loss": 0.25}, {"rollout": 810.0, "loss": 0.25}]
    assert bottleneck(check_config(asking("4 5 6 7")), 4, steps) == (
        "steps take 800 s: rollouts 800 s, update 0.25 s; with `--split 1+7` a step would take "
        f"about {800 * 4 / 7 + 1:.0f} s"
    )


@pytest.mark.parametrize(
    ("servers", "behind", "steps"), [("", 0, 3), ("", 1, 3), ("", 2, 4), ("", 7, 9), ("4", 7, 3)]
)
def test_measured_steps_are_the_first_and_a_group(servers: str, behind: int, steps: int) -> None:
    assert measured_steps(check_config(asking(servers, {"off_policy_steps": behind}))) == steps


def test_bottleneck_of_group_counts_sampling_once() -> None:
    """Two steps of a group: one of them samples for both."""
    steps = [SLOW, {"loss": 1.0}, {"rollout": 6.0, "loss": 1.0}]
    said = bottleneck(check_config(asking("", {"off_policy_steps": 1})), 1, steps)
    assert said == "steps take 4 s: rollouts 3 s, update 1 s"


def test_train_says_what_bounds_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"steps": 4, "batch_size": 2}
    train(changed("demo-paint", {"rollout": {"max_new_tokens": 8}, "train": few}), tmp_path)
    assert capsys.readouterr().out.count("s: rollouts ") == 1


def test_describe_phases_adds_up_steps_and_the_rest() -> None:
    steps = [{"seconds_rollout": 40.0, "seconds_loss": 50.0, "seconds_left": 9.0}] * 2
    steps.append({"seconds_update": 0.1})
    assert describe_phases(steps, 200) == (
        "took 3 min 20 s: loss 1 min 40 s, rollout 1 min 20 s, set-up, validation and saving 20 s"
    )
