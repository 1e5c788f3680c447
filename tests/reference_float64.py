"""The paper's objective once more, in float64 python loops, as literally as its equations read.

It shares nothing with paint.objective.loss, which is tested against it. Distributions are lists
over the vocabulary, a batch is a list of such lists over positions, and −inf is an energy of +inf.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

Vector = Sequence[float]
Matrix = Sequence[Vector]


class Options(NamedTuple):
    """The options of paint.objective that the equations know."""

    temperature: float
    interpolation_weight: float
    top_fraction: float
    clip: float
    clip_mode: str
    divergence: str
    reduction: str


class Loss(NamedTuple):
    value: float
    per_token: list[float]
    stats: dict[str, list[float]]


def energies(logits: Vector, temperature: float) -> list[float]:
    """E(v) = −log softmax(z / T)(v)."""
    highest = max(logits)
    # Less 1, which is the highest logit's: fsum is exact, and 1 + 1e-20 is not.
    less_one = math.fsum([-1.0, *(math.exp((z - highest) / temperature) for z in logits)])
    return [math.log1p(less_one) - (z - highest) / temperature for z in logits]


def entropy(energy: Vector) -> float:
    """H = −Σ p log p, where −log p is the energy."""
    return math.fsum(math.exp(-e) * e for e in energy if e < math.inf)


def ratio(teacher_entropy: float, student_entropy: float) -> float:
    return teacher_entropy / max(student_entropy, 1e-30)


def select(ratios: Vector, top_fraction: float) -> list[bool]:
    """Take the largest remaining ratio, the earliest of equals, ⌈f |J|⌉ times; f is exact."""
    chosen = [False] * len(ratios)
    for _ in range(math.ceil(Fraction(str(top_fraction)) * len(ratios))):
        best = None
        for n, value in enumerate(ratios):
            if not chosen[n] and (best is None or value > ratios[best]):
                best = n
        assert best is not None
        chosen[best] = True
    return chosen


def interpolate(teacher: Vector, student: Vector, interpolation_weight: float) -> list[float]:
    """Ẽ = (1 − k) E_T + k E_S, then p̃ = exp(−Ẽ) / Σ exp(−Ẽ); as energies again."""
    mixed = []
    for e_t, e_s in zip(teacher, student, strict=True):
        energy = 0.0
        if interpolation_weight < 1:
            energy += (1 - interpolation_weight) * e_t
        if interpolation_weight > 0:
            energy += interpolation_weight * e_s
        mixed.append(energy)
    return energies([-e for e in mixed], 1.0)


def kl_summand(energy_p: float, energy_q: float) -> float:
    """p (log p − log q) of one vocabulary entry, 0 where p is 0."""
    if energy_p == math.inf:
        return 0.0
    return math.exp(-energy_p) * (energy_q - energy_p)


def summand(energy_p: float, energy_q: float, divergence: str) -> float:
    if divergence == "forward_kl":
        return kl_summand(energy_p, energy_q)
    if divergence == "reverse_kl":
        return kl_summand(energy_q, energy_p)
    assert divergence == "jsd"
    lowest = min(energy_p, energy_q)
    if lowest == math.inf:
        return 0.0
    mean = (math.exp(lowest - energy_p) + math.exp(lowest - energy_q)) / 2
    energy_m = lowest - math.log(mean)
    return kl_summand(energy_p, energy_m) / 2 + kl_summand(energy_q, energy_m) / 2


def summands(target: Vector, student: Vector, divergence: str, token: int | None) -> list[float]:
    """One a vocabulary entry; of divergence sampled_token log p_S − log p̃_T of the token alone."""
    if divergence == "sampled_token":
        return [
            p - q if v == token else 0.0
            for v, (p, q) in enumerate(zip(target, student, strict=True))
        ]
    return [summand(p, q, divergence) for p, q in zip(target, student, strict=True)]


def clipped(terms: Vector, options: Options) -> tuple[float, list[float]]:
    """The sum of a token's summands with the clip, and the factor of each one's gradient."""
    total = math.fsum(terms)
    if options.clip_mode == "pointwise":
        kept = [float(term <= options.clip) for term in terms]
        return math.fsum(min(term, options.clip) for term in terms), kept
    if options.clip_mode == "token":
        return min(total, options.clip), [float(total <= options.clip)] * len(terms)
    if options.clip_mode == "huber" and options.divergence == "sampled_token":
        bounded = max(-options.clip, min(total, options.clip))
        return bounded, [bounded / total if total else 1.0] * len(terms)
    if options.clip_mode == "huber" and total > options.clip:
        factor = math.sqrt(options.clip / total)
        return 2 * math.sqrt(options.clip * total) - options.clip, [factor] * len(terms)
    return total, [1.0] * len(terms)


def targets(
    student_logits: Matrix, teacher_logits: Matrix, lengths: Sequence[int], options: Options
) -> tuple[list[list[float]], list[bool]]:
    """The energies that every position is trained towards, and whether the position is in I."""
    student = [energies(z, options.temperature) for z in student_logits]
    teacher = [energies(z, options.temperature) for z in teacher_logits]
    ratios = [ratio(entropy(t), entropy(s)) for t, s in zip(teacher, student, strict=True)]
    selected: list[bool] = []
    for length in lengths:
        start = len(selected)
        selected += select(ratios[start : start + length], options.top_fraction)
    target = [
        interpolate(e_t, e_s, options.interpolation_weight) if chosen else e_t
        for e_t, e_s, chosen in zip(teacher, student, selected, strict=True)
    ]
    return target, selected


def rollout_loss(
    target: Matrix, student_logits: Matrix, lengths: Sequence[int], options: Options
) -> float:
    """The loss for a given target: what is differentiated, since the target carries no gradient."""
    terms = (
        summands(target[n], energies(z, options.temperature), options.divergence, None)
        for n, z in enumerate(student_logits)
    )
    return average([clipped(term, options)[0] for term in terms], lengths, options.reduction)


def policy_loss(
    advantages: Vector,
    student_logits: Matrix,
    lengths: Sequence[int],
    tokens: Sequence[int],
    options: Options,
) -> float:
    """−A_n log p_S(ŷ_n) for given advantages: what a policy gradient differentiates."""
    per_token = [
        advantage * energies(z, options.temperature)[token]
        for advantage, z, token in zip(advantages, student_logits, tokens, strict=True)
    ]
    return average(per_token, lengths, options.reduction)


def average(per_token: Vector, lengths: Sequence[int], reduction: str) -> float:
    """Over all tokens, or over those of a completion and then over completions."""
    if reduction == "token":
        return math.fsum(per_token) / len(per_token)
    total, start = 0.0, 0
    for length in lengths:
        if length > 0:
            total += math.fsum(per_token[start : start + length]) / length
        start += length
    return total / len(lengths)


def paint_loss(
    student_logits: Matrix,
    teacher_logits: Matrix,
    lengths: Sequence[int],
    options: Options,
    tokens: Sequence[int] | None = None,
) -> Loss:
    target, selected = targets(student_logits, teacher_logits, lengths, options)
    per_token: list[float] = []
    names = ("kl", "clipped", "unclipped_mass", "student_entropy", "teacher_entropy")
    stats: dict[str, list[float]] = {name: [] for name in (*names, "entropy_ratio")}
    for n, (z_s, z_t) in enumerate(zip(student_logits, teacher_logits, strict=True)):
        student, teacher = energies(z_s, options.temperature), energies(z_t, options.temperature)
        terms = summands(target[n], student, options.divergence, tokens[n] if tokens else None)
        value, factors = clipped(terms, options)
        per_token.append(value)
        kept = [math.exp(-p) * factor for p, factor in zip(target[n], factors, strict=True)]
        stats["kl"].append(math.fsum(terms))
        stats["clipped"].append(float(min(factors) < 1))
        stats["unclipped_mass"].append(math.fsum(kept))
        stats["student_entropy"].append(entropy(student))
        stats["teacher_entropy"].append(entropy(teacher))
        stats["entropy_ratio"].append(ratio(entropy(teacher), entropy(student)))
    stats["selected"] = [float(chosen) for chosen in selected]
    return Loss(average(per_token, lengths, options.reduction), per_token, stats)
