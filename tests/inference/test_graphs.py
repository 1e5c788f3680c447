"""Steps as CUDA graphs, with stand-ins for CUDA: a capture changes nothing, a replay steps.

A replay fails if a tensor that its graph works on has moved since the capture.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from paint.config.schema import TeacherConfig
from paint.data.problems import Problem
from paint.inference import decoders, graphs, local
from paint.inference.decoders import StaticDecoder
from paint.inference.engine import Sampling
from paint.inference.graphs import GraphedStep
from paint.inference.local import LocalEngine
from paint.inference.slots import SlotRow
from paint.models.policy import Policy
from paint.models.teacher import open_teacher

SAMPLING = Sampling(temperature=1.5, top_p=0.99, top_k=20, max_new_tokens=32)


class Graph:
    """Repeats the step that was captured, on the tensors of then."""

    captured: "list[Graph]"
    step: Callable[[], None]
    tensors: Callable[[], list[Tensor]]
    addresses: list[int]

    def replay(self) -> None:
        assert [t.data_ptr() for t in self.tensors()] == self.addresses
        self.step()


class Stream:
    def wait_stream(self, _: Any) -> None: ...


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Graphs in the order of their captures, in engines on a CPU."""
    found: list[Graph] = []
    now: dict[str, Any] = {}
    first, sampler = GraphedStep._first, local._Sampler.__init__

    def first_step(self: GraphedStep, step: Callable[[], None], shape: Any) -> None:
        now["step"], now["state"] = step, self.state
        first(self, step, shape)

    def on_gpu(self: Any, *arguments: Any, **options: Any) -> None:
        sampler(self, *arguments, **options)
        state = (*self.slots.state, self.too_few)
        self.step = GraphedStep(state, arguments[4], enabled=True)

        def tensors() -> list[Tensor]:
            buffers = [b for layer in self.decoder.cache.layers for b in layer.buffers]
            return [*state, *buffers]

        now["tensors"] = tensors

    @contextmanager
    def capture(graph: Graph, **_: Any) -> Iterator[None]:
        before = [part.clone() for part in now["state"]]
        yield
        for part, value in zip(now["state"], before, strict=True):
            part.copy_(value)
        graph.step = now["step"]
        graph.tensors = now.get("tensors", list)
        graph.addresses = [t.data_ptr() for t in graph.tensors()]
        found.append(graph)

    @contextmanager
    def on_stream(_: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(GraphedStep, "_first", first_step)
    monkeypatch.setattr(local._Sampler, "__init__", on_gpu)
    monkeypatch.setattr(local, "FEWEST", 1)
    for name, value in {
        "Stream": Stream,
        "current_stream": Stream,
        "stream": on_stream,
        "CUDAGraph": Graph,
        "graph": capture,
        "graph_pool_handle": object,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("paint.inference.decoders.gpu_memory", lambda: 10**9)
    return found


def prompts_of(policy: Policy, problems: list[Problem], count: int) -> list[list[int]]:
    """Prompts of different lengths."""
    return [policy.student_prompt(p.problem)[: 40 + i] for i, p in enumerate(problems[:count])]


class Counter:
    """A step that adds 1 to a tensor, and one that goes wrong when it is repeated."""

    def __init__(self) -> None:
        self.value, self.calls = torch.zeros(2), 0
        self.notes: list[str] = []
        self.graphed = GraphedStep([self.value], self.notes.append, enabled=True)

    def step(self) -> None:
        self.calls += 1
        self.value += 1

    def wrong_from_third_call(self) -> None:
        self.calls += 1
        self.value += 1 if self.calls < 3 else 1.1

    def waits(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("called a synchronizing CUDA operation")
        self.value += 1


def test_graphed_step_steps_once_a_run_and_captures_once_a_shape(captured: list[Graph]) -> None:
    counter = Counter()
    for shape in (4, 4, 2, 4):
        counter.graphed.run(counter.step, shape)
    assert counter.value.tolist() == [4, 4]
    assert len(captured) == 2
    counter.graphed.clear()
    counter.graphed.run(counter.step, 4)
    assert counter.value.tolist() == [5, 5]
    assert len(captured) == 3
    assert not counter.notes


def test_graphed_step_that_waits_stays_eager_and_is_noted_once(captured: list[Graph]) -> None:
    counter = Counter()
    for _ in range(3):
        counter.graphed.run(counter.waits, 4)
    assert counter.value.tolist() == [3, 3]
    assert not captured
    [note] = counter.notes
    assert "called a synchronizing CUDA operation" in note


def test_graphed_step_with_other_results_keeps_eager_ones(captured: list[Graph]) -> None:
    counter = Counter()
    counter.graphed.run(counter.wrong_from_third_call, 4)  # eager, captured, replayed
    assert counter.value.tolist() == [1, 1]
    assert not counter.graphed.enabled
    assert len(counter.notes) == 1


def test_graphed_step_out_of_memory_is_raised(captured: list[Graph]) -> None:
    counter = Counter()

    def step() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        counter.graphed.run(step, 4)
    assert counter.graphed.enabled


def test_generate_by_graphs_gives_eager_completions(
    captured: list[Graph], policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are refilled and shrink, buffers grow, and a second call uses the graphs again."""
    prompts = prompts_of(policy, problems, 9)
    eager = LocalEngine(policy, batch_size=4)
    expected = eager.generate(prompts, SAMPLING, range(9))
    monkeypatch.setattr(decoders, "KEPT", 1.0)
    engine = LocalEngine(policy, batch_size=4)
    assert engine.generate(prompts, SAMPLING, range(9)) == expected
    count = len(captured)
    assert count > 3
    assert engine.generate(prompts[:4], SAMPLING, range(4)) == eager.generate(
        prompts[:4], SAMPLING, range(4)
    )


def test_generate_by_kept_graphs_follows_weights_and_teacher_view(
    captured: list[Graph], trained: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "KEPT", 1.0)
    prompts = prompts_of(trained, problems, 4)
    engine = LocalEngine(trained, batch_size=4)
    first = engine.generate(prompts, SAMPLING, range(4))
    kept = engine._kept
    with torch.no_grad():
        for parameter in trained.trainable:
            parameter.mul_(3)
    moved = engine.generate(prompts, SAMPLING, range(4))
    assert engine._kept is kept is not None
    assert moved != first
    assert moved == LocalEngine(trained, batch_size=4).generate(prompts, SAMPLING, range(4))
    with open_teacher(trained, TeacherConfig()).view():
        base = engine.generate(prompts, SAMPLING, range(4))
        assert engine._kept is not kept
        assert base == LocalEngine(trained, batch_size=4).generate(prompts, SAMPLING, range(4))
    assert base != moved


def test_generate_drops_graphs_when_a_prefill_moves_buffers(
    captured: list[Graph], policy: Policy, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the first shape follows a prefill that needed, and left, larger buffers."""
    monkeypatch.setattr(local, "FEWEST", 2)
    short = policy.student_prompt(problems[0].problem)
    sampling = dataclasses.replace(SAMPLING, max_new_tokens=20)
    sampler = local._Sampler(policy, sampling, 2, 320, print)
    assert isinstance(sampler.decoder, StaticDecoder)
    first, long = (SlotRow(i, tuple(ids), i) for i, ids in enumerate([short, (short * 20)[:300]]))
    with torch.no_grad():
        sampler.fill([first], ())
        sampler.run(1)
        capacity, shape = sampler.decoder.layout.capacity, sampler._shape
        sampler.fill([long], ())
        assert sampler.decoder.layout.capacity > capacity
        sampler.slots.take([1])
        sampler.run(1)  # the graph of before would fail: its buffers have moved
    assert sampler._shape == shape
    assert len(captured) == 2


def test_agreement_allows_rounding_of_log_probs_only() -> None:
    ids, log_probs = torch.tensor([3, 5]), torch.tensor([-1.0, -2.0])
    step = GraphedStep([ids, log_probs], print, enabled=False)
    assert step.agrees([ids, log_probs + graphs.ATOL / 2])
    assert not step.agrees([ids, log_probs + 2 * graphs.ATOL])
    assert not step.agrees([ids + torch.tensor([0, 1]), log_probs])
