"""The rank correlation of slopes and gains."""

import math

import numpy as np
import pytest

from slope_against_gain import interval, spearman


def test_spearman_is_correlation_of_mean_ranks() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, x**3) == pytest.approx(1)
    assert spearman(x, -x) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: the covariance is 4.5, the variances 4.5 and 5.
    assert spearman(np.array([0.0, 5.0, 5.0, 6.0]), x) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(spearman(np.ones(4), x))


def test_interval_of_perfect_order_is_one() -> None:
    x = np.arange(12.0)
    assert interval(x, 2 * x) == pytest.approx((1, 1))
