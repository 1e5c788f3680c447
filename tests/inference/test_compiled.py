"""Compiled steps compute what the steps do, and anything else leaves the steps as they were."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from paint.config import schema as cfg
from paint.inference import compiled
from paint.inference.compiled import CompiledStep
from paint.inference.decoders import StaticDecoder, open_decoder
from paint.inference.engine import Sampling
from paint.inference.graphs import GraphedStep
from paint.inference.local import _Sampler
from paint.inference.recording import Function, Recording, Unsuitable
from paint.inference.slots import SlotRow
from paint.models.adapters import add_adapter
from paint.models.joint_layers import JointLayers
from paint.models.policy import Policy
from tiny_models import tiny_config, tiny_model

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=64)


def with_adapter(policy: Policy, model: PreTrainedModel) -> Policy:
    """A policy of a model with an adapter that changes it."""
    adapted = add_adapter(model, cfg.ModelConfig(path="tiny", lora_rank=4, lora_alpha=8), seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.2)
    return dataclasses.replace(policy, model=adapted, lm_head=model.get_output_embeddings())


@contextmanager
def decoding(policy: Policy, sampling: Sampling = SAMPLING) -> Iterator[_Sampler]:
    """A sampler in the middle of three rows, one of which has ended, with joint layers."""
    sampler = _Sampler(policy, sampling, 4, 128, print, print)
    joint = JointLayers(policy.base)
    joint.refresh()
    sampler.layers = joint.used
    with torch.no_grad():
        sampler.fill([SlotRow(i, tuple(range(5, 12 + i)), i) for i in range(4)], ())
        sampler.run(3)
        sampler.slots.take([1])
        with sampler.layers():
            yield sampler


def buffers_of(sampler: _Sampler) -> list[Tensor]:
    """Keys and values of all layers."""
    assert isinstance(sampler.decoder, StaticDecoder)
    return [buffer for layer in sampler.decoder.cache.layers for buffer in layer.buffers]


class Compiler:
    """Keeps graphs as they are, and counts those that differ."""

    def __init__(self) -> None:
        self.codes: set[str] = set()

    def __call__(self, graph: fx.GraphModule, _: Sequence[Tensor]) -> Function:
        self.codes.add(graph.code)
        return graph


def record(sampler: _Sampler, compile: Callable[..., Function]) -> Callable[[], Tensor]:
    with Recording() as recording:
        logits = sampler._logits()
        sampler._append(logits)
    replay: Callable[[], Tensor] = recording.replay(logits, compile)
    return replay


@pytest.mark.parametrize(
    ("family", "temperature"),
    [("qwen3", 1.1), ("qwen3", 0.0), ("qwen2", 1.1), ("llama", 1.1), ("gemma3_text", 1.1)],
)
def test_recorded_step_is_repeated_with_equal_pieces_of_layers(
    policy: Policy, family: str, temperature: float
) -> None:
    """Bit for bit, at another state than that of the recording, and for another width."""
    model = tiny_model(tiny_config(family, num_hidden_layers=4))
    sampling = dataclasses.replace(SAMPLING, temperature=temperature)
    compiler = Compiler()
    with decoding(with_adapter(policy, model), sampling) as sampler:
        for positions in (40, 70):  # the second doubles the buffers
            sampler.decoder.reserve(positions)
        assert sampler.decoder.shape == (96, 128)
        replay = record(sampler, compiler)
        before = sampler.step.copy()
        sampler._append(sampler._logits())
        expected = sampler.step.copy()
        assert not torch.equal(before[1], expected[1])
        sampler.step.restore(before)
        replay()
        assert all(map(torch.equal, sampler.step.state, expected))
        # First, middle and last; a layer that attends to all follows those with windows, if any.
        assert len(compiler.codes) == 3
        sampler.decoder.reserve(100)
        assert sampler.decoder.shape == (128, 128)
        record(sampler, compiler)
        assert len(compiler.codes) == 3


@pytest.mark.parametrize(("memory", "capacity"), [(10**9, 1280), (10**5, 512)])
def test_buffers_that_may_be_kept_grow_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, memory: int, capacity: int
) -> None:
    """So that a step is compiled for one size of them."""
    monkeypatch.setattr("paint.inference.decoders.gpu_memory", lambda: memory)
    decoder = open_decoder(policy.base, 2, 1274)
    assert isinstance(decoder, StaticDecoder)
    with torch.no_grad():
        decoder.read([(5, 6)] * 2, [0, 1], ())
    decoder.device = torch.device("cuda")  # from here on, for the sizes alone
    decoder.reserve(258)
    assert decoder.shape == (512, capacity)


def test_step_without_attention_of_torch_or_with_waits_is_unsuitable(policy: Policy) -> None:
    with Recording() as recording:
        total = torch.ones(3).sum()
    with pytest.raises(Unsuitable, match="no attention"):
        recording.replay(total, Compiler())
    with pytest.raises(Unsuitable, match="waits for the device"), Recording():
        torch.ones(3).nonzero()


def test_equal_graphs_are_compiled_once_and_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[fx.GraphModule] = []

    def compile(graph: fx.GraphModule, _: Any) -> Function:
        made.append(graph)
        return graph

    monkeypatch.setattr(compiled, "_functions", {})
    monkeypatch.setattr(compiled, "compile_by_inductor", compile)
    x, buffer = torch.ones(4), torch.ones(2, 9)
    graph = fx.symbolic_trace(lambda a, b: (a + b,))
    other = fx.symbolic_trace(lambda a, b: (a - b,))
    compiled.compiled(graph, [x, x + 1])
    compiled.compiled(graph, [x * 2, x + 1])
    assert len(made) == 1
    # Of another graph, size, alignment and dtype, and of one memory.
    compiled.compiled(other, [x, x + 1])
    compiled.compiled(graph, [torch.ones(5), torch.ones(5)])
    compiled.compiled(graph, [x, buffer[0, 1:5]])
    compiled.compiled(graph, [x.double(), x + 1])
    compiled.compiled(graph, [x, x])
    assert len(made) == 6


class Steps:
    """A CompiledStep of a sampler, without a GPU: captures do nothing."""

    def __init__(self, sampler: _Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        monkeypatch.setattr(compiled, "_functions", {})
        monkeypatch.setattr(GraphedStep, "capture", lambda *_: None)
        self.sampler = sampler
        self.graphed = GraphedStep(
            sampler.step.state, self.notes.append, self.notes.append, enabled=False
        )
        self.steps = CompiledStep(self.graphed, sampler.policy.base, enabled=True)

    def step(self) -> Any:
        return self.steps.step(self.sampler._logits, self.sampler._append, 0)


def after_plain_step(sampler: _Sampler) -> list[Tensor]:
    before = sampler.step.copy()
    sampler._append(sampler._logits())
    after = sampler.step.copy()
    sampler.step.restore(before)
    return after


def test_compiled_step_steps_once_a_call_and_is_checked_again_in_its_second_use(
    trained: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    with decoding(trained) as sampler:
        steps = Steps(sampler, monkeypatch)
        monkeypatch.setattr(compiled, "compile_by_inductor", compiler)
        found = []
        for _ in range(3):
            steps.steps.use_again()
            for _ in range(2):
                expected = after_plain_step(sampler)
                found.append(steps.step())
                found[-1]()
                assert all(map(torch.equal, sampler.step.state, expected))
        assert found[0] is found[1] is not found[2] is found[3] is found[4]
        assert len(compiler.codes) == len(compiled._functions) == 3
        assert steps.notes == ["engine: compiling decode steps, which takes longest in a first run"]


def fails(*_: Any) -> Function:
    raise AssertionError("no such backend")


def runs_out_of_memory(*_: Any) -> Function:
    raise torch.OutOfMemoryError("CUDA out of memory")


def off_by(amount: float, dtype: torch.dtype) -> Callable[..., Function]:
    """A compiler that adds a part of its size to a result, where that has this dtype."""

    def compile(graph: fx.GraphModule, _: Any) -> Function:
        def run(*tensors: Tensor) -> list[Tensor]:
            return [x + amount * x if x.dtype == dtype else x for x in graph(*tensors)]

        return run

    return compile


def draws_wrong(graph: fx.GraphModule, _: Any) -> Function:
    """A compiler that writes another token."""

    def run(*tensors: Tensor) -> Any:
        outputs = graph(*tensors)
        if "topk" in graph.code:
            for x in tensors:
                if x.dtype == torch.long and x.ndim == 1 and "copy_" in graph.code:
                    x.add_(1)
        return outputs

    return run


@pytest.mark.parametrize(
    ("compile", "reason"),
    [
        (fails, "no such backend"),
        (runs_out_of_memory, "out of memory"),
        (off_by(0.1, torch.float32), "log-probs differ by"),
        (off_by(float("nan"), torch.float32), "log-probs differ by nan"),
        (draws_wrong, "draws other tokens"),
    ],
)
def test_compiled_step_that_fails_or_differs_leaves_step_and_is_noted_once(
    trained: Policy, monkeypatch: pytest.MonkeyPatch, compile: Any, reason: str
) -> None:
    with decoding(trained) as sampler:
        steps = Steps(sampler, monkeypatch)
        monkeypatch.setattr(compiled, "compile_by_inductor", compile)
        for _ in range(2):
            expected = after_plain_step(sampler)
            steps.step()()
            assert all(map(torch.equal, sampler.step.state, expected))
        [_, note] = steps.notes
        assert reason in note
        assert steps.steps.failed


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton interprets where there is no GPU")
@pytest.mark.filterwarnings("ignore")
def test_step_by_kernels_for_a_gpu_gives_values_and_tokens_of_step(policy: Policy) -> None:
    """Inductor's kernels for an H100 in the interpreter: those of layers, and those that draw."""
    pytest.importorskip("triton")
    from inductor_for_cuda import interpreted

    model = tiny_model(tiny_config("qwen3", num_hidden_layers=3, vocab_size=40))
    with patch.object(compiled, "_functions", {}), decoding(with_adapter(policy, model)) as sampler:
        with patch.object(compiled, "compile_by_inductor", interpreted):
            replay = record(sampler, compiled.compiled)
        assert len(compiled._functions) == 3
        before = sampler.step.copy()
        logits = sampler._logits()
        sampler._append(logits)
        expected = sampler.step.copy()
        written = [buffer.clone() for buffer in buffers_of(sampler)]
        sampler.step.restore(before)
        places = sampler.decoder.layout.places  # type: ignore[union-attr]
        for buffer in buffers_of(sampler):
            # What the step wrote, it writes again.
            buffer.view(-1, *buffer.shape[2:])[places] = 0
        torch.testing.assert_close(replay(), logits, rtol=0, atol=1e-5)
        assert sampler.step.agrees(expected)
        for buffer, values in zip(buffers_of(sampler), written, strict=True):
            torch.testing.assert_close(buffer, values, rtol=0, atol=1e-5)
