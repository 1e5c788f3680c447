r"""The grader accepts no wrong rewriting of an answer, and refuses few right ones."""

import pytest

from rewritings import ascii_pi, choice, file_number, graded, pairs, unicode_width


def test_graders_rewritten_golds_have_no_false_right_and_few_false_wrongs() -> None:
    verdicts = list(graded(pairs(0, 32, [file_number, ascii_pi, unicode_width, choice])))
    assert [pair for pair, taken in verdicts if taken and not pair.is_right] == []
    false_wrongs = [pair for pair, taken in verdicts if pair.is_right and not taken]
    assert len(false_wrongs) <= 0.03 * len(verdicts), false_wrongs


@pytest.mark.slow
def test_graders_many_rewritten_golds_have_no_false_right_and_few_false_wrongs() -> None:
    verdicts = list(graded(pairs(1, 500), workers=2))
    assert [pair for pair, taken in verdicts if taken and not pair.is_right] == []
    false_wrongs = [pair for pair, taken in verdicts if pair.is_right and not taken]
    assert len(false_wrongs) <= 0.03 * len(verdicts), false_wrongs
