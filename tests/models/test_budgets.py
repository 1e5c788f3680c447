"""Budgets of a step on a GPU, counted without one at the sizes of Qwen3.

A kernel is an operation that is not a view; its bytes are those of its operands and results. Fake
tensors on a CPU say that they are on CUDA, and attention and the RMS norm, each one kernel there,
are stood in for.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3 import modeling_qwen3

from large_models import give_fake_weights, settings_of
from paint.algorithms.paint import score_rollouts
from paint.config import schema as cfg
from paint.data.problems import Problem
from paint.grading.mathematics import MathGrader
from paint.inference.engine import Completion, Sampling
from paint.inference.local import LocalEngine, _Sampler
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models import layers
from paint.models.adapters import add_adapter
from paint.models.joint_layers import share_inputs
from paint.models.policy import Policy, load_tokenizer
from paint.models.teacher import open_teacher
from paint.objective import fused
from paint.resolve.check import check_config
from paint.resolve.shapes import SHAPES
from paint.training.train_step import Setup, accumulate

DOCUMENT = Path(__file__).parents[2] / "docs/dev/benchmarks.md"
NO_KERNELS = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "slice", "select", "unsqueeze"),
    *("expand", "alias", "detach", "empty", "new_empty", "lift_fresh", "device"),
    *("split", "split_with_sizes", "empty_like"),
}
CPU = torch.device("cpu")


def large(size: str) -> Policy:
    """Qwen3 of this size with adapters, without memory for its weights."""
    shape = SHAPES[f"Qwen/Qwen3-{size}"]
    config = Qwen3Config(**settings_of(shape), attn_implementation="sdpa")
    with torch.device("meta"):
        base = Qwen3ForCausalLM(config).to(torch.bfloat16)
        model = add_adapter(base, cfg.ModelConfig(path="large"), seed=0)
    return Policy(model, load_tokenizer("demo"), base.get_output_embeddings(), False, True)


class Kernels(TorchDispatchMode):
    """Number of kernels, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name not in NO_KERNELS:
            leaves = tree_leaves((args, kwargs, out))
            tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
            self.number += 1
            self.bytes += sum(map(_bytes, tensors.values()))
            if name.endswith("_") and not name.endswith("copy_"):  # in place: read, and written
                self.bytes += _bytes(args[0])
        return out


def _bytes(tensor: Tensor) -> int:
    number = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        number *= size if stride else 1  # an expanded axis is read once
    return number


class Attention(torch.autograd.Function):
    """Attention's shapes, by one kernel each way."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return query.transpose(1, 2) * 1.0

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch._foreach_mul(ctx.saved_tensors, 1.0))


def attention(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Any:
    return Attention.apply(query, key, value), None  # type: ignore[no-untyped-call]


@contextmanager
def on_fake_gpu(policy: Policy) -> Iterator[tuple[Policy, Kernels]]:
    """Give the policy fake weights that say they are on CUDA, and count kernels."""
    with FakeTensorMode(), Kernels() as kernels:
        give_fake_weights(policy.model)
        with (
            patch.object(FakeTensor, "is_cuda", property(lambda _: True)),
            patch.object(Policy, "device", CPU),
            patch.object(layers, "_is_weight_times_rms_norm", lambda *_: True),
            patch.object(layers, "rms_norm", lambda x, *_: x * 1.0),
            patch.object(modeling_qwen3, "create_causal_mask", lambda **_: None),
            patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping, {"sdpa": attention}),
        ):
            layers.fuse_norms(policy.base, CPU)
            share_inputs(policy.base)
            kernels.number = kernels.bytes = 0
            yield policy, kernels


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1.7B", "4B", "8B"])
def test_student_passes_of_one_row_take_kernels_and_bytes_of_documents(size: str) -> None:
    found = []
    with on_fake_gpu(large(size)) as (policy, kernels):
        states = policy.hidden_states([[6] * 250], [[7] * 1024])
        found.append((kernels.number, kernels.bytes / 1e9))
        gradient = torch.empty_like(states)
        kernels.number = kernels.bytes = 0
        states.backward(gradient)
        found.append((kernels.number, kernels.bytes / 1e9))

    row = re.search(rf"^\| {re.escape(size)} \| .* → .*$", DOCUMENT.read_text(), re.MULTILINE)
    assert row
    after = re.findall(r"→ ([\d,.]+)", row[0])
    assert after[:4] == [f"{n:,}" for n, _ in found] + [f"{gb:.1f}" for _, gb in found]
    if size == "1.7B":
        for (kernels_of_pass, gb), most in zip(found, ((1_200, 18), (1_700, 23)), strict=True):
            assert kernels_of_pass <= most[0]
            assert gb <= most[1]


SAMPLING = Sampling(1.1, 0.95, 20, 1024)  # the paper's


@contextmanager
def decoding_on_fake_gpu(rows: int) -> Iterator[tuple[_Sampler, Kernels]]:
    """The local engine in the middle of rows, with the layers that it has on a GPU."""
    with on_fake_gpu(large("1.7B")) as (policy, kernels), torch.no_grad():
        sampler = _Sampler(policy, SAMPLING, rows, 1274, print)
        assert policy.joint_layers
        sampler.layers = policy.joint_layers.used
        # Few positions: a write of a token counts with its whole buffer.
        sampler.decoder.reserve(1)
        with sampler.layers():
            sampler._step()  # makes the buffers
            yield sampler, kernels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_step_of_local_engine_takes_kernels_of_documents_and_does_not_wait() -> None:
    with decoding_on_fake_gpu(32) as (sampler, kernels), Syncs() as syncs:
        kernels.number = kernels.bytes = 0
        sampler._step()
        found, gigabytes = kernels.number, kernels.bytes / 1e9
    row = f"| as it is | {found:,} | {gigabytes:.2f} |"
    assert row in DOCUMENT.read_text()
    assert found <= 900
    assert gigabytes <= 5.2
    # Sums of sampling move to the device of float64, which CUDA is itself.
    assert syncs.calls == ["to"] * 5


class Syncs(TorchFunctionMode):
    """Calls for which a CUDA device finishes its work: of its values, and copies to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        is_mask = name in ("__getitem__", "__setitem__") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for index in tree_leaves(args[1])
        )
        is_copy = name == "tensor" and "device" in kwargs
        is_copy |= name == "to" and any(isinstance(a, torch.device) for a in args[1:])
        is_read = name in ("tolist", "item", "__bool__", "__int__", "__float__", "cpu", "nonzero")
        if is_mask or is_read or (is_copy and not kwargs.get("non_blocking")):
            self.calls.append(name)
        return func(*args, **kwargs)


def zeros(*names: str) -> Callable[..., dict[str, Tensor]]:
    return lambda logits, *_: {name: logits.new_zeros(len(logits)) for name in names}


def test_micro_batch_waits_for_gpu_three_times_at_most(policy: Policy) -> None:
    config = cfg.Config(train=cfg.TrainConfig(micro_batch_size=2))
    teacher = open_teacher(policy, cfg.TeacherConfig())
    engine, optimizer = LocalEngine(policy, batch_size=1), torch.optim.AdamW(policy.trainable)
    accelerator = Accelerator(cpu=True)
    setup = Setup(
        check_config(config), policy, teacher, [], engine, optimizer, accelerator, MathGrader()
    )
    problem, view = Problem("1 + 1", "2", "2", "1"), TeacherPrompt("2", True, [5] * 4)
    completion = Completion((7, 8), (0.0, 0.0), False)
    rollouts = [Rollout(row, problem, [5] * 3, completion, "", view) for row in range(6)]
    measured = zeros("highest", "log_sum", "entropy", "log_prob")
    rows = fused.RowWork(measured, zeros("per_token", "kl", "clipped", "unclipped_mass"))
    counts = []
    for several in (rollouts[:2], rollouts):
        with patch.object(fused, "choose_row_work", lambda *_: (rows, "")), Syncs() as syncs:
            accumulate(setup, several, partial(score_rollouts, setup))
        counts.append(len(syncs.calls))
    assert counts[0] > 0
    assert counts[1] - counts[0] <= 2 * 3, syncs.calls
