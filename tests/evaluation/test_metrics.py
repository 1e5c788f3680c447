"""The figures of an evaluation, and whether their intervals cover what they say."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.evaluation.intervals import (
    SHARE,
    bootstrap,
    compare_paired,
    compare_seeds,
    holm,
    is_comparable,
    over_seeds,
    p_value_over_seeds,
    sign_flip,
    students_t,
)
from paint.evaluation.metrics import (
    GradedSamples,
    avg_at_k,
    compute_metrics,
    maj_at_k,
    pass_at_k,
    per_problem,
)
from reports import graded_samples, of_rewards

RUNS = 1000
ANY = (-math.inf, math.inf)


def graded(correct: np.ndarray) -> GradedSamples:
    return graded_samples(correct, votes=np.where(correct, 0, 1), unboxed=np.zeros_like(correct))


def simulated(rng: np.random.Generator, skills: np.ndarray, k: int) -> np.ndarray:
    """A grader of known accuracy: every sample of a problem is right with that problem's chance."""
    return rng.random((len(skills), k)) < skills[:, None]


# Coverage: an interval of a simulated evaluation holds the truth at least 93 times in 100, of 1,000
# runs. (The standard error of such a share is 0.7 %.) Skills are as spread as those of real models
# on competition problems, and then so skewed that most problems are always solved. Most of them are
# slow: exact cases hold the formulas (Clopper and Pearson, the textbook's t, enumerated flips).


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problems", "a", "b"), [(30, 2, 0.2), (30, 0.5, 0.5), (30, 0.1, 3), (60, 0.2, 2)]
)
def test_avg_at_k_and_pass_at_k_intervals_cover_truth(problems: int, a: float, b: float) -> None:
    tries = (1, 2, 4, 12)
    rng, hits = np.random.default_rng(11), np.zeros(4)
    truths = [1 - math.prod((b + i) / (a + b + i) for i in range(j)) for j in tries]
    for _ in range(RUNS):
        correct = simulated(rng, rng.beta(a, b, size=problems), 12)
        intervals = [bootstrap([pass_at_k(correct, j)], bounds=SHARE) for j in tries]
        hits += [x.low <= truth <= x.high for x, truth in zip(intervals, truths, strict=True)]
    assert hits.min() / RUNS >= 0.93


SHARES = st.lists(st.sampled_from([i / 12 for i in range(13)]), min_size=1, max_size=40)


@settings(max_examples=40)
@given(SHARES)
def test_bootstrap_interval_contains_mean_and_mirrors(shares: list[float]) -> None:
    x = np.array(shares)
    solved, unsolved = bootstrap([x], bounds=SHARE), bootstrap([1 - x], bounds=SHARE)
    assert 0 <= solved.low <= solved.mean <= solved.high <= 1
    assert (1 - unsolved.high, 1 - unsolved.low) == pytest.approx((solved.low, solved.high))
    gain, loss = (bootstrap([d], bounds=(-1, 1), reached=False) for d in (x, -x))
    assert -1 <= gain.low <= gain.mean <= gain.high <= 1
    assert (-loss.high, -loss.low) == pytest.approx((gain.low, gain.high))


@pytest.mark.parametrize("values", [0, 1, 7, 29, 30])
def test_bootstrap_interval_of_binary_values_is_clopper_pearson(values: int) -> None:
    x = np.array([1.0] * values + [0.0] * (30 - values))
    interval = bootstrap([x], bounds=SHARE)

    def more(chance: float, least: int) -> float:
        """P(at least so many of 30)."""
        counts = range(least, 31)
        return sum(math.comb(30, c) * chance**c * (1 - chance) ** (30 - c) for c in counts)

    if values > 0:
        assert more(interval.low, values) == pytest.approx(0.025, abs=0.003)
    if values < 30:
        assert 1 - more(interval.high, values + 1) == pytest.approx(0.025, abs=0.003)
    assert (interval.low == 0, interval.high == 1) == (values == 0, values == 30)


@pytest.mark.slow
def test_macro_average_interval_covers_truth() -> None:
    rng, hits, shapes = np.random.default_rng(13), 0, [(0.5, 0.5), (0.3, 0.6), (0.5, 1.0)]
    truth = sum(a / (a + b) for a, b in shapes) / len(shapes)
    for _ in range(RUNS):
        groups = [simulated(rng, rng.beta(a, b, size=30), 12).mean(axis=1) for a, b in shapes]
        interval = bootstrap(groups, bounds=SHARE)
        hits += interval.low <= truth <= interval.high
    assert 0.93 <= hits / RUNS <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("leap", [False, True])
def test_paired_difference_interval_covers_rare_gains(leap: bool) -> None:
    """Nearly all problems are solved before, and few gain anything, or much."""
    rng, hits = np.random.default_rng(23), 0
    truth = 0.1 * 0.2 / 2.2 if leap else 0.2 * 0.4 / (2.2 * 3.2)
    for _ in range(RUNS):
        skills = rng.beta(2, 0.2, size=30)
        leapt = np.where(rng.random(30) < 0.1, 1, skills)
        better = leapt if leap else skills + 0.2 * skills * (1 - skills)
        before, after = simulated(rng, skills, 12), simulated(rng, better, 12)
        interval = compare_paired([before], [after]).difference
        hits += interval.low <= truth <= interval.high
    assert hits / RUNS >= 0.93


@pytest.mark.slow
def test_paired_difference_interval_covers_truth_and_is_narrower() -> None:
    rng, hits, widths = np.random.default_rng(14), 0, []
    for _ in range(RUNS):
        skills = rng.beta(0.5, 0.5, size=30)
        better = np.clip(skills + 0.2 * skills * (1 - skills), 0, 1)
        before, after = simulated(rng, skills, 12), simulated(rng, better, 12)
        interval = compare_paired([before], [after]).difference
        hits += interval.low <= 0.2 * 0.125 <= interval.high  # E[p(1-p)] of Beta(0.5, 0.5) is 1/8
        alone = avg_at_k(after)
        widths.append((interval.high - interval.low) / (alone.high - alone.low))
    assert 0.93 <= hits / RUNS <= 0.99
    assert np.mean(widths) < 0.5


@pytest.mark.slow
def test_sign_flip_false_positive_rate_matches_level() -> None:
    rng, rejected = np.random.default_rng(15), 0
    for _ in range(RUNS):
        skills = rng.beta(0.5, 0.5, size=30)
        before, after = simulated(rng, skills, 12), simulated(rng, skills, 12)
        rejected += int(sign_flip([after.mean(axis=1) - before.mean(axis=1)]) <= 0.05)
    # Twelfths tie often, and ties count against it: a little less than 5 %.
    assert 0.02 <= rejected / RUNS <= 0.06


def test_sign_flip_p_value_matches_enumeration() -> None:
    differences = np.array([0.5, 0.25, -0.125, 0.75, 0.0, 0.25, 0.5])
    flips = 2 * ((np.arange(2**7)[:, None] >> np.arange(7)) & 1) - 1
    exact = (abs(flips @ differences) >= differences.sum() - 1e-12).mean()
    assert sign_flip([differences]) == pytest.approx(exact, abs=0.01)
    assert sign_flip([np.zeros(5)]) == 1.0
    assert sign_flip([np.ones(40)]) == pytest.approx(1 / 10_001)


@pytest.mark.slow
@pytest.mark.parametrize("problems", [30, 100])
def test_detectable_difference_has_eighty_percent_power(problems: int) -> None:
    rng, skills = np.random.default_rng(16), np.random.default_rng(17).beta(0.5, 0.5, size=3000)
    gain = {30: 0.66, 100: 0.34}[problems]
    better = skills + gain * skills * (1 - skills)
    whole = compare_paired([simulated(rng, skills, 12)], [simulated(rng, better, 12)])
    assert whole.detectable is not None
    # The detectable difference falls with the root of the number; this gain is about that large.
    reach = (students_t(problems - 1) + students_t(problems - 1, 0.6)) / (1.959964 + 0.841621)
    expected = whole.detectable * math.sqrt(3000 / problems) * reach
    assert (better - skills).mean() == pytest.approx(expected, rel=0.03)

    found, estimates = 0, []
    for run in range(400):
        chosen = np.random.default_rng(run).integers(3000, size=problems)
        a, b = simulated(rng, skills[chosen], 12), simulated(rng, better[chosen], 12)
        comparison = compare_paired([a], [b])
        found += comparison.p_value <= 0.05
        estimates.append(comparison.detectable)
    assert 0.74 <= found / 400 <= 0.86
    assert np.mean(np.array(estimates, dtype=float)) == pytest.approx(expected, rel=0.05)


def test_detectable_difference_over_benchmarks_follows_sizes() -> None:
    rng = np.random.default_rng(17)
    before = [rng.random((n, 12)) < 0.4 for n in (30, 90)]
    after = [rng.random((n, 4)) < 0.6 for n in (30, 90)]
    comparison = compare_paired(before, after)
    differences = [b.mean(axis=1) - a.mean(axis=1) for a, b in zip(before, after, strict=True)]
    assert comparison.difference.mean == pytest.approx(np.mean([d.mean() for d in differences]))
    one, two = (d.var(ddof=1) / len(d) for d in differences)
    freedom = (one + two) ** 2 / (one**2 / 29 + two**2 / 89)
    errors = students_t(freedom) + students_t(freedom, 0.6)
    assert comparison.detectable == pytest.approx(errors * math.sqrt(one + two) / 2)
    # A sign flip turns a problem's difference with its weight in the macro average.
    lone = [np.array([0.5]), np.zeros(9)]
    assert sign_flip(lone) == 1.0
    assert sign_flip([np.full(3, 0.5), np.full(30, -0.05)]) == pytest.approx(0.25, abs=0.03)


def test_detectable_difference_without_spread_is_none() -> None:
    correct = np.array([[True, False], [False, True], [True, True]])
    same = compare_paired([correct], [correct])
    assert (same.difference.mean, same.p_value, same.detectable) == (0, 1.0, None)
    assert compare_paired([correct[:1]], [correct[1:2]]).detectable is None
    assert compare_paired([correct, correct[:1]], [correct[::-1], correct[:1]]).detectable is None
    few = np.random.default_rng(18).random((2, 9, 12)) < 0.5
    assert compare_paired([few[0]], [few[1]]).detectable is None  # of fewer than ten problems
    everywhere = compare_paired([np.zeros((5, 4), dtype=bool)], [np.ones((5, 4), dtype=bool)])
    assert everywhere.detectable is None
    assert everywhere.difference.low < 0
    with pytest.raises(ValueError, match="same problems"):
        compare_paired([correct], [correct[1:]])


def test_bootstrap_few_problems_widen_interval_to_unseen_ones() -> None:
    # Three nearly equal differences: an unseen problem may still differ by 1, to either side.
    for n in (3, 9):
        d = np.full(n, 0.25)
        d[0] = 1 / 3
        interval = bootstrap([d], bounds=(-1, 1), reached=False)
        unseen = 1 - 0.025 ** (1 / n)
        assert interval.low == pytest.approx(d.mean() - (1 + d.mean()) * unseen, abs=0.02)
        assert interval.high == pytest.approx(d.mean() + (1 - d.mean()) * unseen, abs=0.02)
    ten = bootstrap([np.array([0.25] * 9 + [1 / 3])], bounds=(-1, 1), reached=False)
    assert 0.1 < ten.low < ten.high < 0.31
    three = avg_at_k(np.array([[True, False] * 6, [True, False] * 6, [True] * 7 + [False] * 5]))
    assert three.low < 0.2
    assert three.high > 0.8
    # Nor do a few lengths say how long the next one is.
    lengths = np.array([90.0, 100.0, 110.0])
    assert bootstrap([lengths], bounds=(0, math.inf)).high == math.inf
    many = bootstrap([np.tile(lengths, 20)], bounds=(0, math.inf))
    assert 90 < many.low < 100 < many.high < 110


def test_bootstrap_matches_textbook_on_normal_data() -> None:
    x = np.random.default_rng(1).normal(size=400)
    interval = bootstrap([x], bounds=ANY)
    error = x.std() / np.sqrt(400)
    # Half an unseen problem, as far out as the farthest, moves each end by about 0.08 errors.
    assert interval.low == pytest.approx(x.mean() - 2.04 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(x.mean() + 2.04 * error, abs=0.1 * error)
    assert interval == bootstrap([x], bounds=ANY)


def test_bootstrap_groups_are_resampled_separately() -> None:
    x = np.random.default_rng(2).normal(size=50)
    one, two = bootstrap([x], bounds=ANY), bootstrap([x, x], bounds=ANY)
    # Resampled together they would be as uncertain as one of them; apart, less so by the square
    # root of two.
    assert (two.high - two.low) / (one.high - one.low) == pytest.approx(1 / math.sqrt(2), abs=0.03)


def test_bootstrap_contains_mean_for_small_skewed_groups() -> None:
    lone = np.zeros(30)
    lone[0] = 1.0
    two, alike, three = np.array([0.25, 0.5]), np.array([0.5, 0.51]), np.array([0.0, 0.0, 1.0])
    pairs = [[two, lone], [alike, lone], [alike, 1 - lone], [alike, 1 - three]]
    for groups in [[two], [lone], [three], *pairs]:
        interval = bootstrap(groups, bounds=SHARE)
        assert 0 <= interval.low < interval.mean < interval.high <= 1


def test_avg_at_k_identical_problems_keep_uncertainty() -> None:
    interval = avg_at_k(np.ones((30, 12), dtype=bool))
    # 11.6 % of unsolved problems stay unseen in 30 with a chance of 2.5 %.
    assert interval.low**30 == pytest.approx(0.025, abs=0.003)
    assert interval.mean == 1.0
    assert interval.high == pytest.approx(1.0)
    half = avg_at_k(np.array([[True, False]]))
    assert half.mean == 0.5
    assert half.low == pytest.approx(0.0125, abs=0.002)
    assert half.high == pytest.approx(0.9875, abs=0.002)
    tokens = compute_metrics({"x": graded(np.ones((2, 2), dtype=bool))})["x"]["completion_tokens"]
    assert (tokens.mean, tokens.high) == (7, math.inf)
    with pytest.raises(ValueError, match="at least one problem"):
        avg_at_k(np.zeros((0, 3), dtype=bool))


# Coverage over seeds: a training moves all problems its own way (``sd`` in Avg@k), and each problem
# a little besides.


def trained(
    rng: np.random.Generator, skills: np.ndarray, seeds: int, sd: float, gain: float = 0.0
) -> np.ndarray:
    own = rng.normal(size=(seeds, 1)) * sd / (1 / 8) + rng.normal(size=(seeds, len(skills))) * 0.2
    # E[p(1-p)] of Beta(0.5, 0.5) is 1/8.
    moved = skills + np.clip(gain + own, -0.8, 0.8) * skills * (1 - skills)
    return np.asarray(rng.binomial(12, moved) / 12)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "sd"), [(3, 0.0), (3, 0.02), (5, 0.02)])
def test_over_seeds_interval_covers_truth(seeds: int, sd: float) -> None:
    rng, hits = np.random.default_rng(18), 0
    for _ in range(RUNS // 2):
        interval = over_seeds(trained(rng, rng.beta(0.5, 0.5, size=100), seeds, sd))
        hits += interval.low <= 0.5 <= interval.high
    assert 0.93 <= hits / (RUNS // 2) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "sd"), [(3, 0.02), (5, 0.02), (5, 0.0)])
def test_compare_seeds_covers_truth_and_problems_do_not(seeds: int, sd: float) -> None:
    rng, hits, alone, runs = np.random.default_rng(19), 0, 0, RUNS // 2
    for _ in range(runs):
        skills = rng.beta(0.5, 0.5, size=100)
        own = sd / math.sqrt(2)
        before, after = (trained(rng, skills, seeds, own, gain) for gain in (0.0, 0.2))
        interval = compare_seeds(before, after)
        problems = bootstrap([(after - before).mean(axis=0)], bounds=(-1, 1), reached=False)
        hits += interval.low <= 0.2 / 8 <= interval.high
        alone += problems.low <= 0.2 / 8 <= problems.high
    assert hits / runs >= 0.93
    # Where seeds differ, problems alone fall short by far; where they do not, the interval is
    # somewhat too wide.
    assert (alone / runs < 0.85) == (sd > 0)


def test_over_seeds_matches_textbook() -> None:
    x = np.random.default_rng(20).normal(size=(4, 50)) + np.array([[0.0], [0.1], [0.2], [0.4]])
    interval = over_seeds(x, bounds=ANY, reached=False)
    problems, seeds = x.mean(axis=0).var(ddof=1) / 50, x.mean(axis=1).var(ddof=1) / 4
    freedom = (problems + seeds) ** 2 / (problems**2 / 49 + seeds**2 / 3)
    reach = students_t(freedom) * math.sqrt(problems + seeds)
    assert interval.mean == pytest.approx(x.mean())
    assert interval.low == pytest.approx(x.mean() - reach, abs=0.03 * reach)
    assert interval.high == pytest.approx(x.mean() + reach, abs=0.03 * reach)
    assert interval == over_seeds(x, bounds=ANY, reached=False)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706205), (2, 4.302653), (2.5, 3.574655), (4, 2.776445), (9, 2.262157)]
)
def test_students_t_matches_tables(freedom: float, t: float) -> None:
    assert students_t(freedom) == pytest.approx(t, rel=1e-6)


def test_over_seeds_one_seed_equals_bootstrap_over_problems() -> None:
    rng = np.random.default_rng(21)
    one, other = (rng.binomial(12, 0.3, size=(1, 40)) / 12 for _ in range(2))
    assert over_seeds(one) == bootstrap([one[0]], bounds=SHARE)
    gain = bootstrap([other[0] - one[0]], bounds=(-1, 1), reached=False)
    assert compare_seeds(one, other) == gain
    # The same training twice says no more than once.
    assert over_seeds(np.tile(one, (3, 1))) == over_seeds(one)


def test_compare_seeds_is_paired_and_antisymmetric() -> None:
    rng = np.random.default_rng(22)
    before = rng.binomial(12, rng.beta(0.5, 0.5, size=60), size=(3, 60)) / 12
    after = np.clip(before + rng.integers(0, 3, size=(3, 60)) / 12, 0, 1)
    forth, back = compare_seeds(before, after), compare_seeds(after, before)
    assert forth.mean == pytest.approx((after - before).mean())
    assert (back.mean, back.low, back.high) == pytest.approx(
        (-forth.mean, -forth.high, -forth.low), abs=2e-4
    )
    assert forth.low > 0
    alone = over_seeds(after)
    # What makes problems hard has cancelled.
    assert forth.high - forth.low < (alone.high - alone.low) / 3
    itself = compare_seeds(before, before)
    assert itself.mean == 0.0
    assert itself.low == pytest.approx(-itself.high)
    shifted = over_seeds(before + 0.25, bounds=(0.25, 1.25))
    plain = over_seeds(before)
    assert (shifted.low - 0.25, shifted.high - 0.25) == pytest.approx((plain.low, plain.high))
    with pytest.raises(ValueError, match=r"\(3, 60\).*\(2, 60\)"):
        compare_seeds(before, after[:2])


def test_p_value_over_seeds_matches_sign_flip_or_textbook_t() -> None:
    rng = np.random.default_rng(23)
    before, after = rng.binomial(12, 0.5, size=(2, 3, 40)) / 12
    one = p_value_over_seeds(before[:1], after[:1])
    assert one == sign_flip([after[0] - before[0]])
    assert p_value_over_seeds(after, before) == p_value_over_seeds(before, after)
    assert p_value_over_seeds(before, before) == 1
    # Equal on all problems, three seeds: t = 0.5 / (0.1 / sqrt 3) with two degrees of freedom.
    rigid = np.array([[0.4] * 30, [0.5] * 30, [0.6] * 30])
    assert p_value_over_seeds(np.zeros((3, 30)), rigid) == pytest.approx(0.013072, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
def test_p_value_over_seeds_rejects_equal_methods_rarely(seeds: int) -> None:
    rng, hits, runs = np.random.default_rng(31), 0, RUNS // 4
    for _ in range(runs):
        skills = rng.beta(0.5, 0.5, size=100)
        before, after = (trained(rng, skills, seeds, 0.02 / math.sqrt(2)) for _ in range(2))
        hits += p_value_over_seeds(before, after) <= 0.05
    assert 0.01 <= hits / runs <= 0.07


def test_holm_matches_hand_computation() -> None:
    # Times 3, 2 and 1 in order of size, never less than the one before, at most 1.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.6]) == [1, 1]
    assert holm([0.02]) == [0.02]


def test_over_seeds_identical_seeds_keep_uncertainty() -> None:
    one = over_seeds(np.ones((5, 30)))
    assert (one.mean, one.high) == (1.0, 1.0)
    assert one.low**30 == pytest.approx(0.025, abs=0.003)
    # One problem says next to nothing, however many seeds answered it.
    lone = over_seeds(np.array([[0.25], [0.5], [0.75]]))
    assert (lone.mean, lone.low, lone.high) == pytest.approx((0.5, 0.0125, 0.9875), abs=0.002)
    # Every problem gains a twelfth, though twelfths are rounded: there is nothing to resample.
    count = np.arange(36).reshape(3, 12) % 11
    interval = compare_seeds(count / 12, (count + 1) / 12)
    unseen = 1 - 0.025 ** (1 / 12)
    assert interval.low == pytest.approx(1 / 12 - (1 + 1 / 12) * unseen, abs=0.01)
    rigid = over_seeds(np.array([[0.4] * 30, [0.5] * 30, [0.6] * 30]))
    assert rigid.high - 0.5 > 4.302653 * 0.1 / math.sqrt(3)
    with pytest.raises(ValueError, match="at least one problem"):
        over_seeds(np.zeros((3, 0)))


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_matches_enumeration(row: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(row)))
    chosen = list(combinations(row, k))
    assert pass_at_k(np.array([row]), k)[0] == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert math.isnan(pass_at_k(np.array([row]), len(row) + 1)[0])


@pytest.mark.parametrize(
    ("votes", "share"),
    [
        ([0, 0, 1, 2], 1.0),  # two right ones outvote single wrong ones
        ([0, 1, 1, -1], 0.0),
        ([0, 0, 2, 2], 0.5),  # a tie is drawn by lot
        ([0, 1, 2, -1], 1 / 3),
        ([0, -1, -1, -1], 1.0),  # no answer is no vote
        ([-1, -1, -1, -1], 0.0),
    ],
)
def test_maj_at_k_shares_ties(votes: list[int], share: float) -> None:
    row = np.array([votes])
    assert maj_at_k(row, row == 0)[0] == pytest.approx(share)


def test_macro_average_weighs_benchmarks_equally() -> None:
    easy, hard = np.ones((10, 4), dtype=bool), np.zeros((90, 4), dtype=bool)
    table = compute_metrics({"easy": graded(easy), "hard": graded(hard)})
    assert table["macro"]["avg_at_k"].mean == 0.5
    assert set(table["macro"]) == set(per_problem(graded(easy)))
    mixed = compute_metrics({"four": graded(easy), "two": graded(hard[:, :2])})
    assert "pass_at_4" in mixed["four"]
    assert "pass_at_4" not in mixed["macro"]
    assert set(compute_metrics({"easy": graded(easy)})) == {"easy"}


def test_metrics_leave_out_samples_and_problems_without_a_reward() -> None:
    nan = math.nan
    rewards = np.array([[1.0, nan, 0.5, 1.0], [nan, nan, nan, nan], [0.0, 0.0, nan, nan]])
    parts = {"one": np.array([[nan] * 4, [0.25] * 4, [nan, 1.0, nan, nan]])}
    part = of_rewards(rewards, truncated=np.ones((3, 4), dtype=bool), parts=parts)
    found = compute_metrics({"set": part})["set"]
    assert found["reward"].mean == pytest.approx((2.5 / 3 + 0) / 2)
    assert found["avg_at_k"].mean == pytest.approx((2 / 3 + 0) / 2)
    assert found["rewards/one"].mean == pytest.approx((0.25 + 1) / 2)
    # Of three samples, two are right; of c, too few are graded for pass@4, as of a.
    assert found["pass_at_2"].mean == pytest.approx((1 + 0) / 2)
    assert "pass_at_4" not in found
    assert found["truncated_frac"].mean == 1
    assert {name: len(column) for name, column in per_problem(part).items()} == dict.fromkeys(
        per_problem(part), 3
    )
    nothing = replace(part, rewards=np.full((3, 4), nan), parts={})
    assert not {"reward", "avg_at_k", "pass_at_2"} & compute_metrics({"set": nothing})["set"].keys()


def test_paired_comparison_is_of_problems_that_both_sides_have() -> None:
    nan = math.nan
    before = np.array([[0.0, 1.0], [nan, 0.0], [nan, nan], [1.0, 1.0]])
    after = np.array([[1.0, 1.0], [1.0, nan], [1.0, 1.0], [nan, nan]])
    found = compare_paired([before], [after])
    alone = compare_paired([np.array([[0.5], [0.0]])], [np.array([[1.0], [1.0]])])
    assert found == alone
    assert found.difference.mean == pytest.approx(0.75)
    assert is_comparable(before, after)
    assert not is_comparable(before[2:3], after[2:3])
