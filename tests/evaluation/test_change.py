"""What a run changed, in one sentence."""

from paint.evaluation.change import NO_CHANGE, describe_change
from paint.evaluation.intervals import compare_paired
from reports import graded_samples

WEAK = graded_samples([[1, 0], [0, 0], [0, 1]] * 8)
STRONG = graded_samples([[1, 1], [1, 0], [1, 1]] * 8)


def test_describe_change_has_paired_difference_of_first_and_last_validation() -> None:
    validation = {(4, "set"): STRONG, (0, "set"): WEAK, (2, "set"): WEAK}
    found = compare_paired([WEAK.correct], [STRONG.correct])
    assert found.detectable is None  # every problem gains one sample
    text = describe_change(validation, [])
    assert text.startswith(f"Validation {found.difference.points(sign=True)} points over the base")
    assert "(33.3 before, 83.3 after)" in text
    assert NO_CHANGE not in text


def test_describe_change_reports_zero_in_the_interval_and_what_could_be_detected() -> None:
    other = graded_samples([[0, 0], [1, 0], [0, 1]] * 8)
    found = compare_paired([WEAK.correct], [other.correct])
    assert found.detectable is not None
    text = describe_change({(2, "set"): WEAK, (4, "set"): other}, [])
    assert "over step 2" in text
    assert NO_CHANGE in text
    assert text.endswith(f"{100 * found.detectable:.1f} could have been detected")


def test_describe_change_of_several_sets_is_that_of_their_mean() -> None:
    first = {(0, "p"): WEAK, (0, "q"): STRONG}
    later = {(4, "p"): STRONG, (4, "q"): STRONG, (6, "p"): WEAK, (6, "q"): WEAK}
    found = compare_paired([WEAK.correct, STRONG.correct], [WEAK.correct, WEAK.correct])
    text = describe_change(first | later, [])
    mean = found.difference.points(sign=True)
    assert text.startswith(f"Validation, mean over p and q, {mean} points over the base")
    assert "(58.3 before, 33.3 after)" in text
    assert describe_change(first, []) == describe_change({}, [])


def test_describe_change_without_validation_compares_first_and_last_steps() -> None:
    rows = [{"step": n, "accuracy": n / 10, "loss": 1.0} for n in range(1, 9)]
    change = "Right answers while training 15.0% in the first 2 steps, 75.0% in the last"
    assert describe_change({}, rows) == f"{change}; not validated (validation.path)"
    assert describe_change({(0, "set"): WEAK}, rows) == f"{change}; validated only once"
    assert describe_change({}, []) == ""
