"""The loss against a teacher of whose distribution k entries are known, such as a served one.

    p_1 ... p_k and p_rest = 1 − Σ p_i,     q_1 ... q_k and q_rest = Σ of the student's others

Both views are distributions over k + 1 bins, and their loss is that of ``paint_loss``: entropies,
selection, interpolation and divergence are of the bins. The pointwise clip bounds the bin of the
rest as it bounds an entry. Where k is the vocabulary there is no rest, and the loss is exact. With
less, the forward KL of the bins is never more than that of the vocabulary (log sum inequality), and
the student learns how much, but not where, the teacher gives to the rest.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paint.objective.loss import Lengths, Loss, entropy, paint_loss, token_log_probs
from paint.objective.loss_options import PAPER_LOSS, Objective, with_changes

CHUNK = 512
"""Tokens whose logits are in memory at once."""


def top_k_loss(
    student_hidden: Float[Tensor, "n h"],
    lm_head: nn.Linear,
    lengths: Lengths,
    teacher_ids: Int[Tensor, "n k"],
    teacher_log_probs: Float[Tensor, "n k"],
    options: Objective = PAPER_LOSS,
    *,
    tokens: Int[Tensor, "n"],
    chunk_tokens: int = CHUNK,
    **changes: Any,
) -> Loss:
    """``paint_loss`` of lm_head(student_hidden) and of k entries of the teacher at each token.

    Args:
        teacher_ids: distinct token ids of a position, usually those of the likeliest entries.
        teacher_log_probs: their log-probabilities over the whole vocabulary, at the temperature of
            the options.
        tokens: the sampled ones.

    student_entropy is that of the whole vocabulary; kl, teacher_entropy and entropy_ratio are of
    the bins, and there is no teacher_log_prob. The logits of a chunk are computed once more in the
    backward pass. Raises as paint_loss.
    """
    options = with_changes(options, **changes)
    bins = partial(_student_bins, lm_head, options.temperature)
    parts = [
        checkpoint(bins, *rows, use_reentrant=False, preserve_rng_state=False)
        for rows in zip(
            student_hidden.split(chunk_tokens),
            teacher_ids.split(chunk_tokens),
            tokens.split(chunk_tokens),
            strict=True,
        )
    ]
    student, student_entropy, student_log_prob = map(torch.cat, zip(*parts, strict=True))
    teacher = with_rest(teacher_log_probs.to(student.dtype), lm_head.out_features)
    # Both have the options' temperature by now; log_softmax leaves normalised values as they are.
    found = paint_loss(student, teacher, lengths, with_changes(options, temperature=1.0))
    found.stats["student_entropy"] = student_entropy
    found.stats["student_log_prob"] = student_log_prob
    return found


def with_rest(log_probs: Float[Tensor, "n k"], vocabulary: int) -> Float[Tensor, "n m"]:
    """Return log-probs of the bins: the entries, and what they leave of the vocabulary."""
    if log_probs.shape[1] == vocabulary:
        return log_probs
    # In float64: the rest of a sure teacher is the difference of two numbers near 1.
    rest = 1 - log_probs.double().exp().sum(-1, keepdim=True)
    return torch.cat([log_probs, rest.clamp(min=0.0).log().to(log_probs.dtype)], dim=-1)


def _student_bins(
    lm_head: nn.Linear,
    temperature: float,
    hidden: Float[Tensor, "n h"],
    ids: Int[Tensor, "n k"],
    tokens: Int[Tensor, "n"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the student's bins, its entropy, and log-probs of tokens at temperature 1."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    bias = None if lm_head.bias is None else lm_head.bias.to(dtype)
    logits = nn.functional.linear(hidden.to(dtype), lm_head.weight.to(dtype), bias)
    log_probs = (logits / temperature).log_softmax(-1)
    bins = log_probs.gather(-1, ids)
    if ids.shape[1] < logits.shape[1]:
        # Not 1 − Σ q, of which rounding leaves nothing where the student is sure.
        rest = log_probs.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
        bins = torch.cat([bins, rest], dim=-1)
    with torch.no_grad():
        return bins, entropy(log_probs), token_log_probs(logits, tokens)
