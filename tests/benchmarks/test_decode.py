"""The benchmark of a decode step, on the demo's model."""

import json
from pathlib import Path

from decode import Options, agreement, main
from paint.inference.engine import Completion


def test_main_writes_figures_of_both_steps_and_their_agreement(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    plain, compiled = main(Options(rows=(2,), prompt=12, tokens=6, json=path))
    assert [plain["step"], compiled["step"]] == ["as it is", "compiled"]
    assert plain["tokens_per_s"] > 0
    # Without a GPU both are one step.
    assert compiled["same_rows"] == 2
    assert compiled["same_beginning"] == 1
    assert compiled["largest_gap_between"] == 0
    assert compiled["largest_gap"] < 1e-3
    assert len(json.loads(path.read_text())) == 2


def test_agreement_ends_where_tokens_differ() -> None:
    some = [Completion((1, 2, 3), (-1.0, -2.0, -3.0), True), Completion((4,), (-1.0,), True)]
    others = [Completion((1, 2, 4), (-1.5, -2.0, -9.0), True), Completion((4,), (-1.0,), True)]
    assert agreement(some, others) == {
        "same_rows": 1,
        "same_beginning": 0.75,
        "mean_gap_between": 0.5 / 3,
        "largest_gap_between": 0.5,
    }
