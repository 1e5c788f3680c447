"""An optimizer outside of the package: Lion (arXiv 2302.06675), with 1/sqrt(t) decay."""

from dataclasses import dataclass

import torch

from paint import OptimizerFactory


@dataclass(frozen=True)
class LionOptions:
    beta1: float = 0.9
    """Weight of the momentum in an update."""
    beta2: float = 0.99
    """Decay of the momentum."""


class Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                direction = momentum.lerp(parameter.grad, 1 - group["beta1"]).sign()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * direction)
                momentum.lerp_(parameter.grad, 1 - group["beta2"])


class LionFactory(OptimizerFactory):
    options: LionOptions
    state_bytes = 4  # one momentum in float32

    def open(self, parameters, config):  # type: ignore[no-untyped-def]
        settings = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        return Lion(parameters, settings | vars(self.options))

    def learning_rate(self, config, step_index):  # type: ignore[no-untyped-def]
        return config.learning_rate / (step_index + 1) ** 0.5
