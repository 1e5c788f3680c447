"""Completions k steps ahead: exactly so old, by one adapter, the same again after a kill.

The engine is remote by contract, and generates in this process.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.data.problems import Problem, batch_indices
from paint.inference.engine import Completion, derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.models.policy import load_policy
from paint.models.weights import load_trained
from paint.training.log_probs import logprob_mismatches, off_policy_metrics
from runs import adapter, assert_same, assert_same_history, changed, stored, train

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {
        "engine": "own_server:OwnServer",
        "max_new_tokens": 60,
        "batch_size": 8,
        "off_policy_steps": 2,
    },
    "train": {"steps": 5, "batch_size": 8, "micro_batch_size": 4, "checkpoint_every": 1},
}


def small(**sections: dict[str, Any]) -> Config:
    """The demo's recipe on a few rollouts two steps ahead, with changes."""
    return changed("demo-paint", SMALL, sections)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps that nothing disturbs, with a checkpoint after each: read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small(), folder)
    return folder


def test_off_policy_completions_use_older_adapter(run: Path, problems: list[Problem]) -> None:
    config = small()
    for step in range(5):
        author = load_policy(config.model, seed=0)
        if step > 2:
            load_trained(author, run / f"checkpoints/step-{step - 2:06d}/adapter")
        rows = batch_indices(100, 8, step, 0)
        prompts = [author.student_prompt(problems[i].problem) for i in rows]
        seeds = [derive_seed(0, step, row) for row in range(8)]
        engine = LocalEngine(author, batch_size=8)
        expected = engine.generate(prompts, sampling_from(config.rollout), seeds)
        found = stored(run, step + 1)
        assert [tuple(row["completion_ids"]) for row in found] == [c.ids for c in expected]
        assert [tuple(row["engine_log_probs"]) for row in found] == [c.log_probs for c in expected]


def test_off_policy_metrics_separate_mismatch_and_staleness(run: Path) -> None:
    first, *later = read_metrics(run)
    assert {"seconds_wait", "seconds_submit", "seconds_behavior"} < first.keys()
    assert not {"seconds_rollout", "tokens_per_second_rollout"} & first.keys()
    assert first["off_policy_kl"] < 1e-9
    for row in later:
        assert row["logprob_mismatch_mean"] < 1e-5
        assert 1e-7 < row["off_policy_kl"] < 0.1
        assert 0.9 < row["off_policy_ess"] < 1 - 1e-7
        assert row["off_policy_max"] > 1.001


def test_staleness_counts_tokens_scored_twice() -> None:
    def scored(engine: float, now: float, then: tuple[float, ...] | None) -> Rollout:
        completion = Completion((5,), (engine,), truncated=False)
        return Rollout(
            row=0,
            problem=Problem("a", "b", "c", "d"),
            prompt=[1],
            completion=completion,
            text="",
            behavior_log_probs=then,
            tokens={"student_log_prob": [now]},
        )

    rows = [scored(-1.0, math.log(0.5), (math.log(0.25),)), scored(-1.0, -1.0, (-1.0,))]
    unscored = scored(-9.0, -1.0, ())
    assert off_policy_metrics([*rows, unscored]) == {
        "off_policy_kl": pytest.approx((2 - 1 - math.log(2)) / 2),
        "off_policy_ess": pytest.approx((2 + 1) ** 2 / (2 * (4 + 1))),
        "off_policy_max": pytest.approx(2),
    }
    assert logprob_mismatches([*rows, unscored]) == pytest.approx([0, math.log(4) - 1])
    assert off_policy_metrics([unscored]) == {}
    assert off_policy_metrics([scored(-1.0, -2.0, None)]) == {}
    assert logprob_mismatches([scored(-1.0, -2.0, None)]) == [1.0]


@pytest.mark.slow
def test_off_policy_run_resumed_resubmits_pending_completions(run: Path, tmp_path: Path) -> None:
    """Also one that was over, and is made longer."""
    short = tmp_path / "run"
    train(small(train={"steps": 3, "checkpoint_every": 3}), short)
    behind = torch.load(short / "checkpoints/step-000003/behind.pt", weights_only=True)
    assert list(behind) == [3, 4]
    train(small(train={"steps": 5, "checkpoint_every": 3}), short, resume=True)
    assert_same(adapter(short), adapter(run))
    assert_same_history(run, short)


@pytest.mark.slow
def test_off_policy_one_step_differs_and_zero_stores_no_adapters(tmp_path: Path) -> None:
    one, none = (tmp_path / name for name in ("one", "none"))
    # Hot, since the demo's model is sure of most tokens: other weights then draw other ones.
    train(small(rollout={"off_policy_steps": 1, "temperature": 2.0}), one)
    train(small(rollout={"off_policy_steps": 0, "temperature": 2.0}), none)
    assert stored(one, 2)[0]["completion_ids"] == stored(none, 2)[0]["completion_ids"]
    with pytest.raises(AssertionError):
        assert_same(adapter(one), adapter(none))
    assert not list(none.rglob("behind*"))
    assert "off_policy_kl" not in read_metrics(none)[-1]
