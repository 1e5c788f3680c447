"""The optimizer, and the schedule of its learning rate."""

import importlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from paint.config.schema import TrainConfig


def open_optimizer(
    parameters: Iterable[nn.Parameter], config: TrainConfig
) -> torch.optim.Optimizer:
    """AdamW with betas (0.9, 0.999) and eps 1e-8 (paper: Experimental Details, AdamW).

    On CUDA in one kernel for many weights (``fused``), which changes the rounding alone. With
    ``adamw8bit`` its moments are stored in 8 bits, by blocks of 256 numbers; those of
    parameters with fewer than 4,096 numbers stay in float32 (Dettmers et al. 2022, "8-bit
    Optimizers via Block-wise Quantization").
    """
    trained = list(parameters)
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw8bit":
        adamw8bit: torch.optim.Optimizer = importlib.import_module("bitsandbytes.optim").AdamW8bit(
            trained, **settings
        )
        return adamw8bit
    is_on_cuda = all(parameter.is_cuda for parameter in trained)
    return torch.optim.AdamW(trained, **settings, fused=True if is_on_cuda else None)


def learning_rate(config: TrainConfig, step_index: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then the schedule.

        warm-up     lr (t + 1) / warmup_steps               for t < warmup_steps
        constant    lr
        linear      lr (1 − u)
        cosine      lr ½ (1 + cos π u)

    with u = (t − warmup_steps) / (steps − warmup_steps).
    """
    warmup, peak = config.warmup_steps, config.learning_rate
    if step_index < warmup:
        return peak * ((step_index + 1) / warmup)
    progress = (step_index - warmup) / max(config.steps - warmup, 1)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - progress)
        case "cosine":
            return peak * (1 + math.cos(math.pi * progress)) / 2
