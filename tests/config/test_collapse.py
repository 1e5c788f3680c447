"""Collapse warnings: bands and bounds, their words, and their history."""

import random
from collections.abc import Sequence

import pytest

from paint.config.collapse import COLLAPSE_WARNINGS, collapse_warnings, describe, warning_history
from runs import course

Rows = list[dict[str, float]]


@pytest.mark.parametrize(
    ("warning", "first", "inside", "outside"),
    [
        ("truncated", 0.1, 0.34, 0.36),
        ("no_answer", 0.0, 0.24, 0.26),
        ("repetition", 0.0, 0.09, 0.11),
        ("longer", 100.0, 199.0, 201.0),
        ("shorter", 100.0, 51.0, 49.0),
        ("entropy_low", 0.4, 0.11, 0.09),
        ("entropy_high", 0.4, 0.79, 0.81),
        ("kl", 0.1, 0.29, 0.31),
        ("kl", 0.0, 0.049, 0.051),
        ("overlap", 0.6, 0.31, 0.29),
        ("clipped", 0.02, 0.21, 0.23),
        ("drift", 0.1, 0.59, 0.61),
    ],
)
def test_collapse_warnings_out_of_band_is_named(
    warning: str, first: float, inside: float, outside: float
) -> None:
    metric = COLLAPSE_WARNINGS[warning].metric
    assert not collapse_warnings(course(metric, [first] + 3 * [inside]))
    found = collapse_warnings(course(metric, [first, inside] + 3 * [outside]))
    assert list(found) == [warning]
    assert found[warning] == pytest.approx((outside, first))


@pytest.mark.parametrize(
    ("warning", "hopeless", "better"),
    [
        ("all_truncated", 0.9, 0.89),
        ("all_unanswered", 0.95, 0.85),
        ("equal_rewards", 1.0, 0.99),
        ("no_tool_call", 0.0, 0.01),
    ],
)
def test_collapse_warnings_of_a_hopeless_first_step_come_with_it(
    warning: str, hopeless: float, better: float
) -> None:
    metric = COLLAPSE_WARNINGS[warning].metric
    assert collapse_warnings(course(metric, [hopeless])) == {warning: (hopeless, hopeless)}
    assert not collapse_warnings(course(metric, [better]))
    # It goes away with the mean of the last steps, and comes again.
    assert warning not in collapse_warnings(course(metric, [hopeless, 0.5]))
    [first, again] = warning_history(course(metric, [hopeless, 0.5, *[hopeless] * 3]))
    assert (first["step"], again["step"]) == (1, 5)
    text = describe(warning, hopeless, hopeless)
    assert text.startswith(f"{metric} {hopeless:g}: ")
    assert "learning_rate" not in text


def clipped_rows(losses: Sequence[float], kls: Sequence[float], **further: float) -> Rows:
    pairs = zip(losses, kls, strict=True)
    rows = enumerate(pairs, start=1)
    return [{"step": i, "loss": loss, "kl": kl, **further} for i, (loss, kl) in rows]


def test_negative_loss_is_named_at_the_first_step_at_which_kl_has_risen() -> None:
    losses, kls = [0.02, -0.01, -0.01, 0.01], [0.2, 0.1, 0.3, 0.3]
    [found] = warning_history(clipped_rows(losses, kls, clip_frac=0.1))
    assert (found["step"], found["warning"], found["metric"]) == (3, "negative_loss", "loss")
    assert found["text"].endswith(", or lower train.learning_rate")
    assert 'set objective.clip_mode "huber"' in found["text"]
    assert not collapse_warnings(clipped_rows(losses, kls, clip_frac=0.1))  # the last is above 0


@pytest.mark.parametrize("further", [{"clip_frac": 0.0}, {}, {"clip_frac": 0.1, "advantage": 0.0}])
def test_negative_loss_without_a_clip_or_with_a_reward_in_the_loss_says_nothing(
    further: dict[str, float],
) -> None:
    assert not collapse_warnings(clipped_rows([0.02, -0.01], [0.1, 0.2], **further))


def test_kl_warning_needs_a_rise_that_lasts_and_a_loss_without_reward() -> None:
    # One step far out, after which demo-opsd at five times its rate recovers, and ends at 100 %.
    spike = [0.0101, 0.0068, 0.2171, 0.0146, 0.0183, 0.0081, 0.0027]
    assert not warning_history(course("kl", spike))
    leaves = course("kl", [0.0101, 0.0068, 0.2, 0.2, 0.2])
    [found] = warning_history(leaves)
    assert (found["warning"], found["step"]) == ("kl", 5)
    # A reward may lead away from the teacher, and be right.
    assert not warning_history([row | {"advantage": 0.0} for row in leaves])


def test_collapse_warnings_pass_over_steps_without_the_metric() -> None:
    rows: Rows = [{"step": 1}, *course("kl", [0.01, 9, 9]), {"step": 5}, *course("kl", [9])]
    assert collapse_warnings(rows) == {"kl": (9, 0.01)}
    assert not collapse_warnings(rows[:-1])


def test_warning_history_lists_what_appears_in_the_steps_so_far() -> None:
    rng = random.Random(0)
    rows: Rows = [
        {"step": step, **{name: rng.choice([0.01, 0.1, 1, 9]) for name in ("kl", "drift")}}
        for step in range(1, 60)
    ]
    rows[0] |= {"kl": 0.1, "drift": 0.1}
    del rows[20]["kl"]
    expected, before = [], set[str]()
    for count, row in enumerate(rows, start=1):
        now = set(collapse_warnings(rows[:count]))
        expected += [(row["step"], name) for name in sorted(now - before)]
        before = now
    listed = [(found["step"], found["warning"]) for found in warning_history(rows)]
    assert sorted(listed) == expected
    assert len(expected) > 10
