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

GUIDE, QUESTION, COMPLETION = 330, 20, 40  # tokens of each prompt's parts, and of a completion


def step(policy: Policy, teacher: Teacher, rows: int, shared: int) -> dict[str, float]:
    """Seconds by phase of a step of random tokens, of whose guide ``shared`` are read once."""
    generator, seconds = torch.Generator().manual_seed(0), dict[str, float]()

    @contextmanager
    def clock(phase: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[phase] = seconds.get(phase, 0.0) + time.process_time() - began

    def texts(count: int, length: int) -> list[list[int]]:
        size = len(policy.tokenizer)
        return torch.randint(4, size, (count, length), generator=generator).tolist()

    [beginning], questions = texts(1, GUIDE), texts(rows, QUESTION)
    completions = texts(rows, COMPLETION)
    prompted = [beginning + question for question in questions]
    engine, sampling = (
        local.LocalEngine(policy, batch_size=rows),
        Sampling(1.0, 1.0, -1, COMPLETION),
    )
    with clock("rollouts"):
        engine.generate(questions, sampling, range(rows))
    with clock("prompted"), patch.object(local, "WORTH_SHARING", 16 if shared else 10**9):
        engine.generate(prompted, sampling, range(rows))
    for start in range(0, rows, cfg.CPU_ROWS):
        part = slice(start, start + cfg.CPU_ROWS)
        with clock("teacher"):
            hidden = teacher.hidden_states(prompted[part], completions[part], shared)
        with clock("student"):
            student = policy.hidden_states(questions[part], completions[part])
        with clock("loss, logits"):
            tokens = torch.tensor(completions[part]).flatten()
            lengths = [COMPLETION] * len(completions[part])
            loss = fused_paint_loss(student, hidden, policy.lm_head, lengths, tokens=tokens)
        with clock("backward"):
            loss.value.backward()
    return seconds


def main(model: str = "", rows: int = 8, repeat: int = 2) -> None:
    """Measure steps of so many rows, in three ways in turn; print the fastest of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"layers": 8, "hidden": 256, "heads": 4, "kv_heads": 2, "head_size": 64}
        path = model or random_qwen3(Path(folder), **sizes)  # type: ignore[arg-type]
        policy = load_policy(cfg.ModelConfig(path=path, dtype="float32", lora_rank=16), seed=0)
    teacher = open_teacher(policy, cfg.TeacherConfig())
    found: dict[str, list[dict[str, float]]] = {"not": [], "step": [], "run": []}
    for _ in range(repeat):
        for name, steps in found.items():
            if name != "run":  # the step before has read it
                teacher.beginnings.clear()
            steps.append(step(policy, teacher, rows, 0 if name == "not" else GUIDE))
    table = Table("guide read once a", *found["not"][0], "whole step")
    for name, steps in found.items():
        fastest = {phase: min(one[phase] for one in steps) for phase in steps[0]}
        total = sum(fastest.values()) - fastest["prompted"]
        table.add_row(name, *(f"{seconds:.2f}" for seconds in [*fastest.values(), total]))
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main)
