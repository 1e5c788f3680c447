"""The figures of an evaluation, and how sure they are."""

import numpy as np
import pytest

from paint.data import Problem
from paint.evaluate import avg_at_k, bootstrap, evaluate, paired_difference
from paint.grading import is_correct
from paint.policy import Policy
from paint.rollout import LocalEngine, Sampling


def test_avg_at_k_is_the_mean_over_problems_and_its_interval_knows_the_problems() -> None:
    correct = np.array([[True] * 12, [False] * 12, [True, False] * 6, [True] * 12])
    found = avg_at_k(correct)
    assert found.mean == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    # Four problems, whatever their 48 samples: the interval is as wide as resampling four numbers makes it.
    assert found.low <= 0.25
    assert found.high == 1.0


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        skill = rng.beta(2, 2, size=60)
        found = avg_at_k(rng.random((60, 12)) < skill[:, None])
        hits += found.low <= 0.5 <= found.high
    assert 0.91 <= hits / 300 <= 0.98


def test_a_paired_difference_does_not_pay_for_the_spread_of_the_problems() -> None:
    easy = np.arange(40) / 40
    before = np.random.default_rng(0).random((40, 12)) < 0.8 * easy[:, None]
    after = np.random.default_rng(0).random((40, 12)) < np.minimum(1, 0.8 * easy[:, None] + 0.1)
    paired = paired_difference(before, after)
    assert paired.mean == pytest.approx(after.mean() - before.mean())
    assert paired.low > 0
    assert paired.high - paired.low < (avg_at_k(after).high - avg_at_k(after).low) / 2
    with pytest.raises(ValueError, match="same problems"):
        paired_difference(before, after[1:])


def test_the_bootstrap_is_the_textbooks() -> None:
    x = np.random.default_rng(1).normal(size=400)
    found = bootstrap(x)
    error = x.std() / np.sqrt(400)
    assert found.low == pytest.approx(x.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(x.mean() + 1.96 * error, abs=0.1 * error)
    assert found == bootstrap(x)


def test_an_evaluation_holds_k_answers_a_problem_in_order(policy: Policy, problems: list[Problem]) -> None:
    engine = LocalEngine(policy, batch_size=10)
    sampling = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=80)
    found = evaluate(policy, engine, problems[:5], samples=3, sampling=sampling, thinking=False)
    assert found.correct.shape == (5, 3)
    for problem, texts, verdicts in zip(problems[:5], found.texts, found.correct, strict=True):
        assert [is_correct(text, problem.answer) for text in texts] == verdicts.tolist()
        assert all(text.startswith("We start at") for text in texts)
    assert found.correct.any()
    one = evaluate(policy, engine, problems[3:4], samples=3, sampling=sampling, thinking=False)
    assert one.texts[0] == found.texts[3]
