"""Which of many rows are measured."""

from paint.models.lengths import MANY, SAMPLED, chunks, spaced


def test_spaced_rows_are_all_or_at_equal_distances() -> None:
    assert spaced(range(MANY)) == range(MANY)
    taken = spaced(range(MANY + 1))
    assert (taken[0], len(taken)) == (0, SAMPLED + 1)
    assert len(spaced(range(100 * MANY))) == SAMPLED
    assert [row for chunk in chunks(range(1000)) for row in chunk] == [*range(1000)]
