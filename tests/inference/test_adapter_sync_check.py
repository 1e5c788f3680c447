"""Tests of the check that an engine serves the adapter that it was given."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paint.data.problems import Problem
from paint.inference import adapter_sync_check
from paint.inference.adapter_sync_check import LogprobMismatchError, _mismatches, check_adapter_sync
from paint.inference.engine import Completion, Sampling
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy
from paint.models.weights import load_trained
from paint.training.log_probs import check_logprob_mismatch, logprob_mismatches

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=12)


@pytest.fixture
def prompts(trained: Policy, problems: list[Problem]) -> list[list[int]]:
    return [trained.student_prompt(p.problem) for p in problems[:4]]


class OneOfTwo(LocalEngine):
    """An engine of two servers, one of which answers by another policy."""

    def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
        first, *rest = super().generate(prompts, sampling, seeds)
        log_probs = tuple(log_prob - 0.04 for log_prob in first.log_probs)
        return [replace(first, source="http://b", log_probs=log_probs), *rest]


def test_adapter_sync_check_finds_one_server_of_two(
    trained: Policy, prompts: list[list[int]]
) -> None:
    engine = OneOfTwo(trained, batch_size=8)
    with pytest.raises(LogprobMismatchError, match=r"engine and trainer differ by 0\.04 nats"):
        check_adapter_sync(trained, engine, prompts * 2, SAMPLING, 0.02)


class Stale(LocalEngine):
    """An engine that loads the first ``keeps`` adapters it is given, and then keeps the last."""

    def __init__(self, policy: Policy, folder: Path, keeps: int) -> None:
        super().__init__(policy, batch_size=4)
        self.folder, self.left = folder, keeps

    def sync_weights(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.policy.model.save_pretrained(self.folder)

    def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
        current = [p.detach().clone() for p in self.policy.trainable]
        load_trained(self.policy, self.folder)
        try:
            return super().generate(prompts, sampling, seeds)
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.policy.trainable, current, strict=True):
                    parameter.copy_(value)


def test_adapter_sync_check_passes_matching_engine_and_restores_adapter(
    trained: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are scored six times without the search, which scores one row at a time."""
    scored: list[int] = []
    score = adapter_sync_check.trainer_log_probs

    def count(policy: Policy, prompts: Any, completions: list[Completion]) -> Tensor:
        scored.append(len(completions))
        return score(policy, prompts, completions)

    monkeypatch.setattr(adapter_sync_check, "trainer_log_probs", count)
    before = [p.detach().clone() for p in trained.trainable]
    engine = LocalEngine(trained, batch_size=4)
    gaps = check_adapter_sync(trained, engine, prompts, SAMPLING, 1e-3)
    assert max(gaps["before"], gaps["perturbed"], gaps["restored"]) < 1e-4
    assert gaps["moved"] > 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))
    assert scored.count(1) > 3
    assert scored.count(4) <= 8


@pytest.mark.parametrize(("keeps", "bound"), [(1, 1e-3), (1, float("inf")), (2, 0.05)])
def test_adapter_sync_check_finds_engine_with_stale_adapter(
    trained: Policy, prompts: list[list[int]], tmp_path: Path, keeps: int, bound: float
) -> None:
    before = [p.detach().clone() for p in trained.trainable]
    message = ("does not serve the adapter that it was sent", "answers from an older version")
    with pytest.raises(LogprobMismatchError, match=message[keeps - 1]):
        check_adapter_sync(trained, Stale(trained, tmp_path, keeps), prompts, SAMPLING, bound)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))


def test_adapter_sync_check_finds_engine_with_other_initial_policy(
    trained: Policy, prompts: list[list[int]], tmp_path: Path
) -> None:
    engine = Stale(trained, tmp_path, keeps=1)
    engine.sync_weights()
    with torch.no_grad():
        for parameter in trained.trainable:
            parameter.mul_(0.5)
    differs = r"before the first step, engine and trainer differ by .*model\.path"
    with pytest.raises(LogprobMismatchError, match=differs):
        check_adapter_sync(trained, engine, prompts, SAMPLING, 1e-3)


def test_mismatch_of_completions_without_log_probs_is_none() -> None:
    unscored = Completion((1, 2), (), False, "own")
    rows = [Rollout(0, Problem("p", "s", "1", "1"), [1], unscored, "")]
    for behavior in (None, (-0.5, -0.5)):
        scored = [
            replace(row, behavior_log_probs=behavior, tokens={"student_log_prob": [-0.1, -0.2]})
            for row in rows
        ]
        assert logprob_mismatches(scored) == []
        check_logprob_mismatch(scored, 0.1, 7)


def test_sync_check_of_completions_without_log_probs_is_refused(policy: Policy) -> None:
    completions = [Completion((1, 2), (-0.1, -0.1), False, "a"), Completion((1,), (), False, "b")]
    with pytest.raises(LogprobMismatchError, match=r"^b gives completions without log-probs"):
        _mismatches(policy, [[1], [1]], completions)


def test_require_agreement_mismatch_is_refused_with_hint() -> None:
    completion = Completion((5, 6), (-1.0, -1.5), truncated=False)
    rollout = Rollout(0, Problem("p", "s", "7", "1"), [], completion, "")
    scored = [replace(rollout, tokens={"student_log_prob": [-1.0, -1.1]})]
    check_logprob_mismatch(scored, 0.21, 7)
    wanted = r"step 7: .* by 0\.2 nats .*mismatch 0\.19; nothing was updated.*--dtype"
    with pytest.raises(LogprobMismatchError, match=wanted):
        check_logprob_mismatch(scored, 0.19, 7)
    broken = [replace(rollout, tokens={"student_log_prob": [float("nan"), -1.1]})]
    with pytest.raises(LogprobMismatchError):
        check_logprob_mismatch(broken, 1e9, 7)
