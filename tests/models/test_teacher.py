"""The teacher is the model that it is said to be, and the student is never touched by it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from conftest import DEMO, logits_alone, move, untie
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, TeacherConfig
from paint.core.demo_files import MODEL
from paint.grading.mathematics import MathGrader
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.teacher import FILE, open_teacher
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import paint_loss
from paint.resolve.check import check_config
from paint.training import checkpoint
from paint.training.run_log import append_metrics, new_run
from paint.training.train_step import Setup
from runs import assert_same, assert_same_history, changed, small_run, train, train_in_parts

PROMPTS = [[5, 20, 31, 7], [9, 9, 12, 40, 41, 42, 43], [3]]
COMPLETIONS = [[50, 60, 70], [80], [90, 91, 92, 93, 94]]
LENGTHS = [len(ids) for ids in COMPLETIONS]
FULL = replace(DEMO, train_mode="full")
EMA = TeacherConfig(weights="ema", decay=0.75)


def hidden(policy: Policy) -> Tensor:
    return policy.hidden_states(PROMPTS, COMPLETIONS)


def library_logits(model: torch.nn.Module) -> Tensor:
    """The library's own logits of each row alone, at the positions that predict the completions."""
    return torch.cat([logits_alone(model, *row) for row in zip(PROMPTS, COMPLETIONS, strict=True)])


def factors(policy: Policy) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of every adapted layer in float64, by the name of its weight in the base model."""
    state = policy.model.state_dict()
    end = ".lora_A.default.weight"
    layers = [name.removesuffix(end) for name in state if name.endswith(end)]
    assert len(layers) == 7 * policy.model.config.num_hidden_layers
    pairs = [[f"{layer}.lora_{part}.default.weight" for part in "AB"] for layer in layers]
    names = [f"{layer.removeprefix('base_model.model.')}.weight" for layer in layers]
    factors = [(state[a].double().clone(), state[b].double().clone()) for a, b in pairs]
    return dict(zip(names, factors, strict=True))


def averaged(path: list[Tensor], decay: float) -> Tensor:
    """The recursion, written out: decay^n w_0 + (1 − decay) Σ decay^(n−i) w_i."""
    n = len(path) - 1
    later = [(1 - decay) * decay ** (n - i) * w for i, w in enumerate(path) if i]
    return torch.stack([decay**n * path[0], *later]).sum(0)


def base_with(updates: dict[str, Tensor]) -> torch.nn.Module:
    """The demo's model in float64 with these updates written into its weights."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(str(MODEL), dtype="float64")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(updates.get(name, torch.zeros(1)))
    return model


@pytest.fixture
def full() -> Policy:
    return load_policy(FULL, seed=0)


@pytest.fixture
def untied(demo_copy: Path) -> Policy:
    """A model, all of whose weights are trained, with a head that is not the embedding."""
    return load_policy(replace(FULL, path=untie(demo_copy)), seed=0)


def test_frozen_teacher_is_base_model(policy: Policy) -> None:
    teacher = open_teacher(policy, TeacherConfig())
    base = library_logits(base_with({})).float()
    torch.testing.assert_close(library_logits(policy.model), base, rtol=1e-4, atol=1e-4)

    move(policy, 1)
    with teacher.view():
        logits = teacher.lm_head(hidden(policy))
    torch.testing.assert_close(logits, base, rtol=1e-4, atol=1e-4)
    assert not logits.requires_grad
    assert (policy.lm_head(hidden(policy)) - logits).abs().max() > 0.1
    assert not teacher.own


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_ema_teacher_averages_updates_not_factors(
    policy: Policy, dtype: torch.dtype, tolerance: float
) -> None:
    policy.model.to(dtype)
    teacher = open_teacher(policy, EMA)
    path = [factors(policy)]
    for seed in range(4):
        move(policy, seed)
        teacher.follow(1)
        path.append(factors(policy))

    scale = DEMO.lora_alpha / DEMO.lora_rank
    updates = {
        name: averaged([scale * step[name][1] @ step[name][0] for step in path], 0.75)
        for name in path[0]
    }
    expected = library_logits(base_with(updates))
    with teacher.view():
        scored = teacher.lm_head(hidden(policy)).double()
        generated = library_logits(policy.model).double()

    torch.testing.assert_close(scored, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(generated, expected, rtol=tolerance, atol=tolerance)
    assert {value.dtype for value in teacher.own.values()} == {dtype}

    apart = {
        name: scale * averaged([b for _, b in steps], 0.75) @ averaged([a for a, _ in steps], 0.75)
        for name, steps in ((name, [step[name] for step in path]) for name in path[0])
    }
    assert (library_logits(base_with(apart)) - expected).abs().max() > 0.05


@pytest.mark.parametrize("config", [DEMO, FULL])
def test_ema_teacher_without_memory_is_student_of_last_due_step(config: Any) -> None:
    policy = load_policy(config, seed=0)
    teacher = open_teacher(policy, TeacherConfig(weights="ema", decay=0.0, every=3))
    students = [hidden(policy)]
    for steps in range(1, 8):
        move(policy, steps)
        teacher.follow(steps)
        students.append(hidden(policy))
        with teacher.view():
            due = students[steps // 3 * 3]
            torch.testing.assert_close(hidden(policy), due, rtol=1e-4, atol=1e-4)
    assert (students[6] - students[7]).abs().max() > 0.01


@pytest.mark.parametrize(("config", "weights"), [(DEMO, "frozen"), (DEMO, "ema"), (FULL, "frozen")])
def test_teacher_base_is_the_model_before_training(
    config: Any, weights: Literal["frozen", "ema"]
) -> None:
    policy = load_policy(config, seed=0)
    policy.model.double()
    teacher = open_teacher(policy, TeacherConfig(weights=weights, decay=0.0))
    before = library_logits(policy.model).detach()
    move(policy, 1)
    teacher.follow(1)
    with teacher.base.view():
        found = teacher.lm_head(policy.hidden_states(PROMPTS, COMPLETIONS))
    torch.testing.assert_close(
        found.log_softmax(-1), before.log_softmax(-1), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("weights", ["ema", "live"])
def test_teacher_base_that_is_not_kept_is_refused(weights: Literal["ema", "live"]) -> None:
    teacher = open_teacher(load_policy(FULL, seed=0), TeacherConfig(weights=weights))
    with pytest.raises(PolicyError, match=f"not kept .*teacher.weights {weights}; set"):
        _ = teacher.base


@pytest.mark.parametrize("config", [DEMO, FULL])
def test_live_teacher_is_student_without_gradient(config: Any) -> None:
    policy = load_policy(config, seed=0)
    teacher = open_teacher(policy, TeacherConfig(weights="live"))
    move(policy, 1)
    teacher.follow(1)
    with teacher.view():
        seen = hidden(policy)
    assert torch.equal(seen, hidden(policy))
    assert not seen.requires_grad
    assert teacher.lm_head is policy.lm_head
    assert not teacher.own


def test_ema_teacher_is_applied_beside_rounded_weights() -> None:
    policy = load_policy(replace(DEMO, dtype="bfloat16"), seed=0)
    teacher = open_teacher(policy, EMA)
    move(policy, 1, by=1e-4)
    teacher.follow(1)
    before = {name: value.clone() for name, value in policy.base.named_parameters()}
    name, layer = next(iter(policy.adapted.items()))
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = layer.get_base_layer()(x)
    update = torch.nn.functional.linear(x, teacher.own[name].bfloat16())
    with teacher.view():
        assert torch.equal(layer(x), plain + update)
        assert all(torch.equal(p, before[n]) for n, p in policy.base.named_parameters())

    assert teacher.own[name].dtype == torch.float32

    # Most of so small an update would be lost in the weights.
    weight = layer.get_base_layer().weight
    rounded = (weight + teacher.own[name].bfloat16()).double() - weight.double()
    exact = teacher.own[name].double()
    assert 0 < exact.abs().max() < 1e-4
    assert (rounded - exact).norm() > 0.5 * exact.norm()


@pytest.mark.parametrize("kind", ["frozen", "ema", "live"])
@pytest.mark.parametrize("config", [DEMO, FULL])
def test_teacher_view_restores_student(config: Any, kind: Literal["frozen", "ema", "live"]) -> None:
    policy = load_policy(config, seed=0)
    teacher = open_teacher(policy, TeacherConfig(weights=kind))
    move(policy, 1, by=0.02)
    teacher.follow(1)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    places = [parameter.data_ptr() for parameter in policy.trainable]
    student = hidden(policy)

    def look(*, interrupted: bool) -> None:
        with teacher.view():
            hidden(policy)
            if interrupted:
                raise KeyboardInterrupt

    look(interrupted=False)
    with pytest.raises(KeyboardInterrupt):
        look(interrupted=True)
    assert torch.equal(hidden(policy), student)
    assert hidden(policy).requires_grad
    assert [parameter.data_ptr() for parameter in policy.trainable] == places
    assert all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items())


@pytest.mark.parametrize("config", [DEMO, FULL, replace(FULL, gradient_checkpointing=True)])
def test_teacher_view_between_forward_and_backward_keeps_gradients(config: Any) -> None:
    policy = load_policy(config, seed=0)
    teacher = open_teacher(policy, EMA)
    move(policy, 1, by=0.02)

    def gradients(*, looking: bool) -> list[Tensor]:
        policy.model.zero_grad()
        value = hidden(policy).square().mean()
        if looking:
            with teacher.view():
                hidden(policy)
        value.backward()
        return [p.grad.clone() for p in policy.trainable if p.grad is not None]

    alone, looked = gradients(looking=False), gradients(looking=True)
    assert len(alone) == len(looked) > 0

    for x, y in zip(alone, looked, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("config", [DEMO, FULL])
def test_teacher_view_generates_with_teacher_weights(config: Any) -> None:
    policy = load_policy(config, seed=0)
    teacher = open_teacher(policy, TeacherConfig())
    engine, sampling = LocalEngine(policy, batch_size=3), Sampling(1.0, 1.0, -1, 12)
    before = engine.generate(PROMPTS, sampling, range(3))
    move(policy, 1)
    with teacher.view():
        assert engine.generate(PROMPTS, sampling, range(3)) == before
    assert engine.generate(PROMPTS, sampling, range(3)) != before


@pytest.mark.parametrize("head", ["full", "untied"])
def test_full_frozen_teacher_is_untouched_model(head: str, request: pytest.FixtureRequest) -> None:
    policy: Policy = request.getfixturevalue(head)
    teacher = open_teacher(policy, TeacherConfig())
    assert (policy.lm_head.weight is policy.base.get_input_embeddings().weight) == (head == "full")

    model = AutoModelForCausalLM.from_pretrained(policy.base.name_or_path, dtype="float32")
    untouched = library_logits(model).detach()
    copies = {name: value.clone() for name, value in teacher.own.items()}
    move(policy, 1, by=0.02)
    with teacher.view():
        teacher_hidden = hidden(policy)
        torch.testing.assert_close(library_logits(policy.model), untouched, rtol=1e-5, atol=1e-5)

    torch.testing.assert_close(teacher.lm_head(teacher_hidden), untouched, rtol=1e-5, atol=1e-5)
    assert not teacher_hidden.requires_grad

    heads: dict[str, Any] = {"lm_head": policy.lm_head, "teacher_lm_head": teacher.lm_head}
    views = hidden(policy), teacher_hidden
    loss = fused_paint_loss(*views, lengths=LENGTHS, clip=10.0, **heads).value
    exact = paint_loss(library_logits(policy.model), untouched, LENGTHS, clip=10.0).value
    torch.testing.assert_close(loss, exact, rtol=1e-4, atol=0)
    found, expected = (torch.autograd.grad(value, policy.trainable) for value in (loss, exact))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.abs().max() > 0
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    loss = fused_paint_loss(hidden(policy), teacher_hidden, lengths=LENGTHS, **heads).value
    loss.backward()

    frozen = [*teacher.own.values(), *teacher.lm_head.parameters()]
    assert not any(value.requires_grad for value in frozen)
    torch.optim.SGD(policy.trainable, lr=0.1).step()
    assert all(torch.equal(value, copies[name]) for name, value in teacher.own.items())


@pytest.mark.parametrize("head", ["full", "untied"])
def test_full_ema_teacher_averages_every_weight(head: str, request: pytest.FixtureRequest) -> None:
    policy: Policy = request.getfixturevalue(head)
    teacher = open_teacher(policy, EMA)
    model = AutoModelForCausalLM.from_pretrained(policy.base.name_or_path, dtype="float64")

    def weights() -> dict[str, Tensor]:
        return {name: p.detach().double() for name, p in policy.model.named_parameters()}

    path = [weights()]
    for seed in range(3):
        move(policy, seed, by=0.02)
        teacher.follow(1)
        path.append(weights())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(averaged([step[name] for step in path], 0.75))

    with teacher.view():
        logits = teacher.lm_head(hidden(policy))
    torch.testing.assert_close(logits.double(), library_logits(model), rtol=1e-4, atol=1e-4)
    assert (policy.lm_head(hidden(policy)) - logits).abs().max() > 0.1


STEPS = {"steps": 5, "batch_size": 4, "micro_batch_size": 2, "checkpoint_every": 2}
SMALL = small_run(60, limit=40, at_once=4, **STEPS, learning_rate=1e-3)


def small(**sections: dict[str, Any]) -> Config:
    """The demo's recipe on a few rollouts, with changes."""
    return changed("demo-paint", SMALL, sections)


KEPT = [("lora", "ema"), ("full", "frozen"), ("full", "ema")]


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "weights"), KEPT)
def test_run_of_each_teacher_resumed_is_equal(tuning: str, weights: str, tmp_path: Path) -> None:
    model = {"train_mode": tuning}
    # At the rate of an adapter, training all weights diverges, and ends before the last step.
    train_all = {"learning_rate": 1e-4} if tuning == "full" else {}
    config = small(model=model, teacher={"weights": weights, "decay": 0.5}, train=train_all)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    train_in_parts(config, parts, first=3)
    last = Path("checkpoints/step-000005")
    files = {str(path.relative_to(whole / last)) for path in whole.glob(f"{last}/**/*.safetensors")}
    trained = {"full": "model/model", "lora": "adapter/adapter_model"}[tuning] + ".safetensors"
    assert files == {trained, *([FILE] if weights == "ema" else [])}
    for path in files:
        assert_same(*(load_file(run / last / path) for run in (whole, parts)))
    assert_same_history(whole, parts)


def test_training_scores_with_configured_teacher(tmp_path: Path) -> None:
    losses = {}
    short: dict[str, Any] = {"rollout": {"max_new_tokens": 24}}
    short["train"] = {"steps": 2, "micro_batch_size": 4}
    for weights, decay in (("frozen", 0.99), ("ema", 0.0), ("live", 0.99)):
        folder = tmp_path / f"{weights}-{decay}"
        train(small(teacher={"weights": weights, "decay": decay}, **short), folder)
        losses[weights, decay] = [row["loss"] for row in read_metrics(folder)]

    assert len({first for first, _ in losses.values()}) == 1  # all start at the student
    # An average without memory is the student of this step, up to the order of its sums.
    assert losses["ema", 0.0][1] == pytest.approx(losses["live", 0.99][1], rel=1e-3)
    assert losses["frozen", 0.99][1] != pytest.approx(losses["live", 0.99][1], rel=1e-3)


@pytest.mark.parametrize("config", [DEMO, FULL])
def test_ema_teacher_checkpoint_is_exact_and_required(config: Any, tmp_path: Path) -> None:
    policy = load_policy(config, seed=0)
    optimizer = torch.optim.AdamW(policy.trainable)
    teacher = open_teacher(policy, EMA)
    for seed in range(2):
        move(policy, seed, by=0.02)
        teacher.follow(1)

    with MathGrader() as grader:
        engine, accelerator = LocalEngine(policy, batch_size=1), Accelerator()
        setup = Setup(
            check_config(small()), policy, teacher, [], engine, optimizer, accelerator, grader
        )
        new_run(setup.config, tmp_path, {"problems": "", "context": "", "model": {}})
        append_metrics(tmp_path, {"step": 1})
        saved = checkpoint.save(tmp_path, setup, 2)

    other = load_policy(config, seed=7)
    again = open_teacher(other, EMA)
    checkpoint.restore(saved, other, torch.optim.AdamW(other.trainable), again)
    assert all(torch.equal(again.own[name], value) for name, value in teacher.own.items())

    with teacher.view(), again.view():
        assert torch.equal(again.lm_head(hidden(other)), teacher.lm_head(hidden(policy)))
    assert torch.equal(hidden(other), hidden(policy))

    other = load_policy(replace(DEMO, lora_targets=("q_proj",)), seed=0)
    with pytest.raises(PolicyError, match=r"model\.lora_targets"):
        open_teacher(other, EMA).load(saved)
