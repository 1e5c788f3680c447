"""The formula of a step's memory: against bytes counted at real widths, a real model, and by hand.

Counted with fake tensors, which have shapes and lifetimes but no data: whatever a pass keeps or
works in is seen as it comes and goes, at the widths of models that no test could load.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from large_models import give_fake_weights, settings_of
from paint.config.schema import Config, ModelConfig, RolloutConfig, TeacherConfig, TrainConfig
from paint.core.distributed import MESSAGE_NUMBERS
from paint.core.extensions import OptionTable
from paint.inference.decoders import StaticDecoder
from paint.models.adapters import add_adapter
from paint.models.layers import checkpoint_layers
from paint.models.policy import load_policy
from paint.resolve.check import check_config
from paint.resolve.memory import (
    MESSAGE,
    Kernels,
    Memory,
    Rows,
    buffered,
    saved_by_layer,
    server_memory,
    training_memory,
)
from paint.resolve.shapes import SHAPES, Shape, shape_of

QWEN = SHAPES["Qwen/Qwen3-8B"]
LLAMA = SHAPES["meta-llama/Llama-3.3-70B-Instruct"]


def memory_of(config: Config, shape: Shape, rows: Rows, **options: Any) -> Memory:
    """The memory of a run with the algorithm and optimizer of its config."""
    run = check_config(config)
    return training_memory(
        config,
        shape,
        rows,
        has_teacher=run.algorithm.needs_teacher,
        state_bytes=run.optimizer.state_bytes,
        **options,
    )


class Counted(TorchDispatchMode):
    """Bytes of all storages that live, and the most since ``restart``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.most = 0

    @property
    def now(self) -> int:
        return sum(self.live.values())

    def restart(self) -> int:
        self.most = self.now
        return self.most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        grown = False
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.live:
                    self.live[key] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, key, None)
                    grown = True
        if grown:
            self.most = max(self.most, self.now)
        return out


@contextmanager
def fake_decoder(shape: Shape, model: ModelConfig) -> Iterator[tuple[Counted, Any, Any]]:
    """A decoder of this shape with what trains it, of fake tensors, and what counts them."""
    kind, settings = (
        (Qwen3ForCausalLM, Qwen3Config) if shape.norms_heads else (LlamaForCausalLM, LlamaConfig)
    )
    with torch.device("meta"):
        base = kind(settings(**settings_of(shape))).to(getattr(torch, model.dtype))
        policy: Any = add_adapter(base, model, 0) if model.train_mode == "lora" else base

    with FakeTensorMode(), Counted() as counted:
        give_fake_weights(policy)
        policy.eval()
        base = policy.get_base_model() if model.train_mode == "lora" else policy
        if model.gradient_checkpointing is True:
            checkpoint_layers(base)
        yield counted, policy, base


def states(base: Any, rows: Rows, prompt: int) -> Tensor:
    """What paint.models.policy takes of a pass: one state for each token of the completions.

    Of fake tensors transformers would make the mask that it leaves out of real ones.
    """
    length = prompt + rows.completion
    ids = torch.ones(rows.rows, length, dtype=torch.long)
    with patch.object(sys.modules[type(base).__module__], "create_causal_mask", lambda **_: None):
        out = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    first = torch.arange(rows.rows)[:, None] * length
    taken: Tensor = out.flatten(0, 1)[(first + torch.arange(prompt - 1, length - 1)).flatten()]
    return taken


LORA, CHECKPOINTED = (
    ModelConfig(path="x", dtype="bfloat16"),
    ModelConfig(path="x", dtype="bfloat16", gradient_checkpointing=True),
)
WIDE, FULL = replace(LORA, dtype="float32"), replace(LORA, dtype="float32", train_mode="full")
LONG, SEVERAL = Rows(1, 250, 8192, 16_384), Rows(4, 250, 1250, 1024)
LAYERS = 3
"""Of the counted models: what a layer takes is the same in all, and so is the rest."""


@pytest.mark.parametrize(
    ("shape", "model", "rows"),
    [
        (QWEN, LORA, LONG),
        (QWEN, CHECKPOINTED, SEVERAL),
        (QWEN, replace(LORA, lora_rank=16, lora_targets=("q_proj", "v_proj")), SEVERAL),
        (SHAPES["Qwen/Qwen3-32B"], CHECKPOINTED, LONG),
        (LLAMA, LORA, SEVERAL),
        (shape_of("demo"), WIDE, SEVERAL),
        (SHAPES["Qwen/Qwen3-1.7B"], FULL, SEVERAL),
    ],
)
def test_training_memory_matches_fake_tensors(shape: Shape, model: ModelConfig, rows: Rows) -> None:
    shape = replace(shape, layers=LAYERS)
    planned = memory_of(Config(model=model), shape, rows)
    with fake_decoder(shape, model) as (counted, policy, base):
        weights = planned.layers + planned.ends + planned.adapters
        assert counted.now == pytest.approx(weights, rel=0.001)

        before = counted.restart()
        adapters_off = policy.disable_adapter() if model.train_mode == "lora" else torch.no_grad()
        with torch.no_grad(), adapters_off:
            teacher = states(base, rows, rows.teacher_prompt)
        assert counted.most - before == pytest.approx(planned.teacher, rel=0.1)
        del teacher

        before = counted.restart()
        student = states(base, rows, rows.prompt)
        kept = counted.now - before - student.untyped_storage().nbytes()
        tokens = rows.rows * (rows.prompt + rows.completion)
        layer = tokens * saved_by_layer(Config(model=model), shape)
        again = layer if model.gradient_checkpointing is True else 0.0  # computed again, later
        assert kept == pytest.approx(planned.saved - again, rel=0.05)

        gradient = torch.empty_like(student)
        counted.restart()
        student.backward(gradient)
        own = student.untyped_storage().nbytes() + gradient.untyped_storage().nbytes()
        # Gradients of what is trained come one by one, and are planned whole.
        highest = counted.most - before - own
        planned_backward = planned.saved + planned.backward
        assert planned_backward * 0.9 <= highest + own
        assert highest <= (planned_backward + planned.gradients) * 1.1


def test_training_memory_matches_hand_count() -> None:
    shape, config = SHAPES["Qwen/Qwen3-1.7B"], Config(model=LORA)
    memory = memory_of(config, shape, Rows(1, 200, 2000, 1024))
    trained = 64 * 28 * sum(sum(pair) for pair in shape.matrices.values())
    assert memory.layers + memory.ends == 2 * shape.parameters
    assert memory.adapters == memory.gradients == memory.optimizer / 2 == 4 * trained
    assert memory.logits == 1024 * 151_936 * (4 + 4 + 2)
    assert memory.states == 1024 * 2048 * (2 + 2 + 4)
    a_token = 12 * 2048 + 8 * 2048 + 8 * 1024 + 8 * 6144 + 28 * 64 + 8 * 16 + 4 * 8 + 8
    assert memory.saved == 1224 * 28 * a_token
    kept = memory_of(Config(model=CHECKPOINTED), shape, Rows(1, 200, 2000, 1024))
    assert kept.saved == 1224 * (28 * 2 * 2048 + 4 * 2049 + a_token)
    assert memory.cache == memory.gathered == memory.copy == 0


@pytest.mark.parametrize(
    ("rows", "kernels", "measured"),
    [(4, "cuda", 18.23), (8, "cuda", 30.48), (16, "cuda", 54.83), (8, "liger", 26.96)],
)
def test_training_memory_is_near_peaks_of_an_h100(
    rows: int, kernels: Kernels, measured: float
) -> None:
    """Updates of a random Qwen3-1.7B, torch 2.11 (docs/dev/log.md)."""
    size = Rows(rows, 250, 1050, 1024)
    memory = memory_of(Config(model=LORA), SHAPES["Qwen/Qwen3-1.7B"], size, kernels=kernels)
    assert memory.peak == pytest.approx(measured * 1e9, rel=0.01)


def test_training_memory_on_cuda_saves_inputs_of_norms_in_their_own_dtype() -> None:
    shape, config = SHAPES["Qwen/Qwen3-1.7B"], Config(model=LORA)
    cpu, cuda, liger = (saved_by_layer(config, shape, kind) for kind in ("cpu", "cuda", "liger"))
    assert cpu - cuda == 2 * (2 * 2048 + 2048 + 1024) + 2 * 7 * 64  # and inner vectors
    assert cuda - liger == 2 * 6144
    wide = Config(model=WIDE)
    assert saved_by_layer(wide, shape, "cuda") == saved_by_layer(wide, shape)


def test_training_memory_settings_have_expected_cost() -> None:
    shape, rows = SHAPES["Qwen/Qwen3-8B"], Rows(1, 250, 1250, 1024)
    config = Config(model=LORA)
    plain = memory_of(config, shape, rows)

    divided = memory_of(config, shape, rows, shards=8, ranks=8)
    assert divided.layers == plain.layers / 8
    assert divided.gathered == 2 * plain.layers / shape.layers
    assert divided.ends == plain.ends
    assert divided.update > plain.update

    average = memory_of(replace(config, teacher=TeacherConfig(weights="ema")), shape, rows)
    assert average.copy == 4 * shape.weights
    assert average.teacher == plain.teacher + 2 * shape.weights

    full = replace(config, model=replace(FULL, path="x"))
    whole = memory_of(full, shape, rows)
    assert whole.resident == 4 * 5 * shape.parameters  # and the frozen copy that teaches
    live = replace(full, teacher=TeacherConfig(weights="live"))
    assert memory_of(live, shape, rows).copy == 0

    rollout = RolloutConfig(top_p=1.0, top_k=-1, samples_per_problem=8)
    grpo = replace(config, train=TrainConfig(method="grpo"), rollout=rollout)
    assert memory_of(grpo, shape, rows).teacher == 0
    with_kl = memory_of(grpo.changed("train", options=OptionTable({"kl": 0.1})), shape, rows)
    assert with_kl.teacher == plain.teacher

    small = replace(config, model=replace(LORA, quantization="nf4"))
    rounded = memory_of(small, shape, rows)
    assert rounded.layers == pytest.approx(shape.weights * 4.127 / 8, rel=1e-4)
    assert rounded.gathered == 2 * 4096 * 12_288  # one matrix in use
    assert rounded.ends == plain.ends
    served: dict[str, Any] = {"memory": 80e9, "share": 0.9, "longest": 9216, "gpus": 1}
    kept, saved = (server_memory(c, shape, **served).weights for c in (config, small))
    assert kept - saved == pytest.approx(plain.layers - rounded.layers)

    local = memory_of(config, shape, rows, generating=32)
    assert local.cache == 32 * (1274 * 2 * shape.cache + 12 * shape.vocabulary)


def test_training_memory_keeps_keys_of_local_engine_up_to_share_of_gpu() -> None:
    shape, rows = SHAPES["Qwen/Qwen3-1.7B"], Rows(8, 250, 1250, 1024)
    estimate = partial(memory_of, Config(model=LORA), shape, rows, generating=32, kernels="cuda")
    keys = 32 * (1274 + 318) * 2 * shape.cache
    none, part, all_kept = (estimate(capacity=share * 16 * keys) for share in (0, 0.5, 2))
    assert (none.kept, part.kept, all_kept.kept) == (0, keys / 2, keys)
    assert all_kept.resident == none.resident + keys
    # While rows are generated, it is the same memory.
    assert all_kept.cache == none.cache - keys == 32 * 12 * shape.vocabulary
    assert all_kept.peak == none.peak + keys  # in another phase


@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 1024, 1025, 1274, 9216, 40_000])
def test_buffered_is_at_least_positions_of_decoder(tokens: int) -> None:
    decoder = SimpleNamespace(device=torch.device("cuda"))
    assert StaticDecoder._bucket(decoder, tokens) <= buffered(tokens)  # type: ignore[arg-type]


def test_server_memory_cache_is_what_weights_leave() -> None:
    shape, config = SHAPES["Qwen/Qwen3-8B"], Config(model=LORA)
    server = server_memory(config, shape, memory=80e9, share=0.9, longest=9216, gpus=1)
    slots = 2 * shape.adapters(64, LORA.lora_targets)
    assert server.weights == 2 * shape.parameters + slots
    assert server.cache == 72e9 - 2e9 - server.weights
    assert server.tokens == int(server.cache / (2 * 36 * 1024 * 2))
    assert server.fits
    tight = server_memory(config, shape, memory=20e9, share=0.9, longest=9216, gpus=1)
    assert (tight.cache, tight.tokens, tight.fits) == (0, 0, False)


def test_message_size_constant_matches_distributed() -> None:
    assert MESSAGE == MESSAGE_NUMBERS


@pytest.mark.parametrize("lengths", [[60], [60, 25, 59]])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_memory_saved_matches_real_model(checkpointing: bool, lengths: list[int]) -> None:
    """Of real tensors, each distinct one that autograd saves and that is no parameter."""
    model = ModelConfig(
        path="demo", dtype="bfloat16", lora_rank=4, gradient_checkpointing=checkpointing
    )
    policy, shape = load_policy(model, seed=0), shape_of("demo")
    parameters = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.hidden_states([[1] * n for n in lengths], [[2] * 40 for _ in lengths])
    found = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())

    config = Config(model=model)
    planned = memory_of(config, shape, Rows(len(lengths), 60, 60, 40)).saved
    if checkpointing:  # one layer is computed again, later
        planned -= 100 * len(lengths) * saved_by_layer(config, shape)
    assert found == pytest.approx(planned, rel=0.05)
