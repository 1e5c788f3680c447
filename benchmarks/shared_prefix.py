"""Benchmark of a step whose teacher prompts begin with the same guide, with and without it read
once, in seconds of processor time, which other work on the machine changes little.

    python benchmarks/shared_prefix.py                       # random weights, 8 layers of 256
    python benchmarks/shared_prefix.py --model FOLDER        # a real model

"run" is a frozen teacher, whose guide was read in an earlier step, and "step" any other. "prompted"
are answers with the guide in the prompt, as `paint bake` measures them: they are no part of a step.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import tyro
from rich.console import Console
from rich.table import Table

from models import random_qwen3
from paint.config import schema as cfg
from paint.inference import local
from paint.inference.engine import Sampling
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.objective.fused import fused_paint_loss


@dataclass(frozen=True)
class Options:
    """Seconds of a step whose teacher prompts share a guide."""

    model: str = ""
    """Folder of a model; "": random weights."""
    rows: int = 8
    """Completions of a step."""
    micro_batch: int = cfg.CPU_ROWS
    """Rows of a pass."""
    guide: int = 330
    """Tokens with which all prompts of the teacher begin."""
    question: int = 20
    """Further tokens of a prompt."""
    completion: int = 40
    """Tokens of a completion."""
    repeat: int = 2
    """Steps, of which the fastest of each phase counts."""


def step(policy: Policy, teacher: Teacher, shared: int, options: Options) -> dict[str, float]:
    """Seconds by phase of a step of random tokens, whose guide has ``shared`` tokens read once."""
    generator, seconds = torch.Generator().manual_seed(0), dict[str, float]()

    @contextmanager
    def clock(phase: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[phase] = seconds.get(phase, 0.0) + time.process_time() - began

    def texts(rows: int, length: int) -> list[list[int]]:
        size = len(policy.tokenizer)
        return torch.randint(4, size, (rows, length), generator=generator).tolist()

    [guide], questions = texts(1, options.guide), texts(options.rows, options.question)
    completions, prompted = texts(options.rows, options.completion), [guide + q for q in questions]
    engine = local.LocalEngine(policy, batch_size=options.rows)
    sampling, seeds = Sampling(1.0, 1.0, -1, options.completion), range(options.rows)
    with clock("rollouts"):
        engine.generate(questions, sampling, seeds)
    with clock("prompted"), patch.object(local, "WORTH_SHARING", 16 if shared else 10**9):
        engine.generate(prompted, sampling, seeds)
    for start in range(0, options.rows, options.micro_batch):
        part = slice(start, start + options.micro_batch)
        with clock("teacher"):
            hidden = teacher.hidden_states(prompted[part], completions[part], shared)
        with clock("student"):
            student = policy.hidden_states(questions[part], completions[part])
        with clock("loss, logits"):
            lengths = [len(ids) for ids in completions[part]]
            tokens = torch.tensor(completions[part]).flatten()
            loss = fused_paint_loss(student, hidden, policy.lm_head, lengths, tokens=tokens)
        with clock("backward"):
            loss.value.backward()
    return seconds


def main(options: Options) -> None:
    """Measure the three ways in turn, and print the fastest of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or random_qwen3(
            Path(folder), layers=8, hidden=256, heads=4, kv_heads=2, head_size=64
        )
        policy = load_policy(
            cfg.ModelConfig(path=path, dtype="float32", lora_rank=16, lora_alpha=32), seed=0
        )
    teacher = open_teacher(policy, cfg.TeacherConfig())
    found: dict[str, list[dict[str, float]]] = {"not": [], "step": [], "run": []}
    for _ in range(options.repeat):
        for name, steps in found.items():
            if name != "run":  # the step before has read it
                teacher.beginnings.clear()
            steps.append(step(policy, teacher, 0 if name == "not" else options.guide, options))
    table = Table(title=f"a step of {options.rows} x {options.completion}")
    fastest = {
        name: {phase: min(one[phase] for one in steps) for phase in steps[0]}
        for name, steps in found.items()
    }
    for heading in ("guide read once a", *fastest["not"], "whole step"):
        table.add_column(heading)
    for name, phases in fastest.items():
        total = sum(phases.values()) - phases["prompted"]
        table.add_row(name, *(f"{s:.2f}" for s in [*phases.values(), total]))
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
