"""The benchmark of a teacher's likeliest tokens, on few problems."""

import pytest

from top_k import OBJECTIVES, Options, main


@pytest.mark.slow
def test_main_is_exact_with_the_whole_vocabulary_and_nearer_with_more_entries() -> None:
    rows = main(Options(problems=3, k=(1, 16)))
    assert [row["objective"] for row in rows[::3]] == list(OBJECTIVES)
    for one, more, whole in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert abs(float(whole["value"])) < 1e-4
        assert float(whole["cosine"]) == pytest.approx(1, abs=1e-6)
        assert abs(float(more["value"])) < abs(float(one["value"]))
        assert float(one["cosine"]) < float(more["cosine"]) < 1
