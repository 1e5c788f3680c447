"""The nine results of the paper's appendix, each on cases small enough to enumerate, in float64.

docs/concepts/theory.md states each, and how far this checks it. Where our code computes what a
result is about, the test uses that code.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paint.objective.loss import (
    clipped_divergence,
    entropy,
    entropy_ratio,
    interpolate,
    select_positions,
)
from paint.objective.masking import mask_ratio


@pytest.fixture(params=range(5))
def draw(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Probabilities of this shape, all positive, by seed; the last axis sums to 1."""
    generator = torch.Generator().manual_seed(request.param)

    def draw(*shape: int, sharpness: float = 2.0) -> Tensor:
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        return logits.softmax(-1)

    return draw


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """The objective's own forward KL, without its clip."""
    return clipped_divergence(p.log(), q.log(), divergence="forward_kl", clip_mode="none")


# Autoregressive-Gibbs correspondence (prop:arm_gibbs_correspondence)

ACTIONS, HORIZON = 3, 4
TRAJECTORIES = list(itertools.product(range(ACTIONS), repeat=HORIZON))


def test_policy_is_gibbs_distribution_of_its_energy(draw: Callable[..., Tensor]) -> None:
    policy = {state: draw(ACTIONS) for state in states()}

    log_policy = {state: p.log() for state, p in policy.items()}
    energy = torch.stack([-sum_along(t, log_policy) for t in TRAJECTORIES])
    steps = [torch.stack([policy[t[:i]][t[i]] for i in range(HORIZON)]) for t in TRAJECTORIES]
    probability = torch.stack(steps).prod(1)
    assert_equal((-energy).exp().sum(), torch.ones_like(energy[0]))
    assert_equal((-energy).softmax(0), probability)


def test_additive_energy_is_policy_through_soft_values(draw: Callable[..., Tensor]) -> None:
    costs = {state: 3 * draw(ACTIONS).logit() for state in states()}

    # V(s) = log sum_a exp(V(s') - c(s, a)), from the leaves, where it is 0.
    values = {t: torch.zeros((), dtype=torch.float64) for t in TRAJECTORIES}
    for state in sorted(states(), key=len, reverse=True):
        after = torch.stack([values[(*state, a)] for a in range(ACTIONS)])
        values[state] = (after - costs[state]).logsumexp(0)
    log_probs = {
        state: torch.stack([values[(*state, a)] - values[state] for a in range(ACTIONS)]) - cost
        for state, cost in costs.items()
    }
    for values_of_state in log_probs.values():
        assert_equal(values_of_state.exp().sum(), torch.ones_like(values[()]))
    energy = torch.stack([sum_along(t, costs) for t in TRAJECTORIES])
    assert_equal(values[()], (-energy).logsumexp(0))
    of_policy = torch.stack([sum_along(t, log_probs) for t in TRAJECTORIES])
    assert_equal((-energy).log_softmax(0), of_policy)


def states() -> list[tuple[int, ...]]:
    """Every state before the end: the actions so far."""
    return [s for depth in range(HORIZON) for s in itertools.product(range(ACTIONS), repeat=depth)]


def sum_along(trajectory: tuple[int, ...], values: dict[tuple[int, ...], Tensor]) -> Tensor:
    """What each step of a trajectory is worth, added up."""
    return torch.stack([values[trajectory[:i]][trajectory[i]] for i in range(HORIZON)]).sum()


# Monotonicity of the optimal adaptive mask ratio (thm:appendix_adaptive_mask_monotonicity)

BETA, LAMBDA = 1.0, 0.7


def test_optimal_mask_ratio_falls_with_alignment_error(draw: Callable[..., Tensor]) -> None:
    sharp, diffuse = draw(8, sharpness=4.0), draw(8, sharpness=0.5)

    # Noises for which the best ratio lies inside: those between the slopes of H at its ends.
    slopes = [float(entropy_slope(sharp, diffuse, ratio)) for ratio in (0.9, 0.1)]
    noises = torch.linspace(slopes[0], slopes[1], 9, dtype=torch.float64) * BETA / LAMBDA
    best = [best_ratio(sharp, diffuse, float(noise)) for noise in noises]

    assert all(later < earlier for earlier, later in itertools.pairwise(best))
    for noise, ratio in zip(noises, best, strict=True):
        step = 1e-5
        above, below = (best_ratio(sharp, diffuse, float(noise) + d) for d in (step, -step))
        measured = (above - below) / (2 * step)
        mixed = (1 - ratio) * sharp + ratio * diffuse
        curvature = -((diffuse - sharp) ** 2 / mixed).sum()
        assert measured == pytest.approx(float(LAMBDA / (BETA * curvature)), rel=1e-4)
        others = [objective(sharp, diffuse, float(noise), other / 100) for other in range(100)]
        assert objective(sharp, diffuse, float(noise), ratio) > max(others) - 1e-12


def test_gradient_noise_is_linear_in_mask_ratio(draw: Callable[..., Tensor]) -> None:
    sharp, diffuse, student = draw(8), draw(8), draw(8)
    # The score of a softmax over its own logits: the gradient of log p(i) is e_i - p.
    squared = (torch.eye(8, dtype=torch.float64) - student).square().sum(-1)
    noise = (diffuse * squared).sum() - (sharp * squared).sum()
    for ratio in (0.0, 0.3, 0.99):
        mixed = (1 - ratio) * sharp + ratio * diffuse
        expected = (sharp * squared).sum() + ratio * noise
        assert_equal((mixed * squared).sum(), expected)


def test_mask_ratio_rises_with_overlap_as_in_theorem() -> None:
    ratios = [mask_ratio(overlap / 10, wrong=0.3, correct=0.5) for overlap in range(11)]
    assert all(more > less for less, more in itertools.pairwise(ratios))


def entropy_slope(sharp: Tensor, diffuse: Tensor, ratio: float) -> Tensor:
    """H'(rho) = -sum (q1 - q0) log q_rho: the constant of the derivative sums to 0."""
    mixed = (1 - ratio) * sharp + ratio * diffuse
    return -((diffuse - sharp) * mixed.log()).sum()


def best_ratio(sharp: Tensor, diffuse: Tensor, noise: float) -> float:
    """Where beta H'(rho) = lambda epsilon, by bisection: H' falls."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if BETA * entropy_slope(sharp, diffuse, middle) > LAMBDA * noise:
            low = middle
        else:
            high = middle
    return low


def objective(sharp: Tensor, diffuse: Tensor, noise: float, ratio: float) -> float:
    mixed = (1 - ratio) * sharp + ratio * diffuse
    return float(BETA * entropy(mixed.log()) - LAMBDA * ratio * noise)


# Precision-weighted geometric calibration (prop:precision_weighted_calibration)
@pytest.mark.parametrize(("sigma_student", "sigma_teacher"), [(1.0, 1.0), (3.0, 0.5), (0.2, 2.0)])
def test_interpolate_is_map_estimate_of_two_noisy_energies(
    draw: Callable[..., Tensor], sigma_student: float, sigma_teacher: float
) -> None:
    student, teacher = draw(7), draw(7)
    energies = (-student.log(), -teacher.log())

    # The maximum of the log posterior, found from its derivative alone.
    latent = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    squares = [
        ((energy - latent) ** 2 / (2 * sigma**2)).sum()
        for energy, sigma in zip(energies, (sigma_student, sigma_teacher), strict=True)
    ]
    log_posterior = -torch.stack(squares).sum()
    (slope,) = torch.autograd.grad(log_posterior, latent)
    curvature = -(sigma_student**-2 + sigma_teacher**-2)
    found = (latent - slope / curvature).detach()  # a quadratic: one step of Newton's is exact

    k = sigma_teacher**2 / (sigma_teacher**2 + sigma_student**2)
    ours = interpolate(teacher.log(), student.log(), k)
    assert_equal(ours, (-found).log_softmax(0))
    assert_equal(ours.exp().sum(), torch.ones_like(ours[0]))


# Entropy-ratio sparse selection (prop:entropy_ratio_sparse_selection)
@pytest.mark.parametrize(("k", "gamma"), [(0.03, 1.0), (0.5, 2.0), (0.97, 0.3)])
def test_information_gain_is_gaussian_entropy_loss(k: float, gamma: float) -> None:
    energies = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    for entropy_teacher, entropy_student in [(0.2, 1.5), (1.0, 1.0), (2.5, 0.3)]:
        sigma_teacher, sigma_student = (
            entropy_teacher ** (gamma / 2),
            entropy_student ** (gamma / 2),
        )
        log_teacher = -((energies - 0.4) ** 2) / (2 * sigma_teacher**2)
        log_student = -((energies + 0.3) ** 2) / (2 * sigma_student**2)
        gained = differential_entropy(log_teacher, energies) - differential_entropy(
            (1 - k) * log_teacher + k * log_student, energies
        )
        ratio = entropy_teacher / entropy_student
        said = float(information_gain(torch.tensor(ratio).double(), k, gamma=gamma))
        assert float(gained) == pytest.approx(said, abs=1e-6)
        assert (said > 1e-12) == (ratio > 1)


def test_select_positions_is_best_of_all_subsets(draw: Callable[..., Tensor]) -> None:
    teacher, student = draw(9, 5), draw(9, 5)
    ratios = entropy_ratio(entropy(teacher.log()), entropy(student.log()))

    for size in range(1, 9):
        ours = {int(n) for n in select_positions(ratios, size / 9).nonzero()}
        for k, gamma in [(0.03, 1.0), (0.5, 2.0), (0.97, 0.3)]:
            gains = information_gain(ratios, k, gamma=gamma).tolist()
            subsets = itertools.combinations(range(9), size)
            best = max(subsets, key=lambda s: sum(gains[n] for n in s))
            assert ours == set(best)


def information_gain(ratio: Tensor, k: float, *, gamma: float) -> Tensor:
    """ΔI = ½ log(1 − k + k R^γ) in nats (paper: Eq. entropy_ratio_information_gain).

    It orders positions as the ratio R does, so the loss has no use for it.
    """
    return 0.5 * (k * ratio**gamma - k).log1p()


def differential_entropy(log_density: Tensor, grid: Tensor) -> Tensor:
    """-integral p log p of an unnormalised log density on an even grid."""
    width = grid[1] - grid[0]
    log_p = log_density - log_density.logsumexp(0) - width.log()
    return -(log_p.exp() * log_p).sum() * width


# Entropy smoothing (prop:mask_entropy_smoothing)
def test_hidden_context_raises_target_entropy(draw: Callable[..., Tensor]) -> None:
    posterior, targets = draw(6), draw(6, 5)
    mixture = posterior @ targets
    expected = (posterior * entropy(targets.log())).sum()
    assert entropy(mixture.log()) > expected

    alike = targets[:1].expand(6, 5)
    same = entropy((posterior @ alike).log())
    assert_equal(same, (posterior * entropy(alike.log())).sum())


# Forward-KL decomposition (lem:mask_kl_decomposition)
def test_expected_kl_is_mixture_kl_plus_hidden_information(draw: Callable[..., Tensor]) -> None:
    posterior, targets, student = draw(6), draw(6, 5), draw(5)
    mixture = posterior @ targets
    joint = posterior[:, None] * targets
    hidden = (joint * (joint / (posterior[:, None] * mixture)).log()).sum()

    expected = (posterior * kl(targets, student.expand(6, 5))).sum()
    assert_equal(expected, kl(mixture, student) + hidden)


# Rao-Blackwellized gradient variance (prop:mask_variance)
def test_mixture_target_has_same_gradient_and_less_variance(draw: Callable[..., Tensor]) -> None:
    contexts, blocks, tokens = 4, 6, 5
    weight, posterior = draw(contexts), draw(contexts, blocks)
    targets = draw(contexts, blocks, tokens)
    logits = draw(contexts, tokens).log().requires_grad_()

    def gradient(target: Tensor, context: int) -> Tensor:
        """Of the KL at one context, through the objective and autograd."""
        loss = clipped_divergence(
            target.log(), logits[context].log_softmax(-1), divergence="forward_kl", clip_mode="none"
        )
        return torch.autograd.grad(loss, logits)[0][context]

    each = torch.stack(
        [torch.stack([gradient(targets[c, m], c) for m in range(blocks)]) for c in range(contexts)]
    )
    blackwell = torch.stack([gradient(posterior[c] @ targets[c], c) for c in range(contexts)])

    assert_equal((posterior[..., None] * each).sum(1), blackwell)
    inside = torch.stack([covariance(each[c], posterior[c]) for c in range(contexts)])
    within = (weight[:, None, None] * inside).sum(0)
    joint = (weight[:, None] * posterior).flatten()
    difference = covariance(each.flatten(0, 1), joint) - covariance(blackwell, weight)
    assert_equal(difference, within)
    assert torch.linalg.eigvalsh(difference).min() > -1e-12
    assert difference.trace() > 1e-3


def covariance(values: Tensor, weights: Tensor) -> Tensor:
    """Of rows with these probabilities."""
    centred = values - weights @ values
    return (weights[:, None] * centred).T @ centred


# Visible-context duality (lem:visible_context_duality), optimality of suffix masking
# (thm:suffix_masking_optimality). A solution has four tokens of two kinds, an action three.

LENGTH = 4
SOLUTIONS = list(itertools.product(range(2), repeat=LENGTH))


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_lost_and_visible_information_add_up(draw: Callable[..., Tensor], budget: int) -> None:
    joint = draw(len(SOLUTIONS))[:, None] * draw(len(SOLUTIONS), 3)
    everything = information(joint, range(LENGTH))
    for visible in all_visible(budget):
        lost = conditional_information(joint, visible)
        assert_equal(lost, everything - information(joint, visible))


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_suffix_mask_is_best_when_early_tokens_are_informative(budget: int) -> None:
    """The next action repeats a token of the solution: the earlier, the likelier.

    The assumption is one: near the end of a rollout the next action is the final answer, and the
    suffix is the worst block to hide.
    """
    early, late = (losses(follows(a), budget) for a in ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]))
    assert all(later < earlier for earlier, later in itertools.pairwise(early))
    assert all(later > earlier for earlier, later in itertools.pairwise(late))


def follows(attention: list[float]) -> Tensor:
    """Joint probabilities of solution (even) and action, which repeats token i at attention[i]."""
    actions = torch.zeros(len(SOLUTIONS), 2, dtype=torch.float64)
    for row, solution in enumerate(SOLUTIONS):
        for token, weight in zip(solution, attention, strict=True):
            actions[row, token] += weight
    return actions / len(SOLUTIONS)


def losses(joint: Tensor, budget: int) -> list[float]:
    """Gamma(t): information on the action that only the block at t has."""
    return [float(conditional_information(joint, visible)) for visible in all_visible(budget)]


def all_visible(budget: int) -> list[list[int]]:
    """The tokens that are seen, for every place of the hidden block."""
    starts = range(LENGTH - budget + 1)
    return [[i for i in range(LENGTH) if not t <= i < t + budget] for t in starts]


def information(joint: Tensor, seen: list[int] | range) -> Tensor:
    """I(action; the seen tokens), in nats."""
    table = by_visible(joint, seen)
    independent = table.sum(1, keepdim=True) * table.sum(0)
    return torch.xlogy(table, table / independent).sum()


def conditional_information(joint: Tensor, seen: list[int]) -> Tensor:
    """I(action; hidden tokens | seen tokens), from its definition: a KL within each context."""
    total = torch.zeros((), dtype=torch.float64)
    for context in itertools.product(range(2), repeat=len(seen)):
        rows = [
            row
            for row, solution in enumerate(SOLUTIONS)
            if tuple(solution[i] for i in seen) == context
        ]
        block = joint[rows]
        weight = block.sum()
        inside = block / weight
        independent = inside.sum(1, keepdim=True) * inside.sum(0)
        total += weight * torch.xlogy(inside, inside / independent).nan_to_num().sum()
    return total


def by_visible(joint: Tensor, seen: list[int] | range) -> Tensor:
    """Probabilities of what is seen and the action."""
    table = torch.zeros(2 ** len(seen), joint.shape[1], dtype=torch.float64)
    for row, solution in enumerate(SOLUTIONS):
        place = sum(solution[i] << power for power, i in enumerate(seen))
        table[place] += joint[row]
    return table
