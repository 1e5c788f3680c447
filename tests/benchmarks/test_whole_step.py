"""The benchmark of whole steps: its contenders run, and one that fails costs its own row."""

from pathlib import Path

import pytest

from whole_step import Options, main, summary


@pytest.mark.slow
def test_main_measures_the_steps_of_a_trainer_of_trl(tmp_path: Path) -> None:
    options = Options(
        rows=2, tokens=3, steps=2, only=("trl sdft",), tiny=True, json=tmp_path / "a.json"
    )
    found = main(options)["trl sdft"]
    assert len(found["steps"]) == 2, found
    for step in found["steps"]:
        assert step["seconds"] > step["rollouts"] > 0


def test_summary_leaves_the_first_step_out_unless_it_is_the_only_one() -> None:
    steps = [
        {"seconds": seconds, "rollouts": seconds - 1, "peak_bytes": 2e9} for seconds in (9, 4, 2)
    ]
    whole = {"rollouts": 2, "update": 1, "seconds": 3, "first": 9, "steps": 3, "peak_GB": 2}
    assert summary({"steps": steps}) == whole
    cut = {"rollouts": 8, "update": 1, "seconds": 9, "first": 9, "steps": 1, "peak_GB": 2}
    assert summary({"steps": steps[:1], "error": "late"}) == cut | {"ended": "late"}
