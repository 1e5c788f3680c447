"""The package's steps against TRL's on the same completions: examples/trl, and SDPO."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import TrainerCallback

import paint
from conftest import DEMO
from paint.algorithms.paint import add_teacher_prompts, score_rollouts
from paint.config.recipe import find_recipe, read_recipe
from paint.core.demo_files import HELD_OUT_PROBLEMS, MODEL
from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from paint.resolve.check import check_config
from paint.training.train_step import Setup
from paint.training.weighting import rows_with_context
from runs import changed
from wrong_references import parse_chain

SWITCHES: dict[str, Any] = {
    **dict.fromkeys(["use_cpu", "disable_tqdm"], True),
    **dict.fromkeys(["shuffle_dataset", "bf16", "dataloader_pin_memory"], False),
    "max_grad_norm": 0.0,  # the gradient is compared before it is clipped
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "report_to": "none",
}
LORA = LoraConfig(
    r=DEMO.lora_rank,
    lora_alpha=DEMO.lora_alpha,
    task_type="CAUSAL_LM",
    target_modules=list(DEMO.lora_targets),
)
FOLDER = Path(__file__).parents[2] / "examples/trl"
STEPS, ROWS = 2, 4
OURS = changed("demo-paint")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental':UserWarning"),
]


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Ids, weights and gradient of each step."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        self.gradients: list[dict[str, Tensor]] = []

    def on_self_distillation_batch_prepared(self, *args: Any, **ids: Any) -> None:
        self.batches.append(ids)

    def on_pre_optimizer_step(self, *args: Any, model: Any, **others: Any) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights.append({name: p.detach().clone() for name, p in trained.items()})
        self.gradients.append({name: p.grad.clone() for name, p in trained.items()})


@pytest.fixture
def setup(policy: Policy, accelerator: Accelerator, unchecked: None) -> Setup:
    """What a step of ours works with; nothing is sampled or graded."""
    absent = cast(Any, None)
    teacher = open_teacher(policy, OURS.teacher)
    return Setup(check_config(OURS), policy, teacher, [], absent, absent, accelerator, absent)


@pytest.mark.parametrize("clip_mode", ["", "pointwise"])
def test_trl_loss_gradient_and_prompts_match_paint_step(
    tmp_path: Path, setup: Setup, policy: Policy, problems: list[Problem], clip_mode: Any
) -> None:
    from paint_trainer import PaintConfig, PaintTrainer

    recorder = Recorder()
    config = PaintConfig(
        str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS // 2,
        gradient_accumulation_steps=2,
        max_completion_length=OURS.rollout.max_new_tokens,
        teacher_thinking=OURS.model.teacher_thinking,
        **SWITCHES,
    )
    rows = [{"problem": p.problem, "solution": p.solution} for p in problems]
    if clip_mode:  # else both have its default
        config.clip_mode = clip_mode
        setup = replace(
            setup, resolved=check_config(OURS.changed("objective", clip_mode=clip_mode))
        )
    trainer = PaintTrainer(
        str(MODEL), config, Dataset.from_list(rows), peft_config=LORA, callbacks=[recorder]
    )
    trainer.train()

    assert len(recorder.batches) == len(recorder.gradients) == STEPS
    for step, batch in enumerate(recorder.batches):
        policy.model.load_state_dict(recorder.weights[step], strict=False)

        rollouts = rollouts_of(policy, batch, problems[ROWS * step :][:ROWS])
        assert len({len(r.completion.ids) for r in rollouts}) > 1  # so that some are padded
        rollouts = add_teacher_prompts(setup, rollouts, step)
        assert_teacher_prompts_are_those_of(batch, rollouts)

        loss, _ = score_rollouts(setup, rollouts)
        policy.model.zero_grad()
        loss.backward()
        logged = trainer.state.log_history[step]
        assert logged["loss"] == pytest.approx(loss.item(), rel=1e-4)
        for name in ("overlap", "mask_ratio"):
            ours = sum(r.metrics[name] for r in rollouts) / ROWS
            assert logged[name] == pytest.approx(ours, rel=1e-5)
        assert_gradients_of(policy, recorder, step)


REWARDS = [0.0, 0.0, 1.0, 0.0]
FEEDBACK = ["It starts wrong.", "", "It ends too early.", "Step 3 is wrong.\n\nSo is step 4."]
"""Of each problem: two completions, of which no feedback, a right peer or both are shown."""


@pytest.mark.parametrize(
    ("divergence", "mode", "alpha", "weights"),
    [("jsd", "full_logits", 0.5, "live"), ("sampled_token", "sampled_token", 1.0, "frozen")],
)
def test_sdpo_prompts_loss_and_gradient_match_trl(
    tmp_path: Path,
    policy: Policy,
    accelerator: Accelerator,
    problems: list[Problem],
    unchecked: None,
    divergence: str,
    mode: Any,
    alpha: float,
    weights: str,
) -> None:
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    recipe = read_recipe(find_recipe("sdpo"), OURS)
    recipe = recipe.changed("objective", divergence=divergence).changed("teacher", weights=weights)
    recipe = recipe.changed("rollout", samples_per_problem=2).changed("train", batch_size=ROWS)
    teacher, absent = open_teacher(policy, recipe.teacher), cast(Any, None)
    ours = Setup(check_config(recipe), policy, teacher, [], absent, absent, accelerator, absent)

    # Without a word that the model does not know, both views are one but for float32's rounding.
    chosen = [p for p in problems if len(parse_chain(p.problem).words) > 1][: STEPS * ROWS // 2]
    rows = []
    for problem, feedback in zip(chosen, FEEDBACK, strict=True):
        asked = policy.decode(policy.student_prompt(problem), special=True)
        user = asked.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        rows.append({"prompt": [{"role": "user", "content": user}], "privileged_context": feedback})
    recorder = Recorder()
    config = SDPOConfig(
        str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        num_generations=2,
        max_completion_length=OURS.rollout.max_new_tokens,
        chat_template_kwargs={"enable_thinking": False},
        include_environment_feedback=True,
        distillation_mode=mode,
        distillation_alpha=alpha,
        teacher_model_kind={"frozen": "base"}.get(weights, weights),
        **SWITCHES,
    )
    trainer = SDPOTrainer(
        str(MODEL),
        reward_funcs=lambda completions, **_: REWARDS[: len(completions)],
        args=config,
        train_dataset=Dataset.from_list(rows),
        peft_config=LORA,
        callbacks=[recorder],
    )
    trainer.train()

    assert len(recorder.batches) == len(recorder.gradients) == STEPS
    for step, batch in enumerate(recorder.batches):
        policy.model.load_state_dict(recorder.weights[step], strict=False)
        of_step = [chosen[2 * step + row // 2] for row in range(ROWS)]
        sampled = rollouts_of(policy, batch, of_step)
        rollouts = []
        for rollout, reward in zip(sampled, REWARDS, strict=True):
            grade = Grade(reward, feedback=FEEDBACK[2 * step + rollout.row // 2])
            rollouts.append(replace(rollout, grade=grade))
        rollouts = add_teacher_prompts(ours, rollouts, step)
        kept = rows_with_context(rollouts)
        assert batch["self_distillation_mask"].tolist() == [row in kept for row in range(ROWS)]
        assert_teacher_prompts_are_those_of(batch, rollouts)

        learned = [r for r in rollouts if r.row in kept]
        loss, values = score_rollouts(ours, learned)
        policy.model.zero_grad()
        loss.backward()
        share = len(kept) / ROWS  # TRL's mean is over all completions, ours over those learned from
        by_token = values["loss"]
        if mode == "sampled_token":  # TRL logs the product whose gradient both have
            by_token = by_token * values["student_log_prob"]
        means = [part.mean() for part in by_token.split([len(r.completion.ids) for r in learned])]
        logged = trainer.state.log_history[step]["loss"]
        assert logged == pytest.approx(float(sum(means)) / ROWS, rel=1e-4)
        assert_gradients_of(policy, recorder, step, share)


def assert_teacher_prompts_are_those_of(batch: dict[str, Tensor], rollouts: list[Rollout]) -> None:
    width = batch["completion_ids"].shape[1]
    masks = batch["teacher_attention_mask"].bool()
    for rollout, ids, mask in zip(rollouts, batch["teacher_input_ids"], masks, strict=True):
        assert rollout.teacher_prompt is not None
        assert ids[:-width][mask[:-width]].tolist() == rollout.teacher_prompt.prompt


def assert_gradients_of(policy: Policy, recorder: Recorder, step: int, share: float = 1.0) -> None:
    """TRL's gradients of a step are this share of ours."""
    gradients = recorder.gradients[step]
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    assert trained.keys() == gradients.keys()
    for name, parameter in trained.items():
        assert parameter.grad is not None
        largest = float(parameter.grad.abs().max())
        assert largest > 0 or (step == 0 and "lora_A" in name), name  # B is 0 at first
        torch.testing.assert_close(
            gradients[name], share * parameter.grad, rtol=1e-4, atol=3e-5 * largest
        )


def rollouts_of(policy: Policy, batch: dict[str, Tensor], problems: list[Problem]) -> list[Rollout]:
    """TRL's completions as ours; the prompts before them must be those of the problems."""
    ids = batch["completion_ids"]
    written = batch["teacher_attention_mask"][:, -ids.shape[1] :].bool()
    rollouts = []
    for row, problem in enumerate(problems):
        prompt = policy.student_prompt(problem)
        assert batch["prompt_ids"][row, -len(prompt) :].tolist() == prompt
        completion = tuple(ids[row][written[row]].tolist())
        sampled = Completion(completion, (0.0,) * len(completion), truncated=False)
        rollouts.append(Rollout(row, problem, prompt, sampled, policy.decode(completion)))
    return rollouts


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_trl_readme_block_trains_and_checkpoint_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", (FOLDER / "README.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    few: dict[str, Any] = {"limit": 2, "samples": 1, "rollout": {"max_new_tokens": 8}}
    places = "runs/trl/checkpoint-2", HELD_OUT_PROBLEMS
    results = paint.evaluate(places[0], benchmarks=places[1], thinking=False, **few)
    assert set(results.samples["policy"]) == {"base", "checkpoint-2"}
