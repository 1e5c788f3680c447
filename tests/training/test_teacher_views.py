"""What the teacher reads of a completion: the same in a step and outside of it, and its limit."""

from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import Config
from paint.core.extensions import spec_of
from paint.data.contexts import Attempt, Contexts
from paint.data.problems import DataError, Problem, read_problems
from paint.grading.contract import Grade
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, read_rollout
from paint.models.policy import Policy, load_policy
from paint.resolve.check import check_config
from paint.training.teacher_views import masked_context, prompt_limit, with_teacher_prompt
from paintvariants.anchored import Anchored
from runs import changed, small_run, stored, train, variant

SMALL = small_run(20, limit=20, steps=1, batch_size=4, micro_batch_size=2, checkpoint_every=1)
SMALL["rollout"] |= {"samples_per_problem": 2}
PROBLEMS = [
    Problem(f"Add $1$ and ${i}$.", f"We get $1+{i}={i + 1}$, so {i + 1}.", str(i + 1), str(i))
    for i in (1, 2)
]


def small(source: str, **sections: dict[str, Any]) -> Config:
    return changed("demo-paint", SMALL, {"context": {"source": source}}, sections)


def test_teacher_view_of_a_stored_completion_is_that_of_its_step(tmp_path: Path) -> None:
    config = small("other", context={"placement": "random"}, train={"steps": 2})
    train(config, tmp_path)
    run, policy = check_config(config), load_policy(config.model, seed=0)
    problems = read_problems(config.data, needs=run.needed_fields).problems
    by_id = {problem.id: problem for problem in problems}
    for step in (1, 2):
        rows = stored(tmp_path, step)
        for place, row in enumerate(rows):
            rollout = read_rollout(row, by_id[row["problem_id"]], place)
            contexts, attempt = Contexts(config.context, problems), Attempt(row["text"])
            taught = with_teacher_prompt(policy, run, contexts, rollout, attempt, step - 1)
            assert taught.teacher_prompt is not None
            assert taught.teacher_prompt.prompt == row["teacher_prompt_ids"]
            assert taught.metrics == {name: row[name] for name in taught.metrics}
            assert "mask_ratio" in taught.metrics
        assert len({row["context"] for row in rows}) > 2  # by the seeds


def test_teacher_view_draws_anew_in_each_step(policy: Policy) -> None:
    problems = [Problem(f"Add {i}.", f"${i}+{i}={2 * i}$", str(2 * i), str(i)) for i in range(50)]
    config = small("other")
    contexts, run = Contexts(config.context, problems), check_config(config)
    rollout = Rollout(0, problems[0], [1], Completion((1,), (), truncated=False), "$0$")
    views = []
    for step in range(4):
        taught = with_teacher_prompt(policy, run, contexts, rollout, rollout.attempt, step)
        assert taught.teacher_prompt is not None
        views.append(taught.teacher_prompt.context)
    assert len(set(views)) > 1


def test_masked_context_hides_a_ratio_that_is_given() -> None:
    contexts = Contexts(small("solution").context, PROBLEMS)
    half, metrics = masked_context(contexts, PROBLEMS[0], 0, mask_ratio=0.5)
    own, _ = masked_context(contexts, PROBLEMS[0], 0)
    none, _ = masked_context(contexts, PROBLEMS[0], 0, mask_ratio=0.0)
    assert none.text == PROBLEMS[0].solution
    assert metrics["mask_ratio"] == 0.3
    assert half.text != own.text != none.text


def long(row: Any, rows: Any, seed: int, completion: str) -> str:
    return "Step 3 is wrong. " * 200


@pytest.mark.parametrize("source", ["feedback", spec_of(long)])
def test_teacher_view_over_the_limit_is_without_what_a_completion_brought(
    source: str, policy: Policy
) -> None:
    config = small(source, data={"max_prompt_tokens": 200})
    attempt = Attempt("It is $3$.", Grade(0.0, feedback=long(None, None, 0, "")))
    contexts = Contexts(config.context, PROBLEMS)
    rollout = Rollout(0, PROBLEMS[0], [1], Completion((1,), (), truncated=False), attempt.text)
    taught = with_teacher_prompt(policy, check_config(config), contexts, rollout, attempt, 0)
    view = taught.teacher_prompt
    assert view is not None
    assert (view.context, view.complete) == (None, False)
    assert (
        view.refused_tokens
        > prompt_limit(policy.base.config, check_config(config))
        >= len(view.prompt)
    )


def test_teacher_view_over_the_limit_is_refused_where_nothing_is_passed_over(
    policy: Policy,
) -> None:
    limit = {"data": {"max_prompt_tokens": 200}}
    text = small("text", **limit, context={"text": long(None, None, 0, "")})
    learning = small(spec_of(long), **limit, **variant(Anchored))
    completion = Completion((1,), (), truncated=False)
    rollout = Rollout(0, PROBLEMS[0], [1], completion, "It is $3$.")
    for config in (text, learning):
        run, contexts = check_config(config), Contexts(config.context, PROBLEMS)
        with pytest.raises(DataError, match=r"problem 1: .* teacher prompt of \d+ tokens, over"):
            with_teacher_prompt(policy, run, contexts, rollout, rollout.attempt, 0)
