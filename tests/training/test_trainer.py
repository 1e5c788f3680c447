"""The step and the run: one update is the algorithm's, and nothing else decides its result."""

import json
import math
import shutil
import signal
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from conftest import logits_alone
from paint import NonFiniteError
from paint.config.recipe import from_table
from paint.config.run_folder import (
    RunError,
    latest_checkpoint,
    read_metrics,
    read_run,
    read_run_json,
)
from paint.config.schema import Config, Reduction
from paint.core.distributed import sum_gradients
from paint.core.storage import CorruptFileError, write_json
from paint.data.problems import Problem, batch_indices
from paint.grading.contract import Grade
from paint.inference.adapter_sync_check import LogprobMismatchError
from paint.inference.engine import Completion, EngineError
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.models.policy import load_policy
from paint.objective import fused
from paint.objective.loss import paint_loss, token_log_probs
from paint.objective.loss_options import Objective
from paint.objective.masking import mask_ratio, mask_solution, overlap, overlap_metrics
from paint.resolve.structure import linear_layers
from paint.training.checkpoint import RanksDiffer
from paint.training.loop import log_step
from paint.training.run_log import step_metrics
from paint.training.train_step import Setup
from processes import on_full_disk, started, train_command
from runs import (
    adapter,
    assert_same,
    assert_same_history,
    changed,
    kill_and_resume,
    last_checkpoint,
    stored,
    train,
    train_by_two_ranks,
    train_in_parts,
    wait_for,
)
from tiny_models import save_tiny, tiny_config, tiny_model
from verdicts import is_correct

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 4},
    # A hundredth of the update is Adam's noise where a gradient is nearly zero: 1e-6 at this rate.
    "train": {"steps": 3, "batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-4}
    | {"checkpoint_every": 2},
}
FOUR = {"samples_per_problem": 4}
UPDATES = {"options": {"iterations": 2, "kl": 0.1}}
GROUPS: dict[str, dict[str, Any]] = {"rollout": FOUR, "train": UPDATES}


def small(**sections: dict[str, Any]) -> Config:
    """The demo's recipe on a few rollouts, with changes."""
    return changed("demo-paint", SMALL, sections)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps that nothing disturbs, with checkpoints after the second and third: read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small(), folder)
    return folder


def test_paint_step_matches_algorithm(run: Path, problems: list[Problem]) -> None:
    """Recompute a stored step from its parts: overlap, ratio, mask, both views, the loss."""
    config = small()
    rows, metrics = stored(run), read_metrics(run)[0]
    by_id = {p.id: p for p in problems}
    expected = [problems[i].id for i in batch_indices(100, 8, 0, config.train.seed)]
    assert [row["problem_id"] for row in rows] == expected

    # Step 1 was scored by the fresh student. In float64, since a first token's KL is so small that
    # what float32 rounds here is seen in it.
    policy = load_policy(config.model, seed=config.train.seed)
    policy.model.double()
    student: list[torch.Tensor] = []
    teacher: list[torch.Tensor] = []
    lengths = []
    for row in rows:
        problem, ids = by_id[row["problem_id"]], row["completion_ids"]
        assert row["text"] == policy.decode(ids)
        assert row["overlap"] == overlap(row["text"], problem.solution)
        for name, share in overlap_metrics(row["text"], problem.solution).items():
            assert row[name] == share
        assert row["mask_ratio"] == mask_ratio(row["overlap"], wrong=0.3, correct=0.4)
        assert row["context"] == mask_solution(problem.solution, row["mask_ratio"])
        assert row["prompt_ids"] == policy.student_prompt(problem.problem)
        assert row["teacher_prompt_ids"] == policy.teacher_prompt(
            problem.problem, row["context"], complete=False
        )
        assert row["correct"] == is_correct(row["text"], problem.answer)
        for prompt, views in (("prompt_ids", student), ("teacher_prompt_ids", teacher)):
            with torch.no_grad():
                views.append(logits_alone(policy.model, row[prompt], ids))
        lengths.append(len(ids))
    assert config.objective.clip_mode == "huber"
    loss = paint_loss(torch.cat(student), torch.cat(teacher), lengths, clip_mode="huber")
    assert metrics["loss"] == pytest.approx(float(loss.value), rel=1e-4, abs=1e-7)
    for name, stat in (("kl", "kl"), ("selected_frac", "selected")):
        mean = sum(float(part.mean()) for part in loss.stats[stat].split(lengths)) / 8
        assert metrics[name] == pytest.approx(mean, rel=1e-4)
    first_kl = [float(part[0]) for part in loss.stats["kl"].split(lengths)]
    assert metrics["first_kl"] == pytest.approx(sum(first_kl) / 8, rel=1e-4, abs=1e-7)
    for name in ("overlap", "overlap_without_answer"):
        assert metrics[name] == pytest.approx(sum(row[name] for row in rows) / 8)
    assert metrics["logprob_mismatch_mean"] < 1e-4
    sampled = torch.tensor([i for row in rows for i in row["completion_ids"]])
    engine = [x for row in rows for x in row["engine_log_probs"]]
    torch.testing.assert_close(
        torch.tensor(engine, dtype=torch.float64),
        token_log_probs(torch.cat(student), sampled),
        rtol=1e-3,
        atol=1e-3,
    )


def test_train_takes_configured_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError("the plain row work")

    monkeypatch.setattr(fused, "measure", refuse)
    train(small(objective={"impl": "reference"}, train={"steps": 1}), tmp_path / "reference")
    with pytest.raises(NotImplementedError, match="the plain row work"):
        train(small(objective={"impl": "chunked"}, train={"steps": 1}), tmp_path / "chunked")


TWO_STEPS, TWELVE = {"steps": 2}, {"steps": 1, "batch_size": 12}
OF = "paintvariants"
OF_RIGHT = {"method": f"{OF}.oasis:Oasis"}
AHEAD = {"engine": "own_server:OwnServer", "off_policy_steps": 1}
PAIRS = {"samples_per_problem": 2, "temperature": 1.25}
BY_TOKEN = {"reduction": "token", "skip_tokens": 9, "sft_weight": 0.3}
SPLIT: dict[str, dict[str, Any]] = {
    "paint": {"train": TWO_STEPS},
    "on correct": {"train": TWELVE | {"method": f"{OF}.on_correct:OnCorrect"}},
    "by verdict": {"train": TWELVE | {"method": f"{OF}.by_verdict:ByVerdict"}},
    "entropy gap": {"train": TWELVE | {"method": f"{OF}.entropy_gap:EntropyGap"}},
    "by token": {"objective": BY_TOKEN, "train": TWELVE | {"micro_batch_tokens": 400}},
    "rewarded": {
        "rollout": FOUR,
        "objective": {"sft_weight": 0.3},  # three solutions on two ranks
        "train": TWELVE | {"method": f"{OF}.rewarded:Rewarded"},
    },
    "off policy": {"rollout": {"off_policy_steps": 1}, "train": TWO_STEPS},
    "off policy, server": {"rollout": AHEAD | PAIRS, "train": TWO_STEPS | OF_RIGHT},
    "sft": {"train": TWELVE},
    # Conversations have one or two turns, so that a rank waits for the other's.
    "conversations": {
        "train": TWELVE,
        "rollout": {"max_new_tokens": 60},
        "conversation": {"environment": "extensions.check_answer:CheckAnswer"},
    },
    # The second of three groups lies on both of two ranks. With seed 0, one weight's gradient is so
    # near 0 that Adam's ratio turns its rounding into 3e-6 on some CPUs.
    "kept": {"rollout": FOUR, "train": {"batch_size": 12, "seed": 2} | OF_RIGHT},
    "grpo": GROUPS | {"train": UPDATES | TWELVE},
    "failed calls": GROUPS
    | {"train": TWELVE, "grading": {"grader": "extensions.flaky_grader:grade"}},
}
RECIPES = {"sft": "demo-sft", "grpo": "demo-grpo", "failed calls": "demo-grpo"}


COUNTS = ("kept_completions", "grader_failures", "frac_reward_zero_std", "rollout_tokens")


def split_config(case: str, size: int) -> Config:
    micro = {"train": {"micro_batch_size": size}}
    return changed(RECIPES.get(case, "demo-paint"), SMALL, SPLIT[case], micro)


@pytest.fixture(scope="module")
def by_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks of each case."""
    home = tmp_path_factory.mktemp("ranks")
    said = train_by_two_ranks({case: split_config(case, 3) for case in SPLIT}, home)
    assert said.splitlines().count("2 ranks") == len(SPLIT)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("case", SPLIT)
def test_train_result_does_not_depend_on_micro_batches_or_processes(
    by_two_ranks: Path, tmp_path: Path, case: str
) -> None:
    for size in (3, 12):
        train(split_config(case, size), tmp_path / str(size))
    expected = read_metrics(tmp_path / "12")
    for run in (tmp_path / "3", by_two_ranks / case):
        assert_same(adapter(run), adapter(tmp_path / "12"), tolerance=2e-6)
        found = read_metrics(run)
        # Adam would hide a gradient that is a mean over ranks instead of a sum.
        for key in ("loss", "sft_loss", "gradient_norm", "first_kl", "reward", *COUNTS):
            values = [[row.get(key, 0.0) for row in rows] for rows in (found, expected)]
            assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-7)
        # Rows were dealt, and are written in the order of the minibatch all the same.
        for row, other in zip(stored(run), stored(tmp_path / "12"), strict=True):
            for key in ("problem_id", "completion_ids", "context", "advantage"):
                assert row.get(key) == other.get(key)


def test_train_step_by_other_micro_batches_has_the_same_gradient(run: Path, tmp_path: Path) -> None:
    train(small(train={"steps": 1, "micro_batch_size": 3}), tmp_path)  # of 8: 3, 3 and 2
    found, expected = read_metrics(tmp_path)[0], read_metrics(run)[0]
    for key in ("loss", "kl", "gradient_norm", "first_kl"):
        assert found[key] == pytest.approx(expected[key], rel=1e-4)


def test_train_of_ranks_with_other_weights_ends_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_two_others(digests: list[str]) -> list[str]:
        return [*digests, *digests, "of other weights"]

    monkeypatch.setattr("paint.training.checkpoint.all_gather_objects", with_two_others)
    with pytest.raises(RanksDiffer, match="after step 1, the weights of rank 2 differ"):
        train(small(train={"steps": 1, "batch_size": 2}), tmp_path)
    assert latest_checkpoint(tmp_path) is None


def test_step_metrics_are_averaged_like_loss() -> None:
    def scored(loss: list[float], selected: list[float], truncated: bool, text: str) -> Rollout:
        n = len(loss)
        names = ("clipped", "unclipped_mass", "student_entropy", "teacher_entropy")
        tokens = {"loss": loss, "kl": [2 * x for x in loss], "selected": selected}
        tokens |= {name: [0.5] * n for name in names} | {"student_log_prob": [-1.0] * n}
        completion = Completion(tuple(range(n)), tuple(-1.0 - 0.1 * i for i in range(n)), truncated)
        problem = Problem("p", "s", "7", "1")
        grade = Grade(0.0) if truncated else Grade(1.0)
        rollout = Rollout(0, problem, [], completion, text, metrics={"overlap": 0.5}, grade=grade)
        return replace(rollout, tokens=tokens)

    rows = [
        scored([1.0, 3.0], [1.0, 0.0], True, "no answer"),
        scored([1.0, 1.0, 1.0, 5.0], [0.0, 0.0, 0.0, 1.0], False, r"\boxed{7}"),
    ]

    def metrics(reduction: Reduction, skip_tokens: int = 0) -> dict[str, float]:
        options = Objective(reduction=reduction, skip_tokens=skip_tokens)
        return step_metrics(rows, options)

    by_completion, by_token = metrics("completion"), metrics("token")
    assert by_completion["loss"] == pytest.approx((2 + 2) / 2)
    assert by_token["loss"] == pytest.approx(12 / 6)
    assert by_completion["selected_frac"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert by_token["selected_frac"] == pytest.approx(2 / 6)
    assert by_completion["selected_kl"] == pytest.approx((2 + 10) / 2)
    assert by_completion["truncated_frac"] == by_completion["accuracy"] == 0.5
    skipped = metrics("completion", 1)
    assert by_completion["first_kl"] == by_token["first_kl"] == skipped["first_kl"] == 2
    assert by_completion["completion_tokens"] == 3
    assert by_completion["rollout_tokens"] == 6
    assert by_completion["overlap"] == 0.5
    assert skipped["loss"] == (3 + 7 / 3) / 2
    assert metrics("token", 2)["loss"] == 3
    assert by_completion["logprob_mismatch_mean"] == pytest.approx((0.1 + 0.1 + 0.2 + 0.3) / 6)


FIVE_STEPS = {"steps": 5, "checkpoint_every": 2}
CASES = {
    "before the first checkpoint": (1, small(rollout=PAIRS, train=FIVE_STEPS | OF_RIGHT)),
    # That takes milliseconds: more of them, to meet one.
    "while one is written": (0, small(train=FIVE_STEPS | {"checkpoint_every": 1})),
    "off policy": (4, small(rollout=PAIRS | {"off_policy_steps": 2}, train=FIVE_STEPS | OF_RIGHT)),
    "off policy, server": (
        3,
        small(rollout=PAIRS | AHEAD | {"off_policy_steps": 2}, train=FIVE_STEPS | OF_RIGHT),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_run_killed_and_resumed_is_bitwise_equal(tmp_path: Path, case: str) -> None:
    steps, config = CASES[case]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(config, whole)

    def is_due() -> bool:
        if steps:
            return len(read_metrics(killed)) >= steps
        return bool(list((killed / "checkpoints").glob(".step-00000[1-4]*")))

    kill_and_resume(config, killed, is_due)
    assert_same(adapter(killed), adapter(whole))
    assert_same_history(whole, killed)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "sections"), [("demo-grpo", GROUPS), ("demo-sft", {})])
def test_run_of_other_algorithm_resumed_is_bitwise_equal(
    tmp_path: Path, recipe: str, sections: dict[str, dict[str, Any]]
) -> None:
    config = changed(recipe, SMALL, sections, {"train": FIVE_STEPS})
    train(config, tmp_path / "whole")
    train_in_parts(config, tmp_path / "parts", first=3)
    assert_same(adapter(tmp_path / "parts"), adapter(tmp_path / "whole"))
    assert_same_history(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_interrupted_saves_and_names_resume(tmp_path: Path, number: signal.Signals) -> None:
    config = small(train={"steps": 50, "checkpoint_every": 100})
    folder = tmp_path / "run"
    process = started(train_command(config, folder))
    wait_for(lambda: len(read_metrics(folder)) >= 1, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert f"paint resume {folder}" in output
    assert last_checkpoint(folder) == f"step-{len(read_metrics(folder)):06d}"
    assert "Traceback" not in output


def test_reduce_gradients_counts_each_gradient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def twice(_: Accelerator, flat: torch.Tensor, how: str) -> torch.Tensor:
        sent.append((flat.numel(), how))
        return 2 * flat

    monkeypatch.setattr(Accelerator, "num_processes", 2)
    monkeypatch.setattr(Accelerator, "reduce", twice)
    monkeypatch.setattr("paint.core.distributed.MESSAGE_NUMBERS", 10)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,), (12,), (1,))]
    for number, parameter in enumerate(parameters[:3], start=1):
        parameter.grad = torch.full_like(parameter, number)
    sum_gradients(Accelerator(cpu=True), parameters)
    assert sent == [(10, "sum"), (12, "sum"), (1, "sum")]
    # A rank without rows adds nothing.
    for parameter, value in zip(parameters, (2, 4, 6, 0), strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full_like(parameter, value))


@pytest.mark.slow
def test_checkpoint_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    config = small(train={"steps": 2, "checkpoint_every": 1})
    folder = tmp_path / "run"
    result = on_full_disk(train_command(config, folder), kilobytes=60)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "could not be written" in result.stderr
    assert f"paint resume {folder}" in result.stderr
    assert not list((folder / "checkpoints").iterdir())
    train(read_run(folder), folder, resume=True)
    train(config, tmp_path / "whole")
    assert_same(adapter(folder), adapter(tmp_path / "whole"))


def test_resume_with_other_config_is_refused_with_difference(run: Path) -> None:
    with pytest.raises(RunError, match=r"objective\.interpolation_weight\b.*0\.03.*0\.1"):
        train(small(train={"steps": 4}, objective={"interpolation_weight": 0.1}), run, resume=True)
    with pytest.raises(RunError, match="not lowered to 1"):
        train(small(train={"steps": 1}), run, resume=True)
    with pytest.raises(RunError, match="already holds a run"):
        train(small(), run)


def test_resume_keeps_micro_batches_that_were_chosen_at_start(tmp_path: Path) -> None:
    config = small(train={"steps": 1, "batch_size": 2, "micro_batch_tokens": "auto"})
    train(config, tmp_path)

    facts = read_run_json(tmp_path)
    chosen = facts["config"]["train"], facts["config"]["model"]
    assert chosen[0]["micro_batch_tokens"] == 4096
    assert chosen[1]["gradient_checkpointing"] is False
    chosen[0]["micro_batch_tokens"] = 512  # as another machine would have chosen
    write_json(tmp_path / "run.json", facts)

    train(config.changed("train", steps=2), tmp_path, resume=True)
    assert read_run(tmp_path).train.micro_batch_tokens == 512


def test_train_all_linear_trains_every_layer_and_records_setting(tmp_path: Path) -> None:
    model = tiny_config("gpt2", n_positions=1024)
    targets = {"path": save_tiny(model, tmp_path / "model"), "lora_targets": ["all-linear"]}
    train(small(model=targets, train={"steps": 1, "batch_size": 2}), tmp_path / "run")
    assert read_run_json(tmp_path / "run")["config"]["model"]["lora_targets"] == ["all-linear"]
    trained = set()
    for name in adapter(tmp_path / "run"):
        trained.add(name.rpartition(".lora_")[0].rpartition(".")[2])
    assert trained == {*linear_layers(tiny_model(model))}


def go_on(folder: Path) -> None:
    train(small(train={"steps": 4}), folder, resume=True)


@pytest.mark.slow
def test_resume_with_other_model_or_template_is_refused(demo_copy: Path, tmp_path: Path) -> None:
    config = small(model={"path": str(demo_copy)}, train={"steps": 1, "batch_size": 2})
    train(config, tmp_path / "run")
    longer = config.changed("train", steps=2)

    weights = load_file(demo_copy / "model.safetensors")
    name = sorted(weights)[3]
    noisy = {key: value.clone() for key, value in weights.items()}
    noisy[name].view(-1)[7] += 1e-3  # one number of one matrix
    save_file(noisy, demo_copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunError, match=rf"weights.*{demo_copy}"):
        train(longer, tmp_path / "run", resume=True)

    save_file(weights, demo_copy / "model.safetensors", {"format": "pt"})
    [template] = demo_copy.glob("chat_template*")
    text = template.read_text("utf-8")
    template.write_text(text.replace("assistant", "Assistant"), "utf-8")
    with pytest.raises(RunError, match="chat template"):
        train(longer, tmp_path / "run", resume=True)

    template.write_text(text, "utf-8")
    train(longer, tmp_path / "run", resume=True)
    assert len(read_metrics(tmp_path / "run")) == 2


def test_resume_without_the_metrics_of_its_steps_is_refused(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"lacks steps before a checkpoint of step 3"):
        go_on(folder)
    assert last_checkpoint(folder) == "step-000003"


def test_train_does_not_overwrite_run_without_settings(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match=r"metrics.jsonl .* run.json is missing"):
        train(small(), folder)


@pytest.mark.slow
def test_resume_checkpoint_of_other_step_or_run_is_refused(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    checkpoint = folder / "checkpoints/step-000003"
    train(small(train={"seed": 1}), tmp_path / "other")
    for source, message in (
        (run / "checkpoints/step-000002", r"belongs to step 2; delete .*step-000003 to resume"),
        (tmp_path / "other/checkpoints/step-000003", r"belongs to another run than .*run\.json"),
    ):
        shutil.rmtree(checkpoint)
        shutil.copytree(source, checkpoint)
        with pytest.raises(CorruptFileError, match=rf"step-000003 {message}"):
            go_on(folder)


def test_non_finite_loss_ends_run_and_keeps_checkpoints(tmp_path: Path) -> None:
    config = small(train={"steps": 6, "learning_rate": 1e30, "checkpoint_every": 1})
    with pytest.raises(NonFiniteError, match=r"train\.learning_rate"):
        train(config, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run") is not None


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_not_saved_and_resume_repeats_the_step(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    def damage(setup: Setup, *arguments: Any, **printed: Any) -> list[str]:
        if arguments[-1] == 2:
            with torch.no_grad():
                setup.policy.trainable[0].view(-1)[3] = value
        return log_step(setup, *arguments, **printed)

    config = small(train={"steps": 3, "checkpoint_every": 1})
    named = r"^after step 2, .*not finite.* not saved; .* goes on from step-000001$"
    with monkeypatch.context() as patched:
        patched.setattr("paint.training.loop.log_step", damage)
        with pytest.raises(NonFiniteError, match=named):
            train(config, tmp_path / "run")
    assert last_checkpoint(tmp_path / "run") == "step-000001"
    train(config, tmp_path / "run", resume=True)
    assert_same(adapter(tmp_path / "run"), adapter(run, step=3))


def test_update_beyond_32_bits_ends_run_by_its_setting(tmp_path: Path) -> None:
    config = small(train={"steps": 1, "learning_rate": 1e38})
    with pytest.raises(NonFiniteError, match=r"^step 1: .*lower train\.learning_rate"):
        train(config, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run") is None


def test_engine_failure_between_steps_leaves_complete_checkpoint(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted = []

    def fail_at_the_third(engine: LocalEngine) -> None:
        adopted.append(engine)
        if len(adopted) == 3:
            raise EngineError("gone")

    monkeypatch.setattr(LocalEngine, "sync_weights", fail_at_the_third)
    with pytest.raises(EngineError, match="gone"):
        train(small(train={"steps": 4, "checkpoint_every": 10}), tmp_path / "run")
    assert last_checkpoint(tmp_path / "run") == "step-000002"
    assert_same(adapter(tmp_path / "run"), adapter(run, step=2))


def drift(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """From this call on the engine takes a tenth of a nat off what it reports of each token."""
    stream, calls = LocalEngine.stream, count(1)

    def drifted(
        engine: LocalEngine, prompts: Any, sampling: Any, seeds: Any, finished: Any
    ) -> None:
        by = -0.1 * (next(calls) >= first)

        def shifted(row: int, c: Completion) -> None:
            finished(row, replace(c, log_probs=tuple(x + by for x in c.log_probs)))

        stream(engine, prompts, sampling, seeds, shifted)

    monkeypatch.setattr(LocalEngine, "stream", drifted)


@pytest.mark.slow
def test_engine_mismatch_stops_run_before_update(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(monkeypatch, first=3)
    with pytest.raises(LogprobMismatchError, match=r"step 3\b.*local.*0\.1 nats"):
        train(small(train={"steps": 4, "checkpoint_every": 10}), tmp_path / "run")
    assert_same(adapter(tmp_path / "run"), adapter(run, step=2))

    wider = small(rollout={"max_logprob_mismatch": 0.2}, train={"steps": 4, "checkpoint_every": 10})
    train(wider, tmp_path / "run", resume=True)
    gaps = [row["logprob_mismatch_mean"] for row in read_metrics(tmp_path / "run")]
    assert gaps == pytest.approx([0, 0, 0.1, 0.1], abs=1e-4)


@pytest.mark.parametrize(
    "config",
    [changed("demo-grpo", SMALL), small(rollout={"off_policy_steps": 2})],
    ids=["grpo", "off policy"],
)
def test_engine_mismatch_of_every_algorithm_stops_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    drift(monkeypatch, first=1)
    with pytest.raises(LogprobMismatchError, match=r"step 1\b.*local.*0\.1 nats"):
        train(config, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run") is None


def test_run_folder_stores_config_versions_and_requested_files(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    resolved = small().changed("rollout", engine="local")  # what auto becomes on a CPU
    resolved = resolved.changed("model", gradient_checkpointing=False)
    assert from_table(facts["config"]) == read_run(run) == resolved
    assert facts["versions"]["torch"] == version("torch")
    assert facts["git"] is None or len(facts["git"].removesuffix("-dirty")) == 40
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {"run.json", "metrics.jsonl", "rollouts", "tokens", "checkpoints"}
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert checkpoints == ["step-000002", "step-000003"]
    assert not list(run.rglob("behind*"))  # of off-policy steps alone, as their metrics
    assert not [name for name in read_metrics(run)[-1] if name.startswith("off_policy")]


def test_trackers_receive_every_metric(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = {"trackers": ["tensorboard"]}
    train(small(train={"steps": 1, "batch_size": 2}, log=log), tmp_path)
    [events] = tmp_path.rglob("paint/events.out.tfevents.*")
    accumulator = EventAccumulator(str(events.parent))
    accumulator.Reload()
    [metrics] = read_metrics(tmp_path)
    assert [e.value for e in accumulator.Scalars("loss")] == pytest.approx([metrics["loss"]])
    tags = set(accumulator.Tags()["scalars"])
    assert set(metrics) - {"step"} <= tags
    assert "step" not in tags  # it is the axis, and trackio's own name
