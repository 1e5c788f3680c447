"""The optimizer contract, and the optimizers that ``train.optimizer`` can name.

docs/how-to/extend.md has one of one's own. This module does not import torch: memory is estimated
by it.
"""

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from paint.config.recipe import require_package
from paint.config.schema import TrainConfig
from paint.core.errors import ConfigError, format_short
from paint.core.extensions import (
    build_options,
    extension_errors,
    load_object,
    of_type,
    require_overrides,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


class OptimizerFactory:
    """An optimizer: how it is opened, the schedule of its learning rate, and its memory.

    ``state_bytes`` are those of its state for each trained weight. ``options`` are made of
    ``train.optimizer_options`` by the dataclass that annotates them, after construction.
    """

    name: ClassVar[str] = ""
    state_bytes: float = 8
    options: Any = None

    def check(self, config: TrainConfig) -> None:
        """Raise ConfigError for settings that it cannot take, before a model is loaded."""
        return

    def open(
        self, parameters: Sequence["nn.Parameter"], config: TrainConfig
    ) -> "torch.optim.Optimizer":
        """Return an optimizer of all these parameters; at learning rate 0 it must move none.

        A checkpoint holds its ``state_dict``: tensors, numbers, texts, lists and dicts.
        """
        raise NotImplementedError

    def learning_rate(self, config: TrainConfig, step_index: int) -> float:
        """The learning rate of a step, counted from 0: linear warm-up, then the schedule.

            warm-up     lr (t + 1) / warmup_steps               for t < warmup_steps
            constant    lr
            linear      lr (1 − u)
            cosine      lr ½ (1 + cos π u)

        with u = (t − warmup_steps) / (steps − warmup_steps).
        """
        warmup, peak = config.warmup_steps, config.learning_rate
        if step_index < warmup:
            # From 1, since a first step at rate 0 would change nothing.
            return peak * ((step_index + 1) / warmup)
        # The warm-up may take all steps.
        progress = (step_index - warmup) / max(config.steps - warmup, 1)
        match config.schedule:
            case "constant":
                return peak
            case "linear":
                return peak * (1 - progress)
            case "cosine":
                return peak * (1 + math.cos(math.pi * progress)) / 2


class AdamW(OptimizerFactory):
    """AdamW with betas (0.9, 0.999) and eps 1e-8 (paper: Experimental Details, AdamW).

    On CUDA in one kernel for many weights (``fused``), which changes the rounding alone.
    """

    name = "adamw"

    def open(
        self, parameters: Sequence["nn.Parameter"], config: TrainConfig
    ) -> "torch.optim.Optimizer":
        import torch

        is_on_cuda = all(parameter.is_cuda for parameter in parameters)
        return torch.optim.AdamW(
            parameters, **_adam_settings(config), fused=True if is_on_cuda else None
        )


class AdamW8bit(OptimizerFactory):
    """AdamW whose moments are stored in 8 bits, by blocks of 256 numbers, by bitsandbytes.

    The moments of parameters with fewer than 4,096 numbers stay in float32 (Dettmers et al. 2022,
    "8-bit Optimizers via Block-wise Quantization").
    """

    name = "adamw8bit"
    state_bytes = 2  # two moments in 8 bits

    def check(self, config: TrainConfig) -> None:
        require_package(f"train.optimizer {self.name}", "bitsandbytes")

    def open(
        self, parameters: Sequence["nn.Parameter"], config: TrainConfig
    ) -> "torch.optim.Optimizer":
        library: Any = importlib.import_module("bitsandbytes.optim")
        opened: torch.optim.Optimizer = library.AdamW8bit(parameters, **_adam_settings(config))
        return opened


OPTIMIZERS: dict[str, type[OptimizerFactory]] = {"adamw": AdamW, "adamw8bit": AdamW8bit}


def _adam_settings(config: TrainConfig) -> dict[str, Any]:
    return {
        "lr": config.learning_rate,
        # docs/fidelity.md, C29: the defaults of torch and of the scripts' trainer.
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": config.weight_decay,
    }


def find_optimizer(config: TrainConfig) -> OptimizerFactory:
    """The factory that ``train.optimizer`` names. Raises ConfigError for an unknown one."""
    name = config.optimizer
    found = OPTIMIZERS.get(name) or load_object(name, "train.optimizer", OPTIMIZERS)
    if not (isinstance(found, type) and issubclass(found, OptimizerFactory)):
        raise ConfigError(
            f"train.optimizer is {format_short(name)}, an object {of_type(found)}, which is not a "
            f"subclass of paint.OptimizerFactory"
        )
    setting = f"train.optimizer {name}"
    options = build_options(found, config.optimizer_options, "train.optimizer_options", setting)
    with extension_errors("train.optimizer", name):
        factory = found()
    factory.options = options
    require_overrides(factory, setting)
    return factory


def open_optimizer(
    factory: OptimizerFactory, parameters: Iterable["nn.Parameter"], config: TrainConfig
) -> "torch.optim.Optimizer":
    """Open the factory's optimizer. Raises ConfigError where it leaves parameters out."""
    trained = list(parameters)
    with extension_errors("train.optimizer", config.optimizer):
        optimizer = factory.open(trained, config)
        held = set[int]()
        for group in optimizer.param_groups:
            held.update(map(id, group["params"]))
    missing = sum(id(parameter) not in held for parameter in trained)
    if missing:  # they would stay as they are, and nothing else would show it
        raise ConfigError(
            f"train.optimizer {config.optimizer}: open left out {missing} of {len(trained)} "
            f"parameters; give the optimizer all of them"
        )
    return optimizer


def learning_rate(factory: OptimizerFactory, config: TrainConfig, step_index: int) -> float:
    """Return the learning rate of a step, from 0. Raises ConfigError for one that is no rate."""
    with extension_errors("train.optimizer", config.optimizer):
        rate = float(factory.learning_rate(config, step_index))
    # A negative rate would train away from the target, and one of NaN in the last step be saved.
    if not (math.isfinite(rate) and rate >= 0):
        raise ConfigError(
            f"train.optimizer {config.optimizer}: the learning rate of step {step_index + 1} is "
            f"{rate:g}; it must be a number of at least 0"
        )
    return rate


def set_learning_rate(optimizer: "torch.optim.Optimizer", rate: float) -> None:
    """Set the learning rate of all groups, times a group's ``lr_scale`` where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
