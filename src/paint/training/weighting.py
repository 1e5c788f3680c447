"""Weights of completions and tokens in the distillation loss (paint.objective.weights)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paint.core.distributed import all_gather_objects
from paint.objective.options import ObjectiveConfig
from paint.objective.weights import verdict_weights
from paint.training.rollouts import Rollout
from paint.training.token_log import token_bytes
from paint.training.train_step import Setup, grade_rollouts


def weigh_by_verdict(setup: Setup, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Grade this rank's completions, and add their loss_weight, of mean 1 over all ranks."""
    grades = grade_rollouts(setup, rollouts)
    verdicts = [
        (r.row, grade.correct, len(r.completion.ids))
        for r, grade in zip(rollouts, grades, strict=True)
    ]
    rows, is_correct, lengths = zip(*sorted(all_gather_objects(verdicts)), strict=True)
    weights = verdict_weights(is_correct, lengths, setup.config.objective)
    by_row = dict(zip(rows, weights, strict=True))
    return [
        replace(r, grade=grade, metrics={**r.metrics, "loss_weight": by_row[r.row]})
        for r, grade in zip(rollouts, grades, strict=True)
    ]


def loss_options(setup: Setup, rollouts: Sequence[Rollout]) -> ObjectiveConfig:
    """Options of the loss of a micro-batch, whose completions have one divergence."""
    options = setup.config.objective.resolve(setup.config.rollout.temperature)
    return options.of_verdict(rollouts[0].is_correct)


def token_factors(rollouts: Sequence[Rollout], device: torch.device) -> Tensor | None:
    """Factor of each token's loss (n): the weight of its completion; None where none is weighed."""
    if "loss_weight" not in rollouts[0].metrics:
        return None
    weights = torch.tensor([r.metrics["loss_weight"] for r in rollouts], device=device)
    return weights.repeat_interleave(
        torch.tensor([len(r.completion.ids) for r in rollouts], device=device)
    )


def token_pieces(setup: Setup, rollouts: Sequence[Rollout]) -> list[bytes] | None:
    """Bytes of all completions' tokens, for weights of tokens; None where all weigh the same."""
    if setup.config.objective.position_weights == "uniform":
        return None
    return token_bytes(setup.policy.tokenizer, [i for r in rollouts for i in r.completion.ids])
