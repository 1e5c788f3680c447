"""A whole step of every method on a device that has no float64, as on Apple's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from narrow_device import NARROW, NarrowDevice, NarrowTensor, on_narrow_device
from paint.config.schema import Config, ConfigError
from paint.core.device import float64_device, require_dtype
from paint.core.display import Clock, Display
from paint.data.problems import read_problems
from paint.grading.math.grader import MathGrader
from paint.inference.local import LocalEngine
from paint.inference.sampling import invert
from paint.models.policy import load_policy
from paint.models.teacher import open_teacher
from paint.training.check import check_config
from paint.training.train_step import Setup
from runs import changed


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("demo-paint", {}),
        pytest.param("demo-paint", {"impl": "reference"}, marks=pytest.mark.slow),
        pytest.param("demo-opsd", {}, marks=pytest.mark.slow),
        pytest.param("demo-grpo", {}, marks=pytest.mark.slow),
        pytest.param("demo-sft", {}, marks=pytest.mark.slow),
    ],
)
def test_training_step_without_float64_matches_cpu(
    name: str, flags: dict[str, Any], accelerator: Accelerator
) -> None:
    config = changed(name, {"objective": flags})
    rows, norm, trained = one_step(config, accelerator, on_narrow_device)
    wanted_rows, wanted_norm, wanted = one_step(config, accelerator, lambda module: module)
    assert rows == wanted_rows
    assert norm == pytest.approx(wanted_norm, rel=1e-6)
    assert norm > 0
    # What adds up many parameters at once goes by the device's name.
    for mine, theirs in zip(trained, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_narrow_device_refuses_unsupported_operations() -> None:
    with NarrowDevice():
        narrow = torch.ones(3, device=NARROW)
        for slip in (
            lambda: narrow.double(),
            lambda: torch.ones(3, dtype=torch.float64, device=NARROW),
            lambda: torch.ones(3, dtype=torch.float64).to(NARROW, torch.float32),
            lambda: narrow + torch.ones(3),
            lambda: narrow.kthvalue(1),
        ):
            with pytest.raises((TypeError, RuntimeError, NotImplementedError)):
                slip()


def test_invert_on_narrow_device_matches_cpu() -> None:
    probs, uniforms = torch.rand(64, 999).softmax(-1), torch.rand(64)
    with NarrowDevice():
        drawn = invert(NarrowTensor(probs), NarrowTensor(uniforms))
        assert drawn.device == NARROW
    assert drawn.tolist() == invert(probs, uniforms).tolist()


def test_require_dtype_unsupported_dtype_is_refused() -> None:
    with NarrowDevice():
        require_dtype(NARROW, torch.bfloat16)
        assert float64_device(NARROW) == torch.device("cpu")
        with pytest.raises(ConfigError, match=r"standin:0\b.*float64.*--model\.dtype"):
            require_dtype(NARROW, torch.float64)
    assert float64_device(torch.device("cpu")) == torch.device("cpu")


def one_step(
    config: Config, accelerator: Accelerator, place: Callable[[nn.Module], nn.Module]
) -> tuple[list[object], float, list[Tensor]]:
    """Completions with their values, the gradient's norm, the trained parameters."""
    policy = load_policy(config.model, seed=0)
    policy.model.set_attn_implementation("eager")  # what the device's name decides otherwise
    place(policy.model)

    with NarrowDevice(), MathGrader() as grader:
        teacher = open_teacher(policy, config.teacher)
        optimizer = torch.optim.AdamW(policy.trainable)
        problems = read_problems(config.data).problems[: config.rollout.samples_per_problem]
        engine = LocalEngine(policy, batch_size=len(problems))
        setup = Setup(
            check_config(config), policy, teacher, problems, engine, optimizer, accelerator, grader
        )
        clock = Clock(Display(enabled=False))
        batch = list(enumerate([problems[0]] * len(problems)))
        scored, norm = setup.resolved.algorithm.step(setup, batch, 0, clock)
    trained = [torch.tensor(parameter.tolist()) for parameter in policy.trainable]
    return [(s.rollout.completion.ids, s.tokens) for s in scored], norm, trained
