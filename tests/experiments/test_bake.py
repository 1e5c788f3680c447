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
from paint.data.problems import Problem
from paint.evaluation.frame import select_rows
from paint.experiments.bake import BAKED, PLAIN, PROMPTED, PromptEvaluator, bake
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from reports import report_in, row_of
from runs import rows_of


def of(config: Config, **sections: dict[str, Any]) -> Config:
    """The config with other settings."""
    return replace(config, **{k: replace(getattr(config, k), **v) for k, v in sections.items()})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A bake of invented rules: 40 short answers, two steps."""
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


def test_prompt_evaluator_kl_is_that_of_the_view_and_the_prompt(
    evaluator: PromptEvaluator, policy: Policy, problems: list[Problem]
) -> None:
    few = problems[:1]
    plain, prompted = (evaluator.answer(view, few, 1) for view in (PLAIN, PROMPTED))
    shown = policy.teacher_prompt(problems[0], evaluator.context, complete=True)
    with torch.no_grad():
        teacher = logits_alone(policy.base, shown, plain[0][0].ids).log_softmax(-1)

    def expected(model: Any) -> float:
        own = logits_alone(model, policy.student_prompt(problems[0]), plain[0][0].ids)
        own = own.log_softmax(-1)
        return float((own.exp() * (own - teacher)).sum(-1).mean())

    with torch.no_grad():
        before = evaluator.measurements(few, PLAIN, plain, prompted)
        kl = row_of(before, metric="kl").mean
        assert kl == pytest.approx(expected(policy.base), rel=1e-4)
        assert kl > 0.05
        move(policy)  # the adapter, which the baked view alone has
        assert evaluator.measurements(few, PLAIN, plain, prompted) == before
        baked = row_of(evaluator.measurements(few, BAKED, plain, prompted), metric="kl").mean
        assert baked == pytest.approx(expected(policy.model), rel=1e-4)
        assert abs(baked - kl) > 0.01


def test_bake_of_text_that_changes_nothing_is_refused(config: Config, tmp_path: Path) -> None:
    prompts = {"student": "{{ problem }}", "teacher": "{{ problem }}"}
    same = of(config, prompts=prompts, grading={"grader": ("none",)})
    with pytest.raises(ConfigError, match=r"changes nothing that is measured.* AUC 0\.5"):
        bake(same, tmp_path / "bake", held_out=12, samples=1)
    assert not (tmp_path / "bake/run").exists()


@pytest.mark.parametrize("counts", [{"samples": 0}, {"held_out": 0}])
def test_bake_count_below_one_is_refused(
    config: Config, counts: dict[str, Any], tmp_path: Path
) -> None:
    [name] = counts
    with pytest.raises(ConfigError, match=f"{name} must be an integer from 1 .*, got 0"):
        bake(config, tmp_path / "out", **({"held_out": 2, "samples": 1} | counts))
    assert not (tmp_path / "out").exists()


def test_bake_in_folder_of_other_rules_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text("others")
    with pytest.raises(ConfigError, match=r"rules\.md is that of a bake of another text"):
        bake(config, tmp_path, held_out=4, samples=1)


@pytest.mark.slow
def test_bake_measures_views_and_resumes_to_same_rows(config: Config, tmp_path: Path) -> None:
    report = bake(config, tmp_path, held_out=8, samples=2)
    assert report_in(tmp_path) == report
    rows = select_rows(report.rows, metric="completion_tokens")
    assert [row.policy for row in rows] == [PROMPTED, PLAIN, BAKED]
    assert len(rows_of(tmp_path / "questions.jsonl")) == 32

    shutil.rmtree(tmp_path / "run/checkpoints/step-000002")
    files = config.context.file, config.data.path
    again = paint.bake(*files, config, output_dir=tmp_path, held_out=8, samples=2)
    assert report_in(tmp_path).rows == report.rows
    assert again.run.checkpoints[-1].name == "step-000002"


@pytest.mark.slow
def test_bake_teaches_invented_rules(config: Config, tmp_path: Path) -> None:
    """Two answers in three follow rules that the plain base never follows, after forty steps."""
    longer = {"steps": 40, "checkpoint_every": 40, "batch_size": 32}
    report = bake(of(config, train=longer), tmp_path, held_out=16, samples=4)
    follows = {row.policy: row.mean for row in select_rows(report.rows, metric="follows")}
    assert follows[PLAIN] < 0.05
    assert follows[BAKED] > 0.67 * follows[PROMPTED] > 0.5
