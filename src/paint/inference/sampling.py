"""Sampling of the next token: temperature, top-k, top-p and inversion, without waits for a device.

A token is a pure function of the logits and of one uniform number. No function here reads a value
on the host, so a CUDA graph can repeat all of them.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paint.core.device import float64_device
from paint.inference.engine import Sampling

LIKELIEST = 256  # number of likeliest tokens in which top-p is searched first
WIDER = 8  # factor by which this number grows where it is too small


def draw(
    logits: Float[Tensor, "b v"], uniforms: Float[Tensor, " b"], sampling: Sampling, candidates: int
) -> tuple[Int[Tensor, " b"], Bool[Tensor, " b"]]:
    """Draw each row's token by inverting its distribution at its uniform number in [0, 1).

    Also returns which rows need more than this number of candidates; their tokens are wrong.
    """
    if sampling.temperature == 0:
        # The limit of low temperatures: logits cannot be divided by 0.
        return logits.argmax(-1), torch.zeros_like(uniforms, dtype=torch.bool)
    probs, tokens, too_few = distribution(logits, sampling, candidates)
    return tokens.gather(-1, invert(probs, uniforms)[:, None])[:, 0], too_few


def distribution(
    logits: Float[Tensor, "b v"], sampling: Sampling, candidates: int
) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"], Bool[Tensor, " b"]]:
    """Return unnormalised probabilities after temperature, top-k and top-p, and their tokens.

    All tokens as likely as the k-th are kept. Of equally likely tokens at the limit of top-p, only
    as many are kept as are needed to reach it, those with the lowest ids. Excluded tokens have
    probability 0 or are omitted; the others are in the order of their ids. With top-k or top-p,
    only the likeliest ``candidates`` are looked at; rows that need more are marked, and are wrong.
    """
    scores = logits / sampling.temperature
    vocabulary = scores.shape[-1]
    candidates = min(candidates, vocabulary)
    has_top_k = 0 < sampling.top_k < vocabulary
    is_cut_off = torch.zeros_like(scores[:, 0], dtype=torch.bool)  # candidates may be missing
    if has_top_k:
        # Top-k comes first: top-p is a share of what it leaves, as in transformers and vLLM.
        likeliest, tokens = scores.topk(candidates)
        least = likeliest[:, min(sampling.top_k, candidates) - 1, None]
        # Others as likely as the last candidate may be missing.
        is_cut_off = likeliest[:, -1] >= least[:, 0]
        probs = likeliest.masked_fill(likeliest < least, -torch.inf).softmax(-1)
    elif sampling.top_p < 1:
        # Shares of the complete distribution: among the candidates alone they would be too large.
        probs, tokens = scores.softmax(-1).topk(candidates)
    else:
        tokens = torch.arange(vocabulary, device=scores.device).expand_as(scores)
        return scores.softmax(-1), tokens, is_cut_off

    by_id, order = tokens.sort(-1)
    if sampling.top_p == 1:
        return probs.gather(-1, order), by_id, is_cut_off & (candidates < vocabulary)

    mass = probs.to(float64_device(probs.device)).double().cumsum(-1)
    before_last = (mass < sampling.top_p).sum(-1, keepdim=True).clamp(max=candidates - 1)
    before_last = before_last.to(probs.device)
    last = probs.gather(-1, before_last)
    # Tokens as likely as the last candidate may not be among the candidates.
    is_cut_off |= (last[:, 0] == probs[:, -1]) & (last[:, 0] > 0)

    probs = probs.gather(-1, order)
    above = probs > last
    equal = probs == last
    needed = before_last + 1 - above.sum(-1, keepdim=True)
    kept = probs.where(above | (equal & (equal.cumsum(-1) <= needed)), 0)
    return kept, by_id, is_cut_off & (candidates < vocabulary)


def invert(probs: Float[Tensor, "b n"], uniforms: Float[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return the index at which each row's cumulative probability exceeds a number in [0, 1).

    An index of probability 0 is never drawn, even if rounding leaves the last sum below 1. Sums are
    float64, on a device that supports it.
    """
    where = float64_device(probs.device)
    cumulative = probs.to(where).double().cumsum(-1)
    targets = uniforms.to(where).double()[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Only rows with NaN reach past the end; they are reported as soon as the token is drawn.
    return places.clamp(max=probs.shape[-1] - 1).to(probs.device)
