"""Generation by the engine in the training process, before and after it learnt to share.

    python benchmarks/generation.py --model.path FOLDER --model.dtype bfloat16

*Before* is the library's own loop: batches in the order in which they were asked, every prompt read
as often as it is asked, a batch as long as its longest row, and top-p by sorting the vocabulary.
*After* is paint.engines.local. Both draw with the same seeds.

    rows              16 prompts
    samples           4 samples of each of 4 prompts
    beginning         16 prompts with a long common beginning
    refill            48 prompts, 16 at once, of which some end early
    sampler           tokens drawn from random logits, 16 rows of the model's vocabulary; nothing of
                      the model
    adapters          states of 4 x 300 tokens and the gradient, with peft's layers and with ours

They take turns in one process. Seconds are of one thread's processor time, so that other work on
the machine counts little; the ratios are medians over the rounds. Memory is the peak beside what
was held before; of the adapters, it is what is kept for the backward pass.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import peft
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paint import config as cfg
from paint.engines.local import LocalEngine, distribution, invert
from paint.engines.protocol import Sampling
from paint.model import policy as policies
from paint.model.policy import Policy, load_policy

Workload = Literal["rows", "samples", "beginning", "refill", "sampler", "adapters"]


@dataclass(frozen=True)
class Options:
    """What is measured."""

    model: cfg.Model = field(default_factory=lambda: cfg.Model(path="lab", dtype="float32"))
    tokens: int = 48
    """Longest completion, in tokens; four times as many where rows take the place of others."""
    rounds: int = 3
    workloads: tuple[Workload, ...] = get_args(Workload)


def sampling_of(options: Options, workload: str) -> Sampling:
    tokens = options.tokens * (4 if workload == "refill" else 1)
    return Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=tokens)


def prompts_of(policy: Policy, workload: str) -> list[list[int]]:
    """Word problems of several lengths."""
    told = "Ann has {} pens and gives {} away, so {} are left. "
    examples = "".join(told.format(10 + i, i, 10) for i in range(20))
    before = examples if workload == "beginning" else ""
    count = {"samples": 4, "refill": 48}.get(workload, 16)
    prompts = [
        policy.student_prompt(
            before + f"Tom has {i + 3} apples and buys {2 * i} more. " * (1 + i % 3) + "How many?"
        )
        for i in range(count)
    ]
    return [prompt for prompt in prompts for _ in range(4)] if workload == "samples" else prompts


class Draw(LogitsProcessor):  # type: ignore[misc]
    """The library's warpers, and its greedy search over the one token that was drawn."""

    def __init__(self, sampling: Sampling, seeds: Sequence[int]) -> None:
        self.warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
        self.warpers += [TopKLogitsWarper(sampling.top_k), TopPLogitsWarper(sampling.top_p)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        uniforms = [torch.rand(sampling.max_new_tokens, generator=g) for g in generators]
        self.uniforms = torch.stack(uniforms)
        self.log_probs: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        probs = self.warpers(input_ids, scores.float()).softmax(-1)
        tokens = invert(probs, self.uniforms[:, len(self.log_probs)])[:, None]
        self.log_probs.append(scores.float().log_softmax(-1).gather(1, tokens)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens, 0.0)


@torch.no_grad()
def before(policy: Policy, prompts: list[list[int]], sampling: Sampling, at_once: int) -> int:
    """Tokens written by the library's loop."""
    written, pad = 0, policy.tokenizer.pad_token_id or 0
    for first in range(0, len(prompts), at_once):
        batch = prompts[first : first + at_once]
        width = max(map(len, batch))
        output = policy.model.generate(
            input_ids=torch.tensor([[pad] * (width - len(p)) + p for p in batch]),
            attention_mask=torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch]),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=policy.end_ids,
                pad_token_id=pad,
            ),
            logits_processor=LogitsProcessorList(
                [Draw(sampling, range(first, first + len(batch)))]
            ),
        )
        for row in output[:, width:].tolist():
            ends = [place + 1 for place, token in enumerate(row) if token in policy.end_ids]
            written += min(ends, default=len(row))
    return written


def after(policy: Policy, prompts: list[list[int]], sampling: Sampling, at_once: int) -> int:
    """Tokens written by the engine."""
    engine = LocalEngine(policy, batch_size=at_once)
    completions = engine.generate(prompts, sampling, range(len(prompts)))
    return sum(len(completion.ids) for completion in completions)


def drawn(policy: Policy, way: str, sampling: Sampling) -> int:
    """Tokens drawn from logits that are there."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(16, policy.lm_head.out_features, generator=generator)
    draw = Draw(sampling, range(16))
    for step in range(sampling.max_new_tokens):
        if way == "before":
            draw(None, logits)
        else:
            probs, tokens = distribution(logits, sampling)
            drawn = tokens.gather(1, invert(probs, draw.uniforms[:, step])[:, None])
            logits.log_softmax(-1).gather(1, drawn)
    return 16 * sampling.max_new_tokens


def passed(policy: Policy) -> tuple[int, float]:
    """Tokens scored, and MB kept for their backward pass."""
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, policy.lm_head.out_features, (4, 300), generator=generator).tolist()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = policy.hidden_states([row[:100] for row in ids], [row[100:] for row in ids])
    states.float().sum().backward()
    return 1200, sum(kept.values()) / 2**20


def measure(options: Options, policy: Policy, workload: Workload, way: str) -> tuple[float, float]:
    """Tokens a processor second, and MB."""
    sampling, prompts = sampling_of(options, workload), prompts_of(policy, workload)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    held, began = held_at_most(), time.process_time()

    memory = None
    if workload == "sampler":
        tokens = drawn(policy, way, sampling)
    elif workload == "adapters":
        tokens, memory = passed(policy)
    else:
        tokens = (before if way == "before" else after)(policy, prompts, sampling, 16)
    seconds = time.process_time() - began
    return tokens / seconds, held_at_most() - held if memory is None else memory


def held_at_most() -> float:
    """MB that this process has held at most since it was last asked to forget."""
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    return int(line.split()[1]) / 1024


def main(options: Options) -> None:
    """Measure by turns, and print the table."""
    torch.set_num_threads(1)
    loaded = {"after": load_policy(options.model, seed=0)}
    with patch.object(policies, "LeanLinear", peft.tuners.lora.Linear):
        loaded["before"] = load_policy(options.model, seed=0)

    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for workload in options.workloads:
            for way, policy in reversed(loaded.items()):
                measured = measure(options, policy, workload, way)
                found.setdefault((workload, way), []).append(measured)
                print(workload, way, *(f"{figure:,.1f}" for figure in measured), flush=True)

    table = Table(title=f"{options.model.path}, {options.model.dtype}: medians of {options.rounds}")
    for column in ("", "tokens/s before", "after", "ratio", "MB before", "after", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for workload in options.workloads:
        cells: list[str] = [workload]
        for kind in (0, 1):
            old, new = ([run[kind] for run in found[workload, w]] for w in ("before", "after"))
            ratio = statistics.median(n / max(o, 1e-9) for o, n in zip(old, new, strict=True))
            figures = statistics.median(old), statistics.median(new)
            cells += [*(f"{figure:,.1f}" for figure in figures), f"{ratio:.2f}"]
        table.add_row(*cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
