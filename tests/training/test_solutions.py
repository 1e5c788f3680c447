"""The loss of reference solutions beside a method's own: value, gradient, weights by step."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from conftest import DEMO, logits_alone, move
from paint.algorithms.paint import add_teacher_prompts, score_rollouts
from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.core.display import Clock, Display
from paint.core.extensions import spec_of
from paint.core.schedules import linear
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy, load_policy
from paint.objective.loss import paint_loss
from paint.resolve.algorithm import Algorithm
from paint.training.solutions import add_gradient_of_solutions
from paint.training.train_step import Batch, Setup, accumulate
from runs import changed, opened_setup, small_run, train

SMALL = small_run(8, limit=4, steps=3, batch_size=4, micro_batch_size=3)


def small(recipe: str = "demo-paint", **sections: dict[str, Any]) -> Config:
    return changed(recipe, SMALL, sections)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0.1, 0.0, [0.1, 0.075, 0.05, 0.025, 0.0, 0.0]), (0.5, 0.7, [0.5, 0.55, 0.6, 0.65, 0.7, 0.7])],
)
def test_linear_goes_from_start_to_end_and_stays(
    start: float, end: float, expected: list[float]
) -> None:
    assert [linear(step, start, end, 4) for step in range(6)] == pytest.approx(expected)
    assert [linear(step, start, None, 4) for step in range(6)] == [start] * 6


def written(policy: Policy, problems: list[Problem], samples: int) -> list[Rollout]:
    """Completions of each problem: the beginnings of its solution, of several lengths."""
    rollouts: list[Rollout] = []
    for problem in problems:
        prompt, ids = policy.student_prompt(problem), policy.solution_ids(problem.solution)
        for sample in range(samples):
            cut = tuple(ids[: 12 + 5 * sample])
            completion = Completion(cut, (0.0,) * len(cut), truncated=True)
            text = policy.decode(cut)
            rollouts.append(Rollout(len(rollouts), problem, prompt, completion, text))
    return rollouts


@pytest.mark.parametrize(("reduction", "skip", "samples"), [("completion", 0, 2), ("token", 3, 1)])
def test_solutions_beside_distillation_match_the_reference_in_float64(
    accelerator: Accelerator, problems: list[Problem], reduction: str, skip: int, samples: int
) -> None:
    objective = {"impl": "reference", "reduction": reduction, "skip_tokens": skip}
    objective |= {"sft_weight": 0.8, "sft_weight_end": 0.2, "sft_weight_steps": 4}
    config = small(
        objective=objective,
        rollout={"samples_per_problem": samples},
        train={"batch_size": 3 * samples, "micro_batch_size": 2},
    )
    policy = load_policy(DEMO, seed=0)
    move(policy)
    policy.model.double()
    # Solutions of several lengths.
    chosen = sorted(problems[:40], key=lambda problem: len(problem.solution))[::16]
    rollouts = written(policy, chosen, samples)
    with opened_setup(config, policy, accelerator, problems) as setup:
        batch: Batch = [(r.row, r.problem) for r in rollouts]
        figures = add_gradient_of_solutions(setup, batch, 1, Clock(Display()))
        rollouts = add_teacher_prompts(setup, rollouts, 1)
        accumulate(setup, rollouts, partial(score_rollouts, setup))
    gradient = [p.grad for p in policy.trainable]
    for p in policy.trainable:
        p.grad = None

    # The same by the library's own logits, one row at a time.
    student, teacher = [], []
    for r in rollouts:
        student.append(logits_alone(policy.model, r.prompt, r.completion.ids))
        assert r.teacher_prompt is not None
        with policy.model.disable_adapter(), torch.no_grad():
            ids = r.completion.ids
            teacher.append(logits_alone(policy.model, r.teacher_prompt.prompt, ids))
    lengths = [len(r.completion.ids) for r in rollouts]
    distilled = paint_loss(
        torch.cat(student), torch.cat(teacher), lengths, setup.resolved.objective
    )
    losses = []
    for problem in chosen:
        solution = policy.solution_ids(problem.solution)
        logits = logits_alone(policy.model, policy.student_prompt(problem), solution)
        losses.append(cross_entropy(logits, torch.tensor(solution), reduction="none")[skip:])
    learned = torch.cat(losses).mean()
    if reduction == "completion":
        learned = torch.stack([loss.mean() for loss in losses]).mean()
    (distilled.value + 0.65 * learned).backward()
    assert len(set(map(len, losses))) == 3
    assert figures == {"sft_weight": pytest.approx(0.65), "sft_loss": pytest.approx(learned.item())}
    for p, ours in zip(policy.trainable, gradient, strict=True):
        assert p.grad is not None
        # Norms are computed in float32 whatever the weights are.
        torch.testing.assert_close(ours, p.grad, rtol=1e-6, atol=1e-6 * float(p.grad.abs().max()))


class LearnsNothing(Algorithm):
    """A step without an update, which notes the gradient that it finds."""

    found: list[float] = []  # noqa: RUF012

    def step(self, setup: Setup, batch: Batch, step_index: int, clock: Any) -> Any:
        gradients = [p.grad for p in setup.policy.trainable if p.grad is not None]
        self.found.append(math.sqrt(sum(float((g * g).sum()) for g in gradients)))
        return written(setup.policy, [p for _, p in batch], 1), 0.0


def test_solutions_gradient_of_a_step_without_update_is_not_kept(tmp_path: Path) -> None:
    LearnsNothing.found.clear()
    weights = {"sft_weight": 0.2, "sft_weight_end": 0.0, "sft_weight_steps": 2}
    method = {"steps": 3, "method": spec_of(LearnsNothing)}
    train(small(objective=weights, train=method), tmp_path / "run")
    first, second, third = LearnsNothing.found  # of the same four problems, with half of the weight
    assert second == pytest.approx(first / 2, rel=1e-4)
    assert (first > 0, third) == (True, 0.0)
    rows = read_metrics(tmp_path / "run")
    assert [row["sft_weight"] for row in rows] == [0.2, 0.1, 0.0]
    assert [row.get("sft_loss", 0) for row in rows] == pytest.approx(
        [rows[0]["sft_loss"], rows[0]["sft_loss"], 0]
    )
