"""Divergences between target P and student Q: per-entry terms and their derivatives.

The Triton kernel implements those in ``DIVERGENCES``, all other code takes any. One of your own is
a ``Divergence`` outside of the package, named as "module:name" (docs/how-to/extend.md). This module
does not import torch, because settings are validated with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paint.core.errors import ConfigError
from paint.core.extensions import (
    NO_OPTIONS,
    build_options,
    extension_errors,
    load_object,
    of_type,
    spec_of,
)

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

Entries = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of p, log p, q and log q, tensors of one shape (..., v), that returns such a tensor."""


@dataclass(frozen=True)
class Divergence:
    """D(P, Q) = Σ_v term(p_v, log p_v, q_v, log q_v) in nats.

    Attributes:
        name: its name in its module.
        term: contribution of an entry, bounded by the pointwise clip.
        slope: ∂ term / ∂ log q, for the fused loss; the reference differentiates ``term``.
        is_sampled: D is estimated by a policy gradient at the sampled token alone: its term is held
            fixed as the weight of ∇ log q, so ``slope`` is ``term``.
        in_place: (term, slope, p, q) from log p and log q, which it may overwrite; only for speed.
    """

    name: str
    term: Entries
    slope: Entries
    is_sampled: bool = False
    in_place: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]] | None = None

    def evaluate(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute term, slope, p and q of every entry; log p and log q may be overwritten."""
        with extension_errors("objective.divergence", full_name(self)):
            if self.in_place is not None:
                return self.in_place(log_p, log_q)
            p, q = log_p.exp(), log_q.exp()
            return self.term(p, log_p, q, log_q), self.slope(p, log_p, q, log_q), p, q

    def terms(self, p: Tensor, log_p: Tensor, q: Tensor, log_q: Tensor) -> Tensor:
        with extension_errors("objective.divergence", full_name(self)):
            return self.term(p, log_p, q, log_q)


def _forward_kl_in_place(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Allocating memory costs as much as the arithmetic; this is the paper's divergence.
    terms = log_p - log_q
    p, q = log_p.exp_(), log_q.exp_()
    return terms.mul_(p), -p, p, q


def log_mean(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log M = log ½ (P + Q), exactly log P where P = Q."""
    # With d = |log P − log Q|, log M = max + log(½ (1 + exp −d)) = max + log(1 + ½ (exp(−d) − 1)).
    # Where d = 0, expm1 and log1p are exactly 0; logaddexp − log 2 would leave a rounding error.
    return log_p.maximum(log_q) + ((-(log_p - log_q).abs()).expm1() / 2).log1p()


def _jsd_slope(p: Tensor, log_p: Tensor, q: Tensor, log_q: Tensor) -> Tensor:
    return q * (log_q - log_mean(log_p, log_q)) / 2


def _jsd_term(p: Tensor, log_p: Tensor, q: Tensor, log_q: Tensor) -> Tensor:
    log_m = log_mean(log_p, log_q)
    return (p * (log_p - log_m) + q * (log_q - log_m)) / 2


def _sampled_weight(p: Tensor, log_p: Tensor, q: Tensor, log_q: Tensor) -> Tensor:
    return log_q - log_p


FORWARD_KL = Divergence(
    "forward_kl",
    term=lambda p, log_p, q, log_q: p * (log_p - log_q),
    slope=lambda p, log_p, q, log_q: -p,
    in_place=_forward_kl_in_place,
)
# Σ_v P(v) [log P(v) − log Q(v)] (paper: Eq. clipped_fkl).

REVERSE_KL = Divergence(
    "reverse_kl",
    term=lambda p, log_p, q, log_q: q * (log_q - log_p),
    slope=lambda p, log_p, q, log_q: q * (log_q - log_p) + q,
)
# Σ_v Q(v) [log Q(v) − log P(v)].

JSD = Divergence("jsd", term=_jsd_term, slope=_jsd_slope)
# ½ KL(P‖M) + ½ KL(Q‖M) with M = ½ (P + Q), at most log 2.

SAMPLED_TOKEN = Divergence(
    "sampled_token", term=_sampled_weight, slope=_sampled_weight, is_sampled=True
)
# Reverse KL by policy gradient at the sampled token (paper: appendix 'Training Algorithm').

DIVERGENCES = {d.name: d for d in (FORWARD_KL, REVERSE_KL, JSD, SAMPLED_TOKEN)}


def find_divergence(name: str, table: Mapping[str, Any] = NO_OPTIONS) -> Divergence:
    """Return a divergence by name, or an own one as "module:name". Raises ConfigError.

    That is a Divergence, or a function of ``options`` that returns one, made of ``table``.
    """
    setting = "objective.divergence"
    found: Any = DIVERGENCES.get(name) or load_object(name, setting, DIVERGENCES)
    options = build_options(found, table, "objective.options", f"{setting} {name}")
    if options is not None:
        with extension_errors(setting, name):
            found = found(options=options)
    if not isinstance(found, Divergence):
        raise ConfigError(
            f"{setting} is {name}, an object {of_type(found)}, which is not a paint.Divergence, "
            f"nor a function of options that returns one"
        )
    return found


def full_name(divergence: Divergence) -> str:
    """Name of a divergence in messages: with its module, unless it is built in."""
    # Not divergence_name: that would put the result of a function of options in its place.
    if DIVERGENCES.get(divergence.name) is divergence:
        return divergence.name
    return f"{divergence.term.__module__}:{divergence.name}"


def divergence_name(divergence: str | Divergence) -> str:
    """Return the name by which ``find_divergence`` finds a divergence, in other processes too."""
    if isinstance(divergence, str):
        return divergence
    if DIVERGENCES.get(divergence.name) is divergence:
        return divergence.name
    return spec_of(divergence, divergence.name, module=divergence.term.__module__)
