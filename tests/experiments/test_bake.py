"""A bake: what it measures, what it refuses, and that it goes on where it was interrupted."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import bake_invented_rule as invented
import pytest
import torch

import paint
from conftest import logits_alone, move
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError
from paint.core.errors import Interrupted
from paint.data.problems import Problem
from paint.evaluation.frame import Report, select_rows
from paint.experiments.bake import bake
from paint.experiments.prompt_evaluator import BAKED, PLAIN, PROMPTED, PromptEvaluator
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from reports import report_in, row_of
from runs import rows_of


def of(config: Config, **sections: dict[str, Any]) -> Config:
    """The config with other settings."""
    return replace(config, **{k: replace(getattr(config, k), **v) for k, v in sections.items()})


def steps_of(report: Report) -> list[int]:
    """The steps of the checkpoints that were measured."""
    return sorted({row.step for row in report.rows if row.step is not None})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A bake of invented rules: 40 short answers, two steps, a segment each."""
    folder = tmp_path_factory.mktemp("invented")
    invented.write(folder, questions=40)
    return of(
        read_recipe(find_recipe("demo-bake")),
        data={"path": str(folder / "questions.jsonl")},
        context={"file": str(folder / "rules.md")},
        rollout={"max_new_tokens": 12},
        train={"steps": 2, "checkpoint_every": 1, "batch_size": 4},
        grading={"grader": ("bake_invented_rule:grade",)},
    )


@pytest.fixture
def evaluator(config: Config, policy: Policy) -> PromptEvaluator:
    """Of the demo's model and a text that its teacher reads, without a grader."""
    config = of(config, grading={"grader": ("none",)})
    engine, teacher = LocalEngine(policy, batch_size=16), open_teacher(policy, config.teacher)
    return PromptEvaluator(config, policy, teacher, engine, "$20+3 \\equiv 55$.")


def test_prompt_evaluator_kl_of_new_adapter_is_that_of_the_two_prompts(
    evaluator: PromptEvaluator, policy: Policy, problems: list[Problem]
) -> None:
    [own], [others] = (evaluator.answer(view, problems[:1], 1) for view in (PLAIN, PROMPTED))
    found = evaluator.measurements("held_out", problems[:1], PLAIN, [own], [others])
    shown = policy.teacher_prompt(problems[0], evaluator.context, complete=True)
    with torch.no_grad():
        logits = [
            logits_alone(policy.base, prompt, own[0].ids).log_softmax(-1)
            for prompt in (policy.student_prompt(problems[0]), shown)
        ]
    expected = (logits[0].exp() * (logits[0] - logits[1])).sum(-1).mean()
    kl = row_of(found, metric="kl").mean
    assert kl == pytest.approx(float(expected), rel=1e-4)
    assert kl > 0.05


def test_prompt_evaluator_adapter_changes_the_baked_view_alone(
    evaluator: PromptEvaluator, policy: Policy, problems: list[Problem]
) -> None:
    few = problems[:3]
    plain, prompted = (evaluator.answer(view, few, 1) for view in (PLAIN, PROMPTED))
    same = evaluator.measurements("unrelated", few, BAKED, plain, plain)
    before = evaluator.measurements("held_out", few, PLAIN, plain, prompted)
    move(policy)
    moved = evaluator.measurements("unrelated", few, BAKED, plain, plain)
    assert abs(row_of(same, metric="kl").mean) < 1e-6
    assert row_of(same, metric="auc").mean == 0.5
    # All answers are cut there.
    assert row_of(same, metric="completion_tokens").high == pytest.approx(12)
    assert row_of(moved, metric="kl").mean > 0.01
    assert evaluator.measurements("held_out", few, PLAIN, plain, prompted) == before


def test_bake_of_text_that_changes_nothing_is_refused(config: Config, tmp_path: Path) -> None:
    prompts = {"student": "{{ problem }}", "teacher": "{{ problem }}"}
    same = of(config, prompts=prompts, grading={"grader": ("none",)})
    with pytest.raises(ConfigError, match="changes nothing that is measured"):
        bake(same, tmp_path / "bake", held_out=12, samples=1)
    assert not (tmp_path / "bake/run").exists()


@pytest.mark.parametrize("counts", [{"samples": 0}, {"held_out": -1}, {"held_out": 0}])
def test_bake_count_below_one_is_refused(
    config: Config, counts: dict[str, int], tmp_path: Path
) -> None:
    [(name, value)] = counts.items()
    both = {"held_out": 2, "samples": 1} | counts
    with pytest.raises(ConfigError, match=f"{name} must be an integer from 1 .*, got {value}"):
        bake(config, tmp_path / "out", held_out=both["held_out"], samples=both["samples"])
    assert not (tmp_path / "out").exists()


def test_bake_in_folder_of_other_rules_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"rules": "others", "questions": "others"}')
    (tmp_path / "measurements.jsonl").write_text('{"step": 0, "key": {}}\n')
    with pytest.raises(ConfigError, match=r"(?s)holds a bake with other settings:\n  rules: "):
        bake(config, tmp_path, held_out=4, samples=1)


def test_bake_interrupted_in_training_says_to_repeat_the_command(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted("paint resume goes on", 2)

    monkeypatch.setattr("paint.experiments.bake.train", interrupted)
    with pytest.raises(Interrupted, match="the same command resumes") as stopped:
        bake(config, tmp_path, held_out=2, samples=1, force=True)
    assert stopped.value.signal_number == 2


@pytest.mark.slow
def test_bake_measures_segments_and_resumes_to_same_rows(config: Config, tmp_path: Path) -> None:
    report = bake(config, tmp_path, held_out=8, samples=2, unrelated="demo")
    assert report_in(tmp_path) == report
    assert steps_of(report) == [1, 2]
    for group in ("held_out", "unrelated"):
        rows = select_rows(report.rows, benchmark=group, step=None, metric="completion_tokens")
        assert [row.policy for row in rows] == [PROMPTED, PLAIN, BAKED]
    assert len(rows_of(tmp_path / "questions.jsonl")) == 32

    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    files = config.context.file, config.data.path
    again = paint.bake(*files, config, output_dir=tmp_path, held_out=8, samples=2)
    found = report_in(tmp_path)
    held_out = [row for row in report.rows if row.benchmark == "held_out"]
    assert [row for row in found.rows if row.benchmark == "held_out"] == held_out
    assert again.run.checkpoints[-1].name == "step-000002"
    paint.bake(*files, config, output_dir=tmp_path, held_out=8, samples=3)
    assert steps_of(report_in(tmp_path)) == [2]  # of three answers, not of two


@pytest.mark.slow
def test_bake_teaches_invented_rules(config: Config, tmp_path: Path) -> None:
    """Two answers in three follow rules that the plain base never follows, after forty steps."""
    longer = {"steps": 40, "checkpoint_every": 40, "batch_size": 32}
    report = bake(of(config, train=longer), tmp_path, held_out=16, samples=4)
    rows = select_rows(report.rows, benchmark="held_out", metric="follows", step=None)
    follows = {row.policy: row.mean for row in rows}
    assert follows[PLAIN] < 0.05
    assert follows[BAKED] > 0.67 * follows[PROMPTED] > 0.5
