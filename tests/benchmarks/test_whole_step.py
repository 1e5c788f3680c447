"""The benchmark of whole steps: its contenders run, and one that fails costs its own row."""

from pathlib import Path

import pytest

from whole_step import Options, main, measure


@pytest.mark.slow
def test_main_measures_the_steps_of_a_trainer_of_trl(tmp_path: Path) -> None:
    options = Options(
        rows=2, tokens=3, steps=2, only=("trl sdft",), tiny=True, json=tmp_path / "a.json"
    )
    found = main(options)["trl sdft"]
    assert len(found["steps"]) == 2, found
    assert min(found["steps"]) > 0


def test_measure_of_a_contender_that_fails_or_takes_too_long_is_its_error(tmp_path: Path) -> None:
    missing = measure("paint", str(tmp_path / "none"), Options(tiny=True, limit=0.01))
    assert missing == {"error": "stopped after 0 s"}


def test_contenders_are_found_by_name() -> None:
    with pytest.raises(SystemExit, match="there is none of that name"):
        main(Options(only=("mine",), tiny=True))
