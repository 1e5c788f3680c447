"""A bake: what it measures, what it refuses, and that it goes on where it was interrupted."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import bake_rules
import numpy as np
import pytest

import paint
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError
from paint.evaluation.frame import select_rows
from paint.evaluation.intervals import Interval
from paint.evaluation.metrics import GradedSamples
from paint.lab.bake import BAKED, PLAIN, PROMPTED, FlatKl, bake, bake_report
from paint.resolve.check import check_config
from reports import of_rewards, report_in
from runs import rows_of


def of(config: Config, **sections: dict[str, Any]) -> Config:
    """The config with other settings."""
    return replace(config, **{k: replace(getattr(config, k), **v) for k, v in sections.items()})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A bake of rules: 40 short answers, two steps."""
    folder = tmp_path_factory.mktemp("rules")
    bake_rules.write(folder, questions=40)
    return of(
        read_recipe(find_recipe("demo-bake")),
        data={"path": str(folder / "questions.jsonl")},
        context={"file": str(folder / "rules.md")},
        rollout={"max_new_tokens": 12},
        train={"steps": 2, "checkpoint_every": 1, "batch_size": 4},
        grading={"grader": ("bake_rules:grade",)},
    )


def test_bake_of_text_that_changes_nothing_is_refused(config: Config, tmp_path: Path) -> None:
    prompts = {"student": "{{ problem }}", "teacher": "{{ problem }}"}
    same = of(config, prompts=prompts, grading={"grader": ("none",)})
    with pytest.raises(ConfigError, match="changes nothing that is measured"):
        bake(check_config(same), tmp_path / "bake", held_out=12, samples=1)
    assert not (tmp_path / "bake/run").exists()


def test_bake_in_folder_of_other_rules_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text("others")
    with pytest.raises(ConfigError, match=r"rules\.md: it holds another text"):
        bake(check_config(config), tmp_path, held_out=4, samples=1)


def answers(rewards: list[float], **parts: list[float]) -> GradedSamples:
    """Graded answers to 12 questions, two each, of which one has these rewards."""
    tables = {name: np.tile(values, (12, 1)) for name, values in parts.items()}
    return replace(of_rewards(np.tile(rewards, (12, 1))), parts=tables)


def test_bake_report_of_other_rewards_than_0_and_1_has_mean_and_paired_difference() -> None:
    style, facts = {"style": [0.2, 0.4], "facts": [0.6, 0.8]}, {"style": [0.2], "facts": [1.0]}
    report = bake_report(
        {
            PROMPTED: answers([0.4, 0.6], **style),
            PLAIN: answers([0.1, 0.3], style=[0.1, 0.3], facts=[0.1, 0.3]),
            BAKED: answers([0.4, 0.8], style=style["style"], facts=facts["facts"] * 2),
        },
        {PLAIN: Interval(0.5, 0.4, 0.6)},
        longest=4,
        temperature=0.25,
    )
    assert not select_rows(report.rows, metric="follows", against=...)
    means = {row.policy: row.mean for row in select_rows(report.rows, metric="reward")}
    assert means == pytest.approx({PROMPTED: 0.5, PLAIN: 0.2, BAKED: 0.6})
    less = {row.policy: row for row in select_rows(report.rows, metric="reward", against=PLAIN)}
    assert {name: row.mean for name, row in less.items()} == pytest.approx(
        {PROMPTED: 0.3, BAKED: 0.4}
    )
    assert all(row.low is not None and row.low <= row.mean for row in less.values())
    [table] = report.tables
    assert "temperature 0.25," in table.title
    assert table.columns[1:] == [
        "mean reward, hundredths",
        "less that of the plain base",
        "KL a token to the prompted base",
        "tokens an answer",
        "style",
        "facts",
    ]
    assert table.rows[2][1].startswith("60.0 [")
    assert table.rows[2][-1].startswith("100.0 [")


def test_bake_report_of_verdicts_has_the_share_that_follows() -> None:
    report = bake_report({PLAIN: answers([0.0, 0.0]), BAKED: answers([1.0, 0.0])}, {}, 4, 1.0)
    follows = {row.policy: row.mean for row in select_rows(report.rows, metric="follows")}
    assert follows == {PLAIN: 0, BAKED: 0.5}
    assert not select_rows(report.rows, metric="reward", against=...)


@pytest.mark.parametrize(
    ("kls", "patience", "steps"),
    [
        ([4, 3, 2, 1, 2, 3, 1, 1], None, 8),
        ([4, 3, 2, 1, 2, 3, 1, 1], 2, 6),  # 2 and 3 after 2 and 1
        ([4, 4, 1, 1], 1, 2),
        ([4, 3, 3, 1], 3, 4),
    ],
)
def test_flat_kl_ends_the_training_when_it_no_longer_falls(
    tmp_path: Path, kls: list[float], patience: int | None, steps: int
) -> None:
    flat, done = FlatKl(patience, tmp_path), 0
    for kl in kls:
        assert not flat.has_ended
        done += 1
        if flat.on_step(done, {"kl": kl}, []):
            break
    assert done == steps


@pytest.mark.slow
def test_bake_measures_views_and_resumes_to_same_rows(config: Config, tmp_path: Path) -> None:
    report = bake(check_config(config), tmp_path, held_out=8, samples=2)
    assert report_in(tmp_path) == report
    rows = select_rows(report.rows, metric="completion_tokens")
    assert [row.policy for row in rows] == [PROMPTED, PLAIN, BAKED]
    assert len(rows_of(tmp_path / "questions.jsonl")) == 32

    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    files = config.context.file, config.data.path
    again = paint.bake(*files, config, output_dir=tmp_path, held_out=8, samples=2)
    assert report_in(tmp_path).rows == report.rows
    faster = check_config(of(config, train={"learning_rate": 1e-3}))
    with pytest.raises(ConfigError, match=r"train\.learning_rate"):
        bake(faster, tmp_path, held_out=8, samples=2)
    assert again.run.checkpoints[-1].name == "step-000002"


@pytest.mark.slow
def test_bake_measures_at_own_temperature_and_ends_when_kl_is_flat(
    config: Config, tmp_path: Path
) -> None:
    longer = of(config, train={"steps": 9, "checkpoint_every": 9, "learning_rate": 1e-9})
    own: dict[str, Any] = {"held_out": 4, "samples": 2, "temperature": 0.001, "patience": 1}
    report = bake(check_config(longer), tmp_path, **own)
    assert "at temperature 0.001," in report.tables[0].title
    first, again = (
        row["completion_ids"] for row in rows_of(next(tmp_path.glob("plain/student/*.jsonl")))[:2]
    )
    assert first == again  # as good as greedy
    [ended] = (tmp_path / "run/checkpoints").iterdir()
    assert ended.name != "step-000009"
    assert bake(check_config(longer), tmp_path, **own).rows == report.rows
    assert [ended] == [*(tmp_path / "run/checkpoints").iterdir()]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_bake_teaches_rules(config: Config, tmp_path: Path) -> None:
    """Two answers in three follow rules that the plain base guesses, after forty steps."""
    longer = {"steps": 40, "checkpoint_every": 40, "batch_size": 32}
    report = bake(check_config(of(config, train=longer)), tmp_path, held_out=16, samples=4)
    follows = {row.policy: row.mean for row in select_rows(report.rows, metric="follows")}
    assert follows[PLAIN] == pytest.approx(0.25, abs=0.15)  # a guess among four values
    assert follows[BAKED] > 0.67 * follows[PROMPTED] > 0.5
