"""Tokens weigh as much as the entropies of teacher and student differ.

    D_i = Σ_n w_n D_n / Σ_n w_n of a completion,     w_n = |H_T − H_S|, held fixed

Source: E2-OPSD: Taming Entropy Overshoot in On-Policy Self-Distillation,
https://arxiv.org/abs/2610.05048; there the gap also sets the direction of a token's KL.

    paint train e2-opsd --model.path MODEL --data.path FILE            # on OPSD, a neighbour shown
    paint train paint-entropy-gap --model.path MODEL --data.path FILE  # on PAINT (ours)

A subclass with other ``weights`` weighs tokens by them (docs/how-to/variants.md).
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.core.errors import ConfigError
from paint.core.extensions import extension_errors, of_type
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts
from paintvariants.token_weights import mean_one_by_completion

Statistics = Mapping[str, Tensor]


class EntropyGap(Variant):
    def weights(self, stats: Statistics, lengths: Sequence[int]) -> Float[Tensor, " n"]:
        """Return weights, at least 0, of the tokens of some completions, one after the other.

        A completion whose weights are all 0 teaches nothing.

        Args:
            stats: the tokens' statistics (paint.objective.loss.Loss).
            lengths: the tokens of each completion, which sum to n.
        """
        return (stats["teacher_entropy"] - stats["student_entropy"]).abs()

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher = teacher_hidden_states(setup, rollouts)
        student = ts.student_hidden_states(setup, rollouts)
        # The weights need the entropies of all tokens of a completion, so the loss is computed
        # twice: five matrix products a token in place of three.
        with torch.no_grad():
            _, stats = rollout_loss(setup, rollouts, student, teacher)
        lengths, options = ts.completion_lengths(rollouts), setup.config.objective
        with extension_errors("train.method", setup.config.train.method):
            weights = read_weights(self.weights(stats, lengths), like=stats["kl"])
        by_token = mean_one_by_completion(weights, lengths, options)
        return rollout_loss(setup, rollouts, student, teacher, by_token)


def read_weights(found: object, *, like: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the weights as floats. Raises ConfigError for what is no tensor of their shape."""
    if not isinstance(found, Tensor) or found.shape != like.shape:
        shown = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else of_type(found)
        raise ConfigError(
            f"weights returned a value of {shown}; return a tensor of {len(like)} numbers, one for "
            f"each token"
        )
    return found.detach().to(like)
