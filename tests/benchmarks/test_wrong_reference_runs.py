"""The cells of the experiment on references that go wrong, and its table."""

from pathlib import Path

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.core.demo_files import TRAINING_PROBLEMS
from wrong_reference_runs import GROUPS

PAINT = read_recipe(find_recipe("demo-paint"))


@pytest.fixture(autouse=True)
def twenty_rows(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of the demo's rows in place of all."""
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    lines = TRAINING_PROBLEMS.read_text(encoding="utf-8").splitlines(keepends=True)[:20]
    path.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr("wrong_reference_runs.TRAINING_PROBLEMS", path)


def test_cells_change_the_settings_that_their_names_state(tmp_path: Path) -> None:
    found = {}
    for group in GROUPS.values():
        for row_set in group:
            for run in row_set.runs(tmp_path):
                assert (row_set.name, run.name) not in found
                found[row_set.name, run.name] = run.config
    assert found["right", "paint"] == PAINT
    path = str(tmp_path / "end-40.jsonl")
    recipe = PAINT.changed("data", path=path)
    ratios = {"mask_ratio_wrong": 0.6, "mask_ratio_correct": 0.6}
    assert found["end-40", "paint-hidden-0.60"] == recipe.changed("context", **ratios)
    assert found["end-40", "paint-prefix"] == recipe.changed("context", placement="prefix")
    plain = {"interpolation_weight": 0.0, "top_fraction": 0.0}
    assert found["end-40", "paint-without-interpolation"] == recipe.changed("objective", **plain)
    prefix = found["recovered-40", "paint-prefix-hidden-0.40"].context
    assert (prefix.placement, prefix.mask_ratio_wrong, prefix.mask_ratio_correct) == (
        "prefix",
        0.4,
        0.4,
    )
