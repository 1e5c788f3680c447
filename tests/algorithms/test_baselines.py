"""SFT and GRPO: their equations, parity with TRL's trainers, and steps repeated by hand."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from conftest import DEMO, logits_alone, move
from paint.algorithms import grpo
from paint.algorithms.grpo import advantages, grpo_terms, reward, score_group
from paint.config.run_folder import latest_checkpoint, read_metrics
from paint.config.schema import Config, Reduction
from paint.data.problems import Problem, batch_indices
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy, load_policy
from paint.objective.loss import weighted_sum
from paint.objective.loss_options import Objective
from paint.training.run_log import step_metrics
from paint.training.solutions import reference, score_reference
from paint.training.train_step import Setup, accumulate, add_grades, update
from runs import adapter, assert_same, changed, opened_setup, stored, train, write_problems
from verdicts import is_correct

STEP = {"steps": 1, "batch_size": 12, "micro_batch_size": 12, "checkpoint_every": 1}
SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 12},
    "train": STEP | {"learning_rate": 1e-4},
}
ADAMS_NOISE = 0.01  # of a learning rate, where a gradient is nearly zero


def small(method: str, **sections: dict[str, Any]) -> Config:
    """The method's recipe for the demo on a few rows, with changes."""
    group = {"rollout": {"samples_per_problem": 4}} if method == "grpo" else {}
    return changed(f"demo-{method}", SMALL, group, sections)


def test_weighted_sum_averages_over_tokens_or_completions() -> None:
    log_prob = torch.tensor([-1.0, -3.0, -2.0, -4.0, -9.0], dtype=torch.float64, requires_grad=True)
    by_token = -weighted_sum(log_prob, [2, 3], Objective(reduction="token"))
    by_completion = -weighted_sum(log_prob, [2, 3], Objective())
    assert by_token.item() == pytest.approx((1 + 3 + 2 + 4 + 9) / 5)
    assert by_completion.item() == pytest.approx(((1 + 3) / 2 + (2 + 4 + 9) / 3) / 2)
    [slope] = torch.autograd.grad(by_completion, log_prob)
    assert slope.tolist() == pytest.approx([-1 / 4, -1 / 4, -1 / 6, -1 / 6, -1 / 6])


def test_advantages_are_group_normalized_rewards() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.5, 2.0, -1.0, 0.25]
    expected = [
        (value - sum(group) / 4) / (statistics.stdev(group) + 1e-4)
        for group in (rewards[:4], rewards[4:])
        for value in group
    ]
    found = advantages(torch.tensor(rewards, dtype=torch.float64), 4)
    assert found.tolist() == pytest.approx(expected)
    # Bessel's correction: n − 1 = 3.
    assert expected[0] == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-4))


def test_grpo_terms_kl_without_base_log_probs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kl 0\.04.*base"):
        grpo_terms(torch.zeros(1), torch.zeros(1), torch.zeros(1), kl=0.04)


def test_grpo_terms_match_loop_over_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    log_prob, old, base_log_prob = (
        -3 * torch.rand(200, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    advantage = torch.randn(200, generator=generator, dtype=torch.float64)
    log_prob.requires_grad_()
    given: dict[str, Any] = {"clip": 0.3, "kl": 0.7, "base_log_prob": base_log_prob}
    loss, figures = grpo_terms(log_prob, old, advantage, **given)
    [slope] = torch.autograd.grad(loss.sum(), log_prob)
    rows = torch.stack([log_prob.detach(), old, advantage, base_log_prob], dim=1).tolist()
    for n, (new, before, gained, base) in enumerate(rows):
        w, k = math.exp(new) / math.exp(before), math.exp(base) / math.exp(new)
        gone = w > 1.3 if gained > 0 else w < 0.7
        reached = (1.3 if gained > 0 else 0.7) if gone else w
        assert figures["clipped"][n] == gone
        assert figures["base_kl"][n].item() == pytest.approx(k - math.log(k) - 1)
        assert loss[n].item() == pytest.approx(-reached * gained + 0.7 * (k - math.log(k) - 1))
        assert slope[n].item() == pytest.approx((0 if gone else -w * gained) + 0.7 * (1 - k))
    assert 20 < float(figures["clipped"].sum()) < 180


# Parity with TRL: its trainers as a user makes them, on the same problems, weights and (for GRPO)
# completions.

OFF = ["bf16", "gradient_checkpointing", "dataloader_pin_memory"]
TRL_OPTIONS: dict[str, Any] = {"max_steps": 1, "report_to": "none", "use_cpu": True}
TRL_OPTIONS |= dict.fromkeys(OFF, False) | {"disable_tqdm": True, "per_device_train_batch_size": 12}


def gradients(model: Any) -> dict[str, Tensor]:
    """Of all adapter parameters, by name, and forgotten there."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name] = parameter.grad.clone()
            parameter.grad = None
    return found


def assert_equal_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """To float32's tolerance: what two ways of adding up the same numbers may differ by."""
    assert len(ours) == 2 * 7 * 3  # A and B of seven layers in three blocks
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        largest = float(gradient.abs().max())
        assert largest > 0, name
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=3e-5 * largest)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [12, 5])
def test_sft_loss_and_gradient_match_trl(
    tmp_path: Path, accelerator: Accelerator, problems: list[Problem], micro_batch_size: int
) -> None:
    from trl import SFTConfig, SFTTrainer

    ours, theirs = load_policy(DEMO, seed=0), load_policy(DEMO, seed=0)
    for policy in (ours, theirs):
        move(policy)
    # TRL tokenises a prompt and its completion as one text, in which the demo's tokenizer joins a
    # dollar at the completion's beginning with the prompt's end.
    chosen = [replace(p, solution=f"We get {p.solution}") for p in problems[:12]]
    prompts = [ours.decode(ours.student_prompt(p.problem), special=True) for p in chosen]
    rows = [{"prompt": t, "completion": p.solution} for t, p in zip(prompts, chosen, strict=True)]
    options = TRL_OPTIONS | {"max_length": None, "completion_only_loss": True}
    trainer = SFTTrainer(
        model=theirs.model,
        args=SFTConfig(output_dir=str(tmp_path), shuffle_dataset=False, **options),
        train_dataset=Dataset.from_list(rows),
        processing_class=theirs.tokenizer,
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    trained_on = batch["labels"] != -100
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=trained_on.sum())
    loss.backward()

    config = small("sft", train={"micro_batch_size": micro_batch_size})
    with opened_setup(config, ours, accelerator) as setup:
        references = [reference(setup, row, problem) for row, problem in enumerate(chosen)]
        scored = accumulate(setup, references, partial(score_reference, setup))
    for row, ids, learnt in zip(references, batch["input_ids"], trained_on, strict=True):
        # TRL tokenised the text itself, and ended it.
        assert ids[learnt].tolist() == list(row.completion.ids)
        assert ids[: len(row.prompt)].tolist() == row.prompt

    assert len({len(r.completion.ids) for r in references}) > 2
    figures = step_metrics(scored, Objective(reduction="token"))
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-5)
    entropy = trainer._metrics["train"]["entropy"][0]
    assert figures["student_entropy"] == pytest.approx(entropy, rel=1e-4)
    assert_equal_gradients(gradients(ours.model), gradients(trainer.model))


def answered(policy: Policy, problems: Sequence[Problem]) -> list[Rollout]:
    """Groups of four written by hand: two right, one right, none right; one of them cut."""
    end = policy.tokenizer.eos_token
    rollouts: list[Rollout] = []
    for rights, problem in zip((2, 1, 0), problems, strict=False):
        right, wrong = problem.solution, r"The answer is $\boxed{no}$."
        short = rf"So $\boxed{{{problem.answer}}}$."
        texts = {
            2: [right, short, wrong, "I"],
            1: [wrong, right[:-9], short, right[:40]],
            0: [wrong] * 3 + ["So"],
        }
        for text in texts[rights]:
            ended = text + end * (text != right[:40])
            ids = policy.tokenizer.encode(ended, add_special_tokens=False)
            completion = Completion(tuple(ids), (0.0,) * len(ids), truncated=text == right[:40])
            prompt = policy.student_prompt(problem.problem)
            rollouts.append(Rollout(len(rollouts), problem, prompt, completion, policy.decode(ids)))
    return rollouts


def grpo_trainer(policy: Policy, rollouts: Sequence[Rollout], folder: Path, **options: Any) -> Any:
    """TRL's trainer, which takes our completions for its samples and our verdicts for rewards."""
    from trl import GRPOConfig, GRPOTrainer

    def written(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = [list(r.completion.ids) for r in rollouts]
        return {"prompt_ids": [r.prompt for r in rollouts], "completion_ids": ids, "logprobs": None}

    def verified(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(is_correct(*pair)) for pair in zip(completions, answer, strict=True)]

    # The KL of DeepSeekMath's equation 4, not times the ratio.
    options |= TRL_OPTIONS | {"temperature": 1.2, "use_bias_correction_kl": False}
    settings = GRPOConfig(str(folder), num_generations=4, num_iterations=2, **options)
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=verified,
        rollout_func=written,
        args=settings,
        train_dataset=Dataset.from_list(asked(rollouts)),
        processing_class=policy.tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1  # as its loop sets it before a step
    return trainer


def asked(rollouts: Sequence[Rollout]) -> list[dict[str, str]]:
    """The rows of TRL's dataset."""
    return [{"prompt": r.problem.problem, "answer": r.problem.answer} for r in rollouts]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:You are using 'rollout_func', which is an experimental feature:UserWarning"
)
@pytest.mark.parametrize(("reduction", "loss_type"), [("completion", "grpo"), ("token", "dapo")])
@pytest.mark.parametrize("kl", [0.0, 0.04])
def test_grpo_loss_gradient_and_advantages_match_trl(
    tmp_path: Path,
    accelerator: Accelerator,
    problems: Any,
    reduction: Reduction,
    loss_type: str,
    kl: float,
) -> None:
    """A second update on the same completions: the adapter is no longer that which wrote them."""
    ours, theirs = load_policy(DEMO, seed=0), load_policy(DEMO, seed=0)
    rollouts = answered(ours, problems)
    trainer = grpo_trainer(theirs, rollouts, tmp_path, loss_type=loss_type, beta=kl, epsilon=0.2)
    trainer.model.train()
    for policy in (ours, theirs):
        move(policy)
    inputs = trainer._generate_and_score_completions(asked(rollouts))
    move(theirs, 2, by=0.02)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()

    options = {"kl": kl, "clip": 0.2}
    config = small("grpo", train={"micro_batch_size": 5, "options": options})
    config = config.changed("objective", reduction=reduction)
    with opened_setup(config, ours, accelerator) as setup:
        score = partial(score_group, setup, setup.resolved.algorithm.options)
        rollouts = reward(setup, add_grades(setup, rollouts, 0))
        first = accumulate(setup, rollouts, partial(score, {}))
        gradients(ours.model)
        move(ours, 2, by=0.02)
        old = {s.row: s.tokens["tempered_log_prob"] for s in first}
        scored = accumulate(setup, rollouts, partial(score, old))

    assert [r.metrics["reward"] for r in rollouts] == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    gained = [r.metrics["advantage"] for r in rollouts]
    assert gained == pytest.approx(inputs["advantages"].tolist(), abs=1e-6)
    reported = {name: values[0] for name, values in trainer._metrics["train"].items()}
    by_token = step_metrics(scored, Objective(reduction="token"))
    assert reported["clip_ratio/low_mean"] > 0.02
    assert reported["clip_ratio/high_mean"] > 0.02
    assert by_token["clip_frac"] == pytest.approx(reported["clip_ratio/region_mean"])
    assert by_token["student_entropy"] == pytest.approx(reported["entropy"], rel=1e-4)
    assert by_token["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert reported["frac_reward_zero_std"] == pytest.approx(1 / 3)
    figures = step_metrics(scored, Objective(reduction=reduction))
    assert figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
    if kl:
        assert by_token["base_kl"] == pytest.approx(reported["kl"], rel=1e-4)
        assert by_token["base_kl"] > 0.01
    assert_equal_gradients(gradients(ours.model), gradients(trainer.model))


def token_log_probs(policy: Policy, row: dict[str, Any], temperature: float) -> Tensor:
    """Of a stored completion's tokens, from the logits of one unpadded pass."""
    logits = logits_alone(policy.model, row["prompt_ids"], row["completion_ids"])
    ids = torch.tensor(row["completion_ids"])
    return -cross_entropy(logits / temperature, ids, reduction="none")


def weights(policy: Policy) -> dict[str, Tensor]:
    """The adapter, named as in a checkpoint."""
    found: dict[str, Tensor] = peft.get_peft_model_state_dict(policy.model)
    return {name: value.clone() for name, value in found.items()}


def take_step(policy: Policy, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.trainable, 1.0)
    optimizer.step()
    optimizer.zero_grad()


def by_adam(policy: Policy, config: Config) -> torch.optim.Optimizer:
    return torch.optim.AdamW(policy.trainable, lr=config.train.learning_rate, weight_decay=0.0)


@pytest.mark.parametrize("reduction", ["token", "completion"])
def test_sft_step_matches_manual(tmp_path: Path, problems: list[Problem], reduction: str) -> None:
    # With seed 0, a gradient is so near zero that Adam makes a third of a rate of its rounding.
    config = small("sft", train={"steps": 2, "seed": 1}, objective={"reduction": reduction})
    train(config, tmp_path / "run")
    policy = load_policy(config.model, seed=1)
    optimizer = by_adam(policy, config)
    for number, metrics in enumerate(read_metrics(tmp_path / "run")):
        rows = stored(tmp_path / "run", number + 1)
        chosen = [problems[i] for i in batch_indices(len(problems), 12, number, config.train.seed)]
        assert [row["problem_id"] for row in rows] == [problem.id for problem in chosen]
        for row, problem in zip(rows, chosen, strict=True):
            assert row["text"] == problem.solution
            assert row["prompt_ids"] == policy.student_prompt(problem.problem)
            assert row["completion_ids"][-1] == policy.tokenizer.eos_token_id
            assert policy.decode(row["completion_ids"][:-1], special=True) == problem.solution
            assert row["source"] == "reference"
        found = [token_log_probs(policy, row, 1.0) for row in rows]
        parts = found if reduction == "token" else [x.mean()[None] for x in found]
        loss = -torch.cat(parts).mean()
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["rollout_tokens"] == 0
        absent = {"seconds_rollout", "truncated_frac", "accuracy", "logprob_mismatch_mean"}
        assert not absent & metrics.keys()
        take_step(policy, optimizer, loss)
    assert_same(adapter(tmp_path / "run"), weights(policy), tolerance=2 * ADAMS_NOISE * 1e-4)


@pytest.mark.parametrize(("iterations", "kl"), [(1, 0.0), (2, 0.0), (2, 0.5)])
def test_grpo_step_matches_manual_step(
    tmp_path: Path, problems: list[Problem], iterations: int, kl: float
) -> None:
    rate = 1e-4 if iterations == 1 else 3e-3
    changes: dict[str, Any] = {"iterations": iterations, "kl": kl}
    config = small("grpo", train={"learning_rate": rate, "seed": 4, "options": changes})
    train(config, tmp_path / "run")
    rows, by_id = stored(tmp_path / "run"), {p.id: p for p in problems}
    chosen = batch_indices(len(problems), 3, 0, config.train.seed)
    assert [row["problem_id"] for row in rows[::4]] == [problems[i].id for i in chosen]
    gained, flat = [], 0
    for group in (rows[:4], rows[4:8], rows[8:]):
        assert len({row["problem_id"] for row in group}) == 1
        assert len({row["text"] for row in group}) > 1
        rewards = [float(is_correct(row["text"], by_id[row["problem_id"]].answer)) for row in group]
        assert [row["reward"] for row in group] == rewards
        assert [float(row["correct"]) for row in group] == rewards
        spread = statistics.stdev(rewards)
        flat += spread == 0
        gained += [(value - statistics.mean(rewards)) / (spread + 1e-4) for value in rewards]
    assert [row["advantage"] for row in rows] == pytest.approx(gained)
    [metrics] = read_metrics(tmp_path / "run")
    mean = sum(row["reward"] for row in rows) / 12
    assert metrics["reward"] == metrics["accuracy"] == pytest.approx(mean)
    assert metrics["frac_reward_zero_std"] == pytest.approx(flat / 3)
    assert 0 < metrics["frac_reward_zero_std"] < 1
    assert metrics["logprob_mismatch_mean"] < 1e-4
    assert metrics["rollout_tokens"] == sum(len(row["completion_ids"]) for row in rows)

    policy = load_policy(config.model, seed=config.train.seed)
    optimizer = by_adam(policy, config)
    with torch.no_grad():
        old = [token_log_probs(policy, row, config.rollout.temperature) for row in rows]
    for _ in range(iterations):
        loss, clipped, away = torch.zeros(()), [], 0.0
        for row, before, base, advantage in zip(rows, old, old, gained, strict=True):
            new = token_log_probs(policy, row, config.rollout.temperature)
            ratio = (new - before).exp()
            gone = (ratio > 1.2) if advantage > 0 else (ratio < 0.8) & (advantage < 0)
            penalty = (base - new).exp() - (base - new) - 1
            reached = torch.where(gone, ratio.detach(), ratio)
            loss = loss + (kl * penalty - advantage * reached).mean() / 12
            clipped.append(gone.float().mean())
            away = max(away, float((ratio.detach() - 1).abs().max()))
        take_step(policy, optimizer, loss)
    assert_same(adapter(tmp_path / "run"), weights(policy), tolerance=2 * ADAMS_NOISE * rate)
    assert metrics["clip_frac"] == pytest.approx(float(sum(clipped) / 12), abs=1e-3)
    if iterations == 2:
        assert away > 0.2
        assert 0 < metrics["clip_frac"] < 1
    state = torch.load(tmp_path / "run/checkpoints/step-000001/optimizer.pt")["state"]
    assert {int(entry["step"]) for entry in state.values()} == {iterations}


def test_grpo_equal_rewards_leave_adapter_as_it_is(tmp_path: Path, problems: list[Problem]) -> None:
    rows = [{"problem": p.problem, "solution": p.solution, "answer": "no"} for p in problems[:6]]
    path = write_problems(tmp_path / "problems.jsonl", rows)
    config = small("grpo", data={"path": path}, train={"options": {"iterations": 2}})
    train(config, tmp_path / "run")
    [metrics] = read_metrics(tmp_path / "run")
    assert (metrics["reward"], metrics["frac_reward_zero_std"], metrics["loss"]) == (0, 1, 0)
    assert_same(adapter(tmp_path / "run"), weights(load_policy(config.model, seed=0)))


@pytest.mark.slow
def test_grpo_failure_between_iterations_keeps_last_complete_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"steps": 3, "checkpoint_every": 3, "learning_rate": 1e-3}
    config = small("grpo", train=changes | {"options": {"iterations": 2}})
    train(config, tmp_path / "whole")
    made: list[int] = []

    def fail_at_the_fourth(setup: Setup, number: int) -> float:
        if len(made) == 3:  # the second update of the second step
            raise MemoryError("out of memory")
        made.append(number)
        return update(setup, number)

    monkeypatch.setattr(grpo, "update", fail_at_the_fourth)
    with pytest.raises(MemoryError):
        train(config, tmp_path / "failed")
    assert latest_checkpoint(tmp_path / "failed") is None  # half a step is no checkpoint
    monkeypatch.undo()
    train(config, tmp_path / "failed", resume=True)
    assert_same(adapter(tmp_path / "failed"), adapter(tmp_path / "whole"))
