"""The cells of the experiment on references that go wrong, and its table."""

from dataclasses import replace
from pathlib import Path

import pytest

from paint.config.recipe import find_recipe, read_recipe, to_table
from paint.demo.files import TRAINING_PROBLEMS
from paint.experiments.checkpoint_results import BASE, CheckpointResult, read_results, write_results
from wrong_reference_runs import GROUPS, cell_table, complete_seeds, copy_base, end_wrong

PAINT = read_recipe(find_recipe("demo-paint"))


@pytest.fixture(autouse=True)
def twenty_rows(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of the demo's rows in place of all."""
    path = tmp_path_factory.mktemp("rows") / "train.jsonl"
    lines = TRAINING_PROBLEMS.read_text(encoding="utf-8").splitlines(keepends=True)[:20]
    path.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr("wrong_reference_runs.TRAINING_PROBLEMS", path)


def result_of(cell: str, seed: int, right: list[int]) -> CheckpointResult:
    return CheckpointResult(
        run=cell,
        seed=seed,
        config=to_table(PAINT),
        protocol={"samples": 4, "benchmark": "demo", "problems": 2},
        trained_on="" if cell == BASE else "digest",
        steps=0 if cell == BASE else PAINT.train.steps,
        rollout_tokens=0,
        seconds=0.0,
        problems=["a", "b"],
        right=right,
        answer_tokens=1.0,
    )


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


def test_rows_with_another_content_are_refused(tmp_path: Path) -> None:
    row_set = end_wrong(0.4, ("paint",))
    path = Path(row_set.data_path(tmp_path))
    assert row_set.data_path(tmp_path) == str(path)
    path.write_text(path.read_text(encoding="utf-8").replace("51", "52"), encoding="utf-8")
    with pytest.raises(SystemExit, match="has other rows"):
        row_set.data_path(tmp_path)


def test_complete_seeds_are_those_of_every_cell() -> None:
    results = [result_of(cell, seed, [1, 2]) for cell in (BASE, "opsd") for seed in (0, 1, 2)]
    results += [result_of("paint", seed, [1, 2]) for seed in (0, 2)]
    found = complete_seeds(results, ("opsd", "paint"))
    assert {cell: [r.seed for r in group] for cell, group in found.items()} == {
        BASE: [0, 2],
        "opsd": [0, 2],
        "paint": [0, 2],
    }


def test_cell_table_has_score_gain_and_difference_to_opsd(tmp_path: Path) -> None:
    folder = tmp_path / "end-40"
    folder.mkdir()
    scores = {BASE: [2, 2], "opsd": [3, 3], "paint": [4, 3]}
    results = [result_of(cell, s, right) for cell, right in scores.items() for s in (0, 1)]
    write_results(folder, results)
    lines = cell_table(tmp_path).splitlines()
    columns = [column.strip() for column in lines[-1].split("|")]
    assert [len(lines), columns[1], columns[2], columns[-2]] == [5, "end-40", "paint", "87.5, 87.5"]
    means = [column.split()[0] for column in columns[3:6]]
    assert means == ["87.5", "+37.5", "+12.5"]


def test_copy_base_adds_missing_seeds_alone(tmp_path: Path) -> None:
    mine = result_of(BASE, 0, [1, 1])
    write_results(tmp_path, [mine])
    other = [replace(mine, right=[2, 2]), result_of(BASE, 1, [2, 2])]
    copy_base(tmp_path, other)
    assert [(r.seed, r.right) for r in read_results(tmp_path)] == [(0, [1, 1]), (1, [2, 2])]
