"""The programmed teacher: where it is unsure, and its distribution there."""

from pathlib import Path

import pytest
import torch

from paint.api import train
from paint.config.schema import ModelConfig
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.models.policy import Policy, load_policy
from paint.training.rollouts import Rollout, TeacherPrompt
from when_to_hide import TEACHERS, contradicted, unsure

REFERENCE = r"We get $7+4 \equiv 11-3 \equiv 8\times 2 \equiv 16$." + "\n" + r"The answer is $"
SLIPPED = r"We get $7+4 \equiv 12-3 \equiv 9\times 2 \equiv 18$." + "\n" + r"The answer is $"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(path="demo", dtype="float32"), seed=0)


def test_contradicted_places_are_results_behind_another_number(policy: Policy) -> None:
    slipped = policy.tokenizer.encode(SLIPPED, add_special_tokens=False)
    places = contradicted(policy, slipped, REFERENCE)
    assert [policy.decode([slipped[place]]) for place in places] == ["9", "18"]
    same = policy.tokenizer.encode(REFERENCE, add_special_tokens=False)
    assert contradicted(policy, same, REFERENCE) == []
    assert contradicted(policy, slipped, None) == []
    hidden = REFERENCE.split(" 2 ")[0] + " ..."
    assert len(contradicted(policy, slipped, hidden)) == 1


def test_unsure_teacher_spreads_strength_over_numbers_there_alone(policy: Policy) -> None:
    ids = tuple(policy.tokenizer.encode(SLIPPED, add_special_tokens=False))
    problem = Problem("p", "?", REFERENCE, "16")
    completion = Completion(ids, (0.0,) * len(ids), truncated=False)
    view = TeacherPrompt(REFERENCE, True, [1])
    rollout = Rollout(0, problem, [1], completion, SLIPPED, teacher_prompt=view)
    hidden = policy.hidden_states([[1]], [ids]).detach()
    before, after = (unsure(policy, [rollout], hidden, s).exp() for s in (0.0, 0.5))
    changed = (before - after).abs().amax(-1) > 1e-6
    assert changed.nonzero()[:, 0].tolist() == contradicted(policy, ids, REFERENCE)
    torch.testing.assert_close(after.sum(-1), torch.ones(len(ids)))
    (number,) = policy.tokenizer.encode("42", add_special_tokens=False)
    places = contradicted(policy, ids, REFERENCE)
    torch.testing.assert_close(after[places, number], 0.5 * before[places, number] + 0.005)


@pytest.mark.slow
def test_training_without_strength_has_paints_loss_and_with_it_another(tmp_path: Path) -> None:
    losses = []
    for i, method in enumerate(["distillation", TEACHERS[0], TEACHERS[-1]]):
        step = {"steps": 1, "batch_size": 4, "micro_batch_size": 4, "method": method, "seed": 3}
        run = train("demo-opsd", output_dir=tmp_path / str(i), train=step)
        losses.append(run.metrics["loss"].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] > 1.1 * losses[0]
