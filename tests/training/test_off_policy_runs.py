"""Off-policy runs: completions of older adapters, exactly so old, and the same after a resume.

Of the runs, one samples ahead by an engine that is remote by contract, and generates in this
process; the other samples the rows of k + 1 steps in one call.
"""

import math
from collections.abc import Mapping
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
from paint.training.callbacks import Callback
from paint.training.log_probs import logprob_mismatches, off_policy_metrics
from runs import adapter, assert_same, assert_same_history, changed, stored, train, train_in_parts

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8, "off_policy_steps": 2},
    "train": {"steps": 5, "batch_size": 8, "micro_batch_size": 4, "checkpoint_every": 1},
}
ENGINES = {"ahead": "own_server:OwnServer", "at once": "local"}
LAGS = {"ahead": [0, 1, 2, 2, 2], "at once": [0, 1, 2, 0, 1]}
"""Updates by which the completions of each of five steps are old."""


def small(kind: str = "at once", **sections: dict[str, Any]) -> Config:
    """The demo's recipe on a few rollouts of older adapters, with changes."""
    return changed("demo-paint", SMALL, {"rollout": {"engine": ENGINES[kind]}}, sections)


@pytest.fixture(scope="module")
def calls() -> list[tuple[int, int]]:
    """Rows of each call of the local engine in ``runs``, and the most that it samples at once."""
    return []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, int]]) -> dict[str, Path]:
    """Five steps that nothing disturbs, with a checkpoint after each, of both kinds: read only."""
    folders = {kind: tmp_path_factory.mktemp("runs") / "run" for kind in ENGINES}
    stream = LocalEngine.stream

    def spied(engine: LocalEngine, prompts: Any, *request: Any) -> None:
        calls.append((len(prompts), engine.batch_size))
        stream(engine, prompts, *request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "stream", spied)
        for kind, folder in folders.items():
            train(small(kind), folder)
    return folders


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("ahead", 0.0), pytest.param("at once", 1e-5, marks=pytest.mark.slow)]
)
def test_off_policy_completions_use_older_adapter(
    runs: dict[str, Path], problems: list[Problem], kind: str, tolerance: float
) -> None:
    config, run = small(kind), runs[kind]
    for step, lag in enumerate(LAGS[kind]):
        author = load_policy(config.model, seed=0)
        if step > lag:
            load_trained(author, run / f"checkpoints/step-{step - lag:06d}/adapter")
        rows = batch_indices(100, 8, step, 0)
        prompts = [author.student_prompt(problems[i].problem) for i in rows]
        seeds = [derive_seed(0, step, row) for row in range(8)]
        engine = LocalEngine(author, batch_size=8)
        expected = engine.generate(prompts, sampling_from(config.rollout), seeds)
        for row, completion in zip(stored(run, step + 1), expected, strict=True):
            assert tuple(row["completion_ids"]) == completion.ids
            log_probs = pytest.approx(completion.log_probs, rel=0, abs=tolerance)
            assert row["engine_log_probs"] == log_probs


def test_off_policy_metrics_separate_mismatch_and_staleness(runs: dict[str, Path]) -> None:
    first, *later = read_metrics(runs["ahead"])
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
def test_off_policy_run_resumed_resubmits_pending_completions(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """Also one that was over, and is made longer."""
    short = tmp_path / "run"
    train(small("ahead", train={"steps": 3, "checkpoint_every": 3}), short)
    behind = torch.load(short / "checkpoints/step-000003/behind.pt", weights_only=True)
    assert list(behind) == [3, 4]
    train(small("ahead", train={"steps": 5, "checkpoint_every": 3}), short, resume=True)
    assert_same(adapter(short), adapter(runs["ahead"]))
    assert_same_history(runs["ahead"], short)


@pytest.mark.usefixtures("runs")
def test_batched_engine_samples_all_rows_of_group_in_one_call(calls: list[tuple[int, int]]) -> None:
    # The last group is cut at the run's end. Before them, a run measures how long a step takes.
    assert calls[-2:] == [(24, 24), (16, 24)]


def test_batched_metrics_show_lag_and_time_of_sampling(runs: dict[str, Path]) -> None:
    rows = read_metrics(runs["at once"])
    for row, lag in zip(rows, LAGS["at once"], strict=True):
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
    runs: dict[str, Path], tmp_path: Path, steps: int
) -> None:
    folder = tmp_path / "run"
    train(small(), folder, callbacks=[StopAfter(steps)])
    assert_same(adapter(folder), adapter(runs["at once"], steps))
    train(small(), folder, resume=True)
    assert_same(adapter(folder), adapter(runs["at once"]))
    assert_same_history(runs["at once"], folder)


@pytest.mark.slow
def test_batched_run_made_longer_equals_longer_run(runs: dict[str, Path], tmp_path: Path) -> None:
    """Its end cut a group short, so fewer rows were sampled together: log-probs may round."""
    train_in_parts(small(), tmp_path / "run", 4)
    assert_same(adapter(tmp_path / "run"), adapter(runs["at once"]))
    for step in range(1, 6):
        for found, expected in zip(
            stored(tmp_path / "run", step), stored(runs["at once"], step), strict=True
        ):
            assert found["completion_ids"] == expected["completion_ids"]
            expected_log_probs = pytest.approx(expected["engine_log_probs"], abs=1e-5)
            assert found["engine_log_probs"] == expected_log_probs


def test_batched_checkpoint_holds_adapter_of_steps_left_in_group(runs: dict[str, Path]) -> None:
    def behind(done: int) -> Path:
        return runs["at once"] / f"checkpoints/step-{done:06d}/behind.pt"

    start = load_policy(small().model, seed=0)
    load_trained(start, runs["at once"] / "checkpoints/step-000003/adapter")
    expected = {1: [1, 2], 2: [2], 3: [], 4: [4, 5], 5: [5]}
    for done, pending in expected.items():
        adapters = torch.load(behind(done), weights_only=True)
        assert list(adapters) == pending
        if done > 3:  # the adapter before step 4, from which its group was sampled
            for held, parameter in zip(adapters[5], start.trainable, strict=True):
                assert torch.equal(held, parameter)
    # Steps that share an adapter store it once.
    assert behind(1).stat().st_size == pytest.approx(behind(2).stat().st_size, rel=0.01)
