"""An optimizer outside of the package: Lion (arXiv 2302.06675), with 1/sqrt(t) decay."""

import torch

from paint import OptimizerFactory

BETAS = 0.9, 0.99


class Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                direction = momentum.lerp(parameter.grad, 1 - BETAS[0]).sign()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * direction)
                momentum.lerp_(parameter.grad, 1 - BETAS[1])


class LionFactory(OptimizerFactory):
    state_bytes = 4  # one momentum in float32

    def open(self, parameters, config):  # type: ignore[no-untyped-def]
        return Lion(parameters, {"lr": config.learning_rate, "weight_decay": config.weight_decay})

    def learning_rate(self, config, step_index):  # type: ignore[no-untyped-def]
        return config.learning_rate / (step_index + 1) ** 0.5
