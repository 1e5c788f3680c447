r"""The grader accepts no wrong rewriting of an answer, and refuses few right ones."""

import pytest

from rewritings import graded, pairs


def test_graders_rewritten_golds_have_no_false_right_and_few_false_wrongs() -> None:
    verdicts = list(graded(pairs(seed=0, count=140)))
    assert [pair for pair, taken in verdicts if taken and not pair.is_right] == []
    false_wrongs = [pair for pair, taken in verdicts if pair.is_right and not taken]
    assert len(false_wrongs) <= 0.03 * len(verdicts), false_wrongs


@pytest.mark.slow
def test_graders_many_rewritten_golds_have_no_false_right_and_few_false_wrongs() -> None:
    verdicts = list(graded(pairs(seed=1, count=3000), workers=2))
    assert [pair for pair, taken in verdicts if taken and not pair.is_right] == []
    false_wrongs = [pair for pair, taken in verdicts if pair.is_right and not taken]
    assert len(false_wrongs) <= 0.03 * len(verdicts), false_wrongs
