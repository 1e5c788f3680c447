"""The fused loss and the reference agree, gradients included; three products, a chunk of memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import reference_float64
from paint.config.schema import ClipMode, Impl
from paint.objective import fused
from paint.objective.divergences import DIVERGENCES
from paint.objective.fused import (
    CPU_CHUNK,
    GPU_CHUNK,
    ImplError,
    LogProbs,
    RowWork,
    choose_row_work,
    fused_log_probs,
    fused_paint_loss,
)
from paint.objective.loss import ENTROPY_FLOOR, Loss, entropy, paint_loss
from paint.objective.loss_options import PAPER_LOSS, Objective, with_changes

KINDS, CLIP_MODES = list(DIVERGENCES), get_args(ClipMode)
LOSSES: list[tuple[str, ClipMode]] = [
    *product((name for name, d in DIVERGENCES.items() if not d.is_sampled), CLIP_MODES),
    ("sampled_token", "none"),
    ("sampled_token", "huber"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where the kernels run, or are interpreted
WIDE = torch.float64
linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton exists for Linux alone")
FUSED = ["chunked", pytest.param("triton", marks=linux)]
# For tests whose interpreted kernels take more than a second.
FUSED_SLOW = ["chunked", pytest.param("triton", marks=[linux, pytest.mark.slow])]


@dataclass
class Case:
    """Both views' hidden states of completions of these lengths, a head, and sampled tokens."""

    student: Tensor
    teacher: Tensor
    head: nn.Linear
    lengths: Sequence[int]
    tokens: Tensor

    def to(self, dtype: torch.dtype) -> "Case":
        """The same numbers in another dtype, with gradients of their own."""
        head = nn.Linear(self.head.in_features, self.head.out_features, device=DEVICE, dtype=dtype)
        head.load_state_dict(self.head.state_dict())
        student = self.student.detach().to(DEVICE, dtype).requires_grad_()
        teacher, tokens = self.teacher.to(DEVICE, dtype), self.tokens.to(DEVICE)
        return Case(student, teacher, head, self.lengths, tokens)

    def gradients(self, loss: Loss) -> dict[str, Tensor]:
        """Of the loss, for whatever requires one."""
        inputs = {"hidden": self.student, "weight": self.head.weight, "bias": self.head.bias}
        inputs = {name: value for name, value in inputs.items() if value.requires_grad}
        found = torch.autograd.grad(loss.value, list(inputs.values()), retain_graph=True)
        return dict(zip(inputs, found, strict=True))


def case(
    lengths: Sequence[int], v: int = 40, h: int = 6, *, seed: int = 0, dtype: torch.dtype = WIDE
) -> Case:
    """Peaked views that agree on a third of the tokens; elsewhere every clip cuts some of them."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    student = torch.randn(n, h, generator=generator, dtype=torch.float64)
    apart = torch.rand(n, 1, generator=generator, dtype=torch.float64) > 1 / 3
    teacher = student + apart * torch.randn(n, h, generator=generator, dtype=torch.float64)
    head = nn.Linear(h, v, dtype=torch.float64)
    torch.nn.init.normal_(head.weight, std=1.5, generator=generator)
    torch.nn.init.normal_(head.bias, generator=generator)
    tokens = torch.randint(0, v, (n,), generator=generator)
    # Rounded once, so that every dtype computes with the same numbers.
    student, teacher = student.bfloat16().double(), teacher.bfloat16().double()
    head.bfloat16().double()
    return Case(student.requires_grad_(), teacher, head, lengths, tokens).to(dtype)


def reference(this: Case, *, teacher_lm_head: nn.Linear | None = None, **options: Any) -> Loss:
    """The reference on the heads' own logits."""
    teacher_logits = (teacher_lm_head or this.head)(this.teacher)
    return paint_loss(
        this.head(this.student), teacher_logits, this.lengths, tokens=this.tokens, **options
    )


def options_of(divergence: str, **options: Any) -> dict[str, Any]:
    """A divergence with the paper's clip where it takes one, and enough interpolation to show."""
    clip_mode = "none" if divergence == "sampled_token" else "pointwise"
    mixed = {"top_fraction": 0.3, "interpolation_weight": 0.3}
    return mixed | {"divergence": divergence, "clip_mode": clip_mode} | options


def of(this: Case, impl: Impl, **options: Any) -> Loss:
    """The loss under test."""
    inputs = this.student, this.teacher, this.head, this.lengths
    return fused_paint_loss(*inputs, tokens=this.tokens, impl=impl, **options)


def assert_same(found: Loss, expected: Loss, this: Case, *, tolerance: float = 1e-11) -> None:
    """Value, per-token values, every statistic and every gradient."""
    figures, wanted = (
        {"value": x.value, "per_token": x.per_token} | x.stats for x in (found, expected)
    )
    if found.value.requires_grad:
        figures, wanted = figures | this.gradients(found), wanted | this.gradients(expected)
    assert set(figures) == set(wanted)
    for name in wanted:
        msg = partial("{}: {}".format, name)
        bounds: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "msg": msg}
        torch.testing.assert_close(figures[name], wanted[name], **bounds)


@pytest.mark.parametrize("impl", ["reference", *FUSED_SLOW])
@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    v=st.integers(2, 40),
    seed=st.integers(0, 2**20),
    chunk_tokens=st.integers(1, 30),
    options=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.5, 1.0, 1.1]),
            "interpolation_weight": st.sampled_from([0.0, 0.03, 0.6, 1.0]),
            "top_fraction": st.sampled_from([0.0, 0.03, 0.5, 1.0]),
            "clip": st.sampled_from([0.001, 0.06, 0.5]),
            "reduction": st.sampled_from(["completion", "token"]),
        }
    ),
    loss=st.sampled_from(LOSSES),
)
def test_fused_loss_matches_reference_for_any_options_and_chunks(
    impl: Impl,
    lengths: list[int],
    v: int,
    seed: int,
    chunk_tokens: int,
    options: dict[str, Any],
    loss: tuple[str, ClipMode],
) -> None:
    this = case(lengths, v, seed=seed)
    options |= {"divergence": loss[0], "clip_mode": loss[1]}
    found = of(this, impl, chunk_tokens=chunk_tokens, **options)
    assert_same(found, reference(this, **options), this)


@pytest.mark.parametrize("impl", FUSED_SLOW)
@pytest.mark.parametrize(("divergence", "clip_mode"), LOSSES)
@pytest.mark.parametrize("chunk_tokens", [64, 7])
def test_fused_loss_matches_reference_for_every_divergence_and_clip(
    impl: Impl, divergence: str, clip_mode: ClipMode, chunk_tokens: int
) -> None:
    this = case([13, 0, 1, 20])
    options = options_of(divergence, clip_mode=clip_mode, clip=0.05)
    expected = reference(this, **options)
    if clip_mode != "none":
        assert 0 < expected.stats["clipped"].mean() < 1
    assert_same(of(this, impl, chunk_tokens=chunk_tokens, **options), expected, this)


@pytest.mark.parametrize("impl", ["reference", *FUSED_SLOW])
@pytest.mark.parametrize("divergence", KINDS)
@pytest.mark.parametrize("chunk_tokens", [64, 7])
def test_fused_loss_teacher_head_matches(impl: Impl, divergence: str, chunk_tokens: int) -> None:
    this, other = case([13, 0, 1, 20]), case([1], seed=1).head
    options = options_of(divergence)
    found = of(this, impl, teacher_lm_head=other, chunk_tokens=chunk_tokens, **options)
    expected = reference(this, teacher_lm_head=other, **options)
    assert abs(expected.value - reference(this, **options).value) > 0.01
    assert_same(found, expected, this)
    found.value.backward()
    assert other.weight.grad is other.bias.grad is None
    assert this.head.weight.grad is not None


@pytest.mark.parametrize("impl", ["reference", *FUSED])
def test_fused_loss_teacher_head_weight_in_other_dtype(impl: Impl) -> None:
    this, other = case([6, 3], dtype=torch.float32), case([1], seed=1).head
    weight = other.weight.detach().to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        other.bias.zero_()
    found = of(this, impl, teacher_lm_head=weight)
    assert_same(found, reference(this, teacher_lm_head=other.float()), this, tolerance=1e-4)


@pytest.mark.parametrize("impl", ["reference", *FUSED])
def test_fused_loss_frozen_head_and_teacher_get_no_gradient(impl: Impl) -> None:
    this = case([6, 3])
    this.head.requires_grad_(False)
    this.teacher.requires_grad_()
    of(this, impl).value.backward()
    assert this.student.grad is not None
    assert this.student.grad.any()
    assert this.teacher.grad is this.head.weight.grad is this.head.bias.grad is None


@pytest.mark.parametrize("impl", FUSED)
def test_fused_loss_trains_head_alone(impl: Impl) -> None:
    this = case([6, 3])
    this.student = this.student.detach()
    assert_same(of(this, impl, chunk_tokens=4), reference(this), this)


@pytest.mark.parametrize("impl", FUSED)
def test_fused_loss_weight_tensor_is_head_without_bias(impl: Impl) -> None:
    this = case([6, 3])
    weight = this.head.weight
    expected = paint_loss(this.student @ weight.T, this.teacher @ weight.T, this.lengths)
    found = fused_paint_loss(this.student, this.teacher, weight, this.lengths, impl=impl)
    pair = (torch.autograd.grad(x.value, [this.student, weight]) for x in (found, expected))
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("impl", ["reference", *FUSED])
def test_fused_loss_without_grad_gives_same_values(impl: Impl) -> None:
    this = case([6, 3])
    with torch.no_grad():
        found = of(this, impl)
    assert not found.value.requires_grad
    assert_same(found, reference(this), this)


@pytest.mark.parametrize("impl", FUSED)
def test_fused_loss_leaves_inputs_unchanged(impl: Impl) -> None:
    this, before = case([6, 3]), case([6, 3])
    this.gradients(of(this, impl, chunk_tokens=4))
    for name in ("student", "teacher", "tokens"):
        assert torch.equal(getattr(this, name), getattr(before, name))
    assert torch.equal(this.head.weight, before.head.weight)


def products(run: Callable[[], object], states: Tensor, head: nn.Linear) -> float:
    """How many products of n × h × v a call takes, counted in flops."""
    with FlopCounterMode(display=False) as counter:
        run()
    flops: int = counter.get_total_flops()
    return flops / (2 * len(states) * head.weight.numel())


@pytest.mark.parametrize(
    ("head_is_trained", "long", "expected"),
    [(False, False, 3), (True, False, 4), (False, True, 3 + 0.03 * 3), (True, True, 4 + 0.03 * 8)],
)
def test_fused_loss_costs_three_matmuls(head_is_trained: bool, long: bool, expected: float) -> None:
    this = case([100, 100], dtype=torch.float32)
    this.head.bias.requires_grad_(False)  # its gradient is a product with one column
    this.head.weight.requires_grad_(head_is_trained)

    def counted(make: Callable[[], Loss]) -> float:
        return products(lambda: make().value.backward(), this.student, this.head)

    chunk_tokens = 32 if long else 100
    found = counted(lambda: of(this, "chunked", chunk_tokens=chunk_tokens))
    assert found == pytest.approx(expected)
    assert counted(lambda: reference(this)) == (4 if head_is_trained else 3)


class Largest(TorchDispatchMode):
    """Remembers the most entries that any tensor of any operation had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.entries = max(self.entries, leaf.numel())
        return result


@pytest.mark.parametrize("rollouts", [1, 4, 16])
def test_fused_loss_memory_is_bounded_by_chunk(rollouts: int) -> None:
    default = GPU_CHUNK if torch.cuda.is_available() else CPU_CHUNK
    several, long = (case(n, v=500, dtype=torch.float32) for n in ([32] * rollouts, [default + 1]))
    for this, options, chunk in (
        (several, {"chunk_tokens": 32}, 32),
        (several, {"chunk_tokens": 16}, 16),
        (long, {}, default),
    ):
        with Largest() as largest:
            this.gradients(of(this, "chunked", **options))
        assert largest.entries == 2 * chunk * 500  # both views, allocated once


def errors(found: Loss, this: Case, exact: Loss, precise: Case) -> dict[str, float]:
    """Root mean square distance from float64, of per-token values and of every gradient."""
    pairs = {"per_token": (found.per_token, exact.per_token)}
    gradients = precise.gradients(exact)
    pairs |= {name: (values, gradients[name]) for name, values in this.gradients(found).items()}
    return {name: float((x.double() - y).square().mean().sqrt()) for name, (x, y) in pairs.items()}


@pytest.mark.parametrize("impl", FUSED_SLOW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("divergence", KINDS)
def test_fused_loss_errs_below_twice_eager(impl: Impl, dtype: torch.dtype, divergence: str) -> None:
    precise = case([50, 77], v=300, h=32)
    with torch.no_grad():
        precise.head.weight /= 4  # a power of two: still exact in bfloat16
    this = precise.to(dtype)
    options = options_of(divergence, top_fraction=0.2, interpolation_weight=0.03)
    exact = reference(precise, **options)
    eager = errors(reference(this, **options), this, exact, precise)
    for name, error in errors(of(this, impl, **options), this, exact, precise).items():
        assert error <= 2 * eager[name], f"{name}: {error:.3g}, eager code {eager[name]:.3g}"


@pytest.mark.parametrize("impl", FUSED_SLOW)
def test_fused_loss_half_precision_uses_float32_logits(impl: Impl) -> None:
    this = case([50, 77], v=300, h=32).to(torch.bfloat16)
    wide = this.to(torch.float32)
    found = of(this, impl).per_token
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference(wide).per_token, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("impl", FUSED_SLOW)
@pytest.mark.parametrize(
    ("states", "head"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_fused_loss_mixed_dtypes_match(impl: Impl, states: torch.dtype, head: torch.dtype) -> None:
    this, wide = (case([50, 77], v=300, h=32).to(dtype) for dtype in (states, torch.float32))
    this.head.to(head)
    found, expected = of(this, impl), reference(wide)
    torch.testing.assert_close(found.per_token, expected.per_token, rtol=1e-4, atol=2e-6)
    gradients = this.gradients(found)
    for name, values in wide.gradients(expected).items():
        torch.testing.assert_close(gradients[name].float(), values, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("impl", FUSED_SLOW)
def test_fused_loss_float16_head_gradient_survives_large_batch(impl: Impl) -> None:
    this = case([50, 77], v=300, h=32).to(torch.float16)
    exact = this.to(torch.float64)
    # As when 500 empty completions stood beside these, and a scaler made up for them.
    this.lengths = [50, 77] + [0] * 998
    found = this.gradients(Loss(of(this, impl).value * 500, torch.empty(0), {}))
    for name, values in exact.gradients(reference(exact)).items():
        torch.testing.assert_close(found[name].double(), values, rtol=2e-3, atol=1e-5)


def eager(this: Case, temperature: float = 1.0) -> LogProbs:
    """By the book, the product in the states' own precision."""
    dtype = torch.promote_types(this.student.dtype, torch.float32)
    logits = this.head(this.student).to(dtype)
    log_q, untempered = (logits / temperature).log_softmax(-1), logits.log_softmax(-1)
    chosen = this.tokens[:, None]
    log_prob, log_prob_at_1 = (x.gather(-1, chosen)[:, 0] for x in (log_q, untempered))
    return LogProbs(log_prob, -(log_q.exp() * log_q).sum(-1), log_prob_at_1)


def scored(this: Case, **options: Any) -> LogProbs:
    """Under test."""
    return fused_log_probs(this.student, this.head, this.tokens, **options)


def figures_of(this: Case, found: LogProbs) -> dict[str, Tensor]:
    """The values, and the gradients of a sum with weights of either sign."""
    weights = torch.linspace(-2, 3, len(found.log_prob), device=DEVICE)
    total = (weights.to(found.log_prob) * found.log_prob).sum()
    return found._asdict() | this.gradients(Loss(total, torch.empty(0), {}))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1, 8, 33, 64])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
@pytest.mark.parametrize("trained", [(), ("weight",), ("bias",), ("weight", "bias")])
def test_fused_log_probs_and_gradients_match_definition(
    temperature: float, chunk_tokens: int, dtype: torch.dtype, close: float, trained: Sequence[str]
) -> None:
    this, precise = case([33], dtype=dtype), case([33])
    for name, parameter in [*this.head.named_parameters(), *precise.head.named_parameters()]:
        parameter.requires_grad_(name in trained)
    found = scored(this, temperature=temperature, chunk_tokens=chunk_tokens)
    assert not found.entropy.requires_grad
    assert not found.untempered.requires_grad
    figures, wanted = figures_of(this, found), figures_of(precise, eager(precise, temperature))
    assert set(figures) == {"log_prob", "entropy", "untempered", "hidden", *trained} == set(wanted)
    for name, values in figures.items():
        assert values.dtype == dtype
        msg = partial("{}: {}".format, name)
        torch.testing.assert_close(values.double(), wanted[name], rtol=close, atol=close, msg=msg)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_log_probs_half_precision_error_is_at_most_eager(dtype: torch.dtype) -> None:
    this, precise = case([127], v=300, h=32, dtype=dtype), case([127], v=300, h=32)
    exact = eager(precise)
    truth = figures_of(precise, exact)

    def errors(found: LogProbs) -> dict[str, float]:
        figures = figures_of(this, found).items()
        distances = {name: (x.double() - truth[name]).detach() for name, x in figures}
        return {name: float(x.square().mean().sqrt()) for name, x in distances.items()}

    found, plain = scored(this, chunk_tokens=50), errors(eager(this))
    assert found.log_prob.dtype == found.entropy.dtype == torch.float32
    torch.testing.assert_close(found.log_prob.double(), exact.log_prob, rtol=1e-4, atol=1e-5)
    for name, error in errors(found).items():
        assert error <= plain[name], f"{name}: {error:.3g}, eager code {plain[name]:.3g}"


def test_fused_log_probs_weight_tensor_and_empty_input() -> None:
    this = case([9])
    with torch.no_grad():
        this.head.bias.zero_()
    found = fused_log_probs(this.student, this.head.weight, this.tokens)
    torch.testing.assert_close(found.log_prob, eager(this).log_prob)
    nothing = fused_log_probs(this.student[:0], this.head, this.tokens[:0])
    nothing.log_prob.sum().backward()
    assert nothing.log_prob.shape == nothing.entropy.shape == (0,)
    assert this.student.grad is not None
    assert not this.student.grad.any()


def test_fused_log_probs_without_grad_cost_one_matmul() -> None:
    this = case([33])
    with torch.no_grad():
        assert products(lambda: scored(this, chunk_tokens=8), this.student, this.head) == 1
        found = scored(this, chunk_tokens=8)
    assert not found.log_prob.requires_grad
    for values, wanted in zip(found, eager(this), strict=True):
        torch.testing.assert_close(values, wanted)


@pytest.mark.parametrize(("trained", "expected"), [((), 2), (("weight",), 4)])
@pytest.mark.parametrize("chunk", [16, 100])
def test_fused_log_probs_cost_two_matmuls_and_one_chunk(
    trained: Sequence[str], expected: int, chunk: int
) -> None:
    this = case([100], v=500, dtype=torch.float32)
    for name, parameter in this.head.named_parameters():
        parameter.requires_grad_(name in trained)
    with Largest() as largest:
        costs = products(
            lambda: figures_of(this, scored(this, chunk_tokens=chunk)), this.student, this.head
        )
    assert costs == expected
    assert largest.entries == chunk * 500


def logits(
    rows: int, v: int, dtype: torch.dtype = torch.float32, *, spread: float = 3.0
) -> tuple[Tensor, Tensor]:
    """Student's and teacher's; both rule out the first entry of the last row."""
    generator = torch.Generator().manual_seed(rows + v)
    student = spread * torch.randn(rows, v, generator=generator, dtype=torch.float64)
    teacher = student + torch.randn(rows, v, generator=generator, dtype=torch.float64)
    student[-1:, 0] = teacher[-1:, 0] = -torch.inf
    return student.to(DEVICE, dtype), teacher.to(DEVICE, dtype)


def kernels() -> RowWork:
    """The Triton kernels, interpreted."""
    from paint.objective import triton_kernels

    return RowWork(triton_kernels.measure, triton_kernels.differentiate)


def by(
    work: RowWork, views: tuple[Tensor, Tensor], slope: Tensor, options: Objective
) -> dict[str, Tensor]:
    """The figures of both views' logits, every other row selected, and the slope."""
    student, teacher = (view.clone() for view in views)
    tokens = torch.full((len(student),), student.shape[1] - 1, device=DEVICE)
    temperature = options.temperature
    first, second = (work.measure(view, tokens, temperature) for view in (student, teacher))
    selected = torch.arange(len(student), device=DEVICE) % 2 == 0
    found = work.differentiate(student, teacher, first, second, selected, tokens, slope, options)
    for view, measured in (("student", first), ("teacher", second)):
        found |= {f"{view}_{name}": measured[name] for name in ("entropy", "log_prob")}
    return found | {"slope": slope}


TORCH = RowWork(fused.measure, fused.differentiate)


@linux
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("v", [2, 1023, 1024, 1025, 5003])
@pytest.mark.parametrize("divergence", ["forward_kl", "sampled_token"])
def test_triton_kernels_match_torch_for_any_shape(rows: int, v: int, divergence: str) -> None:
    options = with_changes(PAPER_LOSS, **options_of(divergence, temperature=1.1))
    views = logits(rows, v, torch.float64)
    found, expected = (
        by(work, views, torch.empty_like(views[0]), options) for work in (kernels(), TORCH)
    )
    for name, values in expected.items():
        msg = partial("{}: {}".format, name)
        torch.testing.assert_close(found[name], values, rtol=1e-11, atol=1e-11, msg=msg)


@linux
@pytest.mark.parametrize(
    ("way", "v"),
    [
        *product(["objective", "torch"], [700, 151_936]),
        ("triton", 700),
        pytest.param("triton", 151_936, marks=pytest.mark.slow),
    ],
)
def test_measure_float32_ranks_tiny_entropies(way: str, v: int) -> None:
    from paint.objective import triton_kernels

    # One logit, higher from row to row over the same tail: ever surer, at least by a thousandth.
    generator = torch.Generator().manual_seed(v)
    rows = 2.5 * torch.randn(v, generator=generator).repeat(10, 1)
    highest = torch.tensor([24.0, 28.0, 32.0, 48.0, 76.0])
    rows[:, v // 3] = torch.stack([highest, highest + 1e-3], dim=1).flatten()

    energies = [reference_float64.energies(row, 1.0) for row in rows.tolist()]
    exact = list(map(reference_float64.entropy, energies))
    assert ENTROPY_FLOOR < min(exact) < 1e-24
    assert sorted(exact, reverse=True) == exact
    measured = {
        "objective": lambda logits: entropy(logits.log_softmax(-1)),
        "torch": lambda logits: fused.measure(logits, None, 1.0)["entropy"],
        "triton": lambda logits: triton_kernels.measure(logits, None, 1.0)["entropy"],
    }[way](rows.to(DEVICE))
    assert measured.tolist() == pytest.approx(exact, rel=2e-5, abs=0)
    assert measured.argsort(descending=True).tolist() == list(range(10))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("divergence", KINDS)
def test_triton_kernels_error_is_at_most_twice_eager(divergence: str) -> None:
    options = with_changes(PAPER_LOSS, **options_of(divergence, temperature=1.1))
    views = logits(9, 3001)
    precise = (views[0].double(), views[1].double())
    exact, eager, found = (
        by(work, given, torch.empty_like(given[0]), options)
        for work, given in ((TORCH, precise), (TORCH, views), (kernels(), views))
    )
    for name, values in exact.items():
        mine, theirs = ((x[name].double() - values).square().mean().sqrt() for x in (found, eager))
        assert mine <= 2 * theirs + 1e-12, f"{name}: {mine:.3g}, eager code {theirs:.3g}"
    for dtype, smallest in ((torch.bfloat16, 1e-8), (torch.float16, 6e-8)):
        stored = by(kernels(), views, torch.empty_like(views[0], dtype=dtype), options)["slope"]
        assert stored.dtype == dtype
        # The interpreter cuts to bfloat16 where a GPU rounds: twice rounding's half a step.
        torch.testing.assert_close(
            stored.double(), exact["slope"], rtol=torch.finfo(dtype).eps, atol=smallest
        )


@pytest.mark.parametrize("impl", FUSED)
@pytest.mark.parametrize("divergence", KINDS)
def test_fused_loss_extreme_logits_match_reference(impl: Impl, divergence: str) -> None:
    """A token that is all but certain, one that is ruled out, a flat view, huge logits."""
    v = 2500
    hidden = torch.eye(5, device=DEVICE)
    weight = torch.zeros(v, 5, device=DEVICE)
    weight[7, 0] = 200.0
    weight[:, 1] = -60000.0
    weight[3:5, 1] = 0.0
    weight[:, 3] = torch.linspace(-30000, 30000, v, device=DEVICE)
    weight[:, 4] = torch.linspace(-1, 1, v, device=DEVICE)
    weight[11, 4] = -1e30
    teacher = hidden.roll(1, 0)
    options = options_of(divergence, top_fraction=0.4)
    tokens = torch.tensor([7, 3, 0, v - 1, v - 1], device=DEVICE)  # what the student might sample
    options |= {"tokens": tokens}
    found, expected = (
        fused_paint_loss(hidden.clone().requires_grad_(), teacher, weight, [5], impl=x, **options)
        for x in (impl, "reference")
    )
    assert found.value.isfinite()
    # Between logits of 30,000, float32 has steps of 0.002: so uncertain is a tiny entropy's ratio.
    torch.testing.assert_close(found.per_token, expected.per_token, rtol=1e-5, atol=1e-4)
    for name in found.stats:
        assert found.stats[name].isfinite().all(), name
        rtol = 2e-3 if name == "entropy_ratio" else 1e-4
        torch.testing.assert_close(found.stats[name], expected.stats[name], rtol=rtol, atol=1e-4)


COMPILE = r"""
import itertools, json, re, subprocess, sys, triton
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from paint.objective import triton_kernels as kernels

folder, capability = Path(sys.argv[1]), int(sys.argv[2])
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
used = []

def build(kernel, types, constants):
    names = [p.name for p in kernel.params]
    types = {name: "i32" if "stride" in name else "*fp32" for name in names} | types
    constants |= {"BLOCK": kernels.BLOCK, "STAGES": kernels.STAGES}
    # A vocabulary and pointers that 16 divides, as in a launch on Qwen3's logits.
    given = [i for i, name in enumerate(names) if name not in constants]
    divisible = {(i,): [["tt.divisibility", 16]] for i in given}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants, divisible)
    options = {"num_warps": kernels.WARPS}
    built = triton.compile(source, GPUTarget("cuda", capability, 32), options)
    (folder / "cubin").write_bytes(built.asm["cubin"])
    usage = subprocess.check_output([tool, "-res-usage", folder / "cubin"], text=True)
    found = {name: int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL")}
    used.append({"kernel": kernel.__name__, **found})

options = {"TEMPERATURE": 1.1, "MIX": 0.03, "CLIP": 0.06}
for sampled in (True, False):
    types = {"tokens": "*i64", "vocabulary": "i32"}
    build(kernels._measure, types, {"TEMPERATURE": 1.1, "SAMPLED": sampled})
kinds, modes = ("forward_kl", "reverse_kl", "jsd"), ("pointwise", "huber", "token", "none")
losses = [*itertools.product(kinds, modes), ("sampled_token", "none"), ("sampled_token", "huber")]
cases = [(divergence, mode, "*bf16") for divergence, mode in losses]
cases += [("forward_kl", "pointwise", "*fp16"), ("forward_kl", "pointwise", "*fp32")]
for divergence, mode, slope in cases:
    types = {"slope": slope, "selected": "*i1", "tokens": "*i64", "vocabulary": "i32"}
    constants = options | {"KIND": divergence, "CLIP_MODE": mode, "GRADIENT": True}
    build(kernels._differentiate, types, constants)
plain = options | {"KIND": "forward_kl", "CLIP_MODE": "pointwise", "GRADIENT": False}
types = {"selected": "*i1", "vocabulary": "i32"}
build(kernels._differentiate, types, plain | {"slope": None, "tokens": None})
print(json.dumps(used))
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_triton_kernels_compile_without_spills(capability: int, tmp_path: Path) -> None:
    env = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    env = os.environ | env | {"TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-W", "error", "-c", COMPILE, str(tmp_path), str(capability)]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    used = json.loads(result.stdout)
    assert len(used) == 19
    for found in used:
        # 65,536 registers for blocks of 8 warps: 40 leave room for 48 warps, 48 for 40.
        assert found["REG"] <= 48, found
        assert found["STACK"] == found["LOCAL"] == 0, found


@pytest.fixture
def unbuilt() -> Iterator[None]:
    """Forget before and after the test whether the kernels can be built."""
    fused._kernel_problem.cache_clear()
    yield
    fused._kernel_problem.cache_clear()


TRITON, AUTO = (Objective(impl=impl) for impl in ("triton", "auto"))


@linux
@pytest.mark.usefixtures("unbuilt")
def test_triton_that_cannot_be_built_is_replaced_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def build(device: torch.device) -> None:
        builds.append(device)
        raise RuntimeError("Failed to find C compiler. Please specify via CC")

    monkeypatch.setattr("paint.objective.triton_kernels.build", build)
    for _ in range(2):
        work, problem = choose_row_work(AUTO, torch.device("cuda"))
        assert work == TORCH
        assert problem == "RuntimeError: Failed to find C compiler. Please specify via CC"
    assert builds == [torch.device("cuda")]
    with pytest.raises(ImplError, match=r"C compiler.*chunked"):
        choose_row_work(TRITON, torch.device("cuda"))
    assert choose_row_work(AUTO, torch.device("cpu")) == (TORCH, "")


@linux
@pytest.mark.usefixtures("unbuilt")
def test_triton_that_can_be_built_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_row_work(TRITON, torch.device(DEVICE)) == (kernels(), "")  # builds them
    monkeypatch.setattr("paint.objective.triton_kernels.build", lambda device: None)
    assert choose_row_work(AUTO, torch.device("cuda")) == (kernels(), "")


def test_bfloat16_matmul_accumulates_in_float32_and_restores_setting() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 256, generator=generator).bfloat16()
    weight = torch.randn(500, 256, generator=generator).bfloat16()
    found = fused._logits(hidden, weight, None, torch.empty(40, 500))
    exact = hidden.double() @ weight.double().T
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
    mixed = fused._logits(hidden.float() + 1e-3, weight, None, torch.empty(40, 500))
    wanted = (hidden.float() + 1e-3).double() @ weight.double().T
    torch.testing.assert_close(mixed.double(), wanted, rtol=1e-5, atol=1e-4)


def test_grad_logits_are_rounded_to_head_dtype() -> None:
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(40, 3000, generator=generator)
    weight = torch.randn(3000, 64, generator=generator).bfloat16()
    exact = slope.double() @ weight.double()
    rounded = slope.bfloat16().double() @ weight.double()
    found = fused._times_weight(slope, weight, torch.float32)
    assert found.dtype == torch.float32
    # A CPU without the instructions rounds nothing. Sums are float32 either way.
    distances = [float((found.double() - other).abs().max()) for other in (exact, rounded)]
    assert min(distances) <= 1e-3 < float((exact - rounded).abs().max())
    of_wide_head = fused._times_weight(slope, weight.float(), torch.float32)
    torch.testing.assert_close(of_wide_head.double(), exact, rtol=1e-5, atol=1e-3)
