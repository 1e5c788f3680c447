"""Rows of k + 1 steps in one call: of one adapter, 0 to k updates old, the same after a resume."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.data.problems import Problem, batch_indices
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.models.weights import load_trained
from paint.training.callbacks import Callback
from runs import adapter, assert_same, assert_same_history, changed, stored, train, train_in_parts

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8, "off_policy_steps": 2},
    "train": {"steps": 5, "batch_size": 8, "micro_batch_size": 4, "checkpoint_every": 1},
}
LAGS = [0, 1, 2, 0, 1]
"""Updates by which the completions of each of five steps are old."""


def small(**sections: dict[str, Any]) -> Config:
    """The demo's recipe on a few rollouts of three steps at once, with changes."""
    return changed("demo-paint", SMALL, sections)


@pytest.fixture(scope="module")
def calls() -> list[tuple[int, int]]:
    """The rows of each call of the engine in ``run``, and the most that it samples at once."""
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, int]]) -> Path:
    """Five steps that nothing disturbs, with a checkpoint after each: read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    stream = LocalEngine.stream

    def spied(engine: LocalEngine, prompts: Any, *request: Any) -> None:
        calls.append((len(prompts), engine.batch_size))
        stream(engine, prompts, *request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "stream", spied)
        train(small(), folder)
    return folder


def test_batched_completions_use_adapter_of_groups_start(
    run: Path, problems: list[Problem]
) -> None:
    config = small()
    for step, lag in enumerate(LAGS):
        author = load_policy(config.model, seed=0)
        if step > lag:
            load_trained(author, run / f"checkpoints/step-{step - lag:06d}/adapter")
        rows = batch_indices(100, 8, step, 0)
        prompts = [author.student_prompt(problems[i].problem) for i in rows]
        seeds = [derive_seed(0, step, row) for row in range(8)]
        engine = LocalEngine(author, batch_size=8)
        expected = engine.generate(prompts, sampling_from(config.rollout), seeds)
        found = stored(run, step + 1)
        assert [tuple(row["completion_ids"]) for row in found] == [c.ids for c in expected]
        for row, completion in zip(found, expected, strict=True):
            assert row["engine_log_probs"] == pytest.approx(completion.log_probs, abs=1e-5)


@pytest.mark.usefixtures("run")
def test_batched_engine_samples_all_rows_of_group_in_one_call(calls: list[tuple[int, int]]) -> None:
    # The last group is cut at the run's end. Before them, a run measures how long a step takes.
    assert calls[-2:] == [(24, 24), (16, 24)]


def test_batched_metrics_show_lag_and_time_of_sampling(run: Path) -> None:
    rows = read_metrics(run)
    for row, lag in zip(rows, LAGS, strict=True):
        assert row["logprob_mismatch_mean"] < 1e-5
        if lag == 0:
            assert (row["off_policy_kl"], row["off_policy_ess"], row["off_policy_max"]) == (0, 1, 1)
        else:
            assert 1e-7 < row["off_policy_kl"] < 0.1
            assert 0.9 < row["off_policy_ess"] < 1 - 1e-7
            assert row["off_policy_max"] > 1.001
        assert "seconds_wait" not in row
        for name in ("seconds_sync", "seconds_rollout", "tokens_per_second_rollout"):
            assert (name in row) == (lag == 0)
    assert rows[2]["off_policy_kl"] > rows[1]["off_policy_kl"]

    sampled = rows[0]["tokens_per_second_rollout"] * rows[0]["seconds_rollout"]
    assert sampled == pytest.approx(sum(row["rollout_tokens"] for row in rows[:3]))


class StopAfter(Callback):
    """Ends a run after a step."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_step(self, step: int, metrics: Mapping[str, float], rollouts: Any) -> bool:
        return step == self.last


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow),
        4,  # within the group that is cut at the run's end
    ],
)
def test_batched_run_resumed_within_group_is_bitwise_equal(
    run: Path, tmp_path: Path, steps: int
) -> None:
    folder = tmp_path / "run"
    train(small(), folder, callbacks=[StopAfter(steps)])
    assert_same(adapter(folder), adapter(run, steps))
    train(small(), folder, resume=True)
    assert_same(adapter(folder), adapter(run))
    assert_same_history(run, folder)


@pytest.mark.slow
def test_batched_run_made_longer_equals_longer_run(run: Path, tmp_path: Path) -> None:
    """Its end cut a group short, so fewer rows were sampled together: log-probs may round."""
    train_in_parts(small(), tmp_path / "run", 4)
    assert_same(adapter(tmp_path / "run"), adapter(run))
    for step in range(1, 6):
        for found, expected in zip(stored(tmp_path / "run", step), stored(run, step), strict=True):
            assert found["completion_ids"] == expected["completion_ids"]
            expected_log_probs = pytest.approx(expected["engine_log_probs"], abs=1e-5)
            assert found["engine_log_probs"] == expected_log_probs


def test_batched_checkpoint_holds_adapter_of_steps_left_in_group(run: Path) -> None:
    def behind(done: int) -> Path:
        return run / f"checkpoints/step-{done:06d}/behind.pt"

    start = load_policy(small().model, seed=0)
    load_trained(start, run / "checkpoints/step-000003/adapter")
    expected = {1: [1, 2], 2: [2], 3: [], 4: [4, 5], 5: [5]}
    for done, pending in expected.items():
        adapters = torch.load(behind(done), weights_only=True)
        assert list(adapters) == pending
        if done > 3:  # the adapter before step 4, from which its group was sampled
            for held, parameter in zip(adapters[5], start.trainable, strict=True):
                assert torch.equal(held, parameter)
    # Steps that share an adapter store it once.
    assert behind(1).stat().st_size == pytest.approx(behind(2).stat().st_size, rel=0.01)
