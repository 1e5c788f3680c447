"""Benchmark of an update without rollouts: seconds by phase and peak memory.

    python benchmarks/update.py

Measured with gradient checkpointing on and off, on a randomly initialised Qwen3-1.7B in bfloat16
(on a CPU the demo's model, to try the benchmark) with the paper's adapters. 32 prompts of 200
tokens, teacher prompts of 800, completions of 1,024.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from models import random_qwen3
from paint.config import schema as cfg
from paint.core.display import Clock, Display
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from paint.objective.fused import fused_paint_loss
from paint.resolve.optimizer import AdamW, open_optimizer


@dataclass(frozen=True)
class Options:
    """Time and memory of an update."""

    batch_size: int = 32
    """Completions of an update."""
    micro_batch_size: int = 4
    """Completions of one forward and backward pass."""
    prompt: int = 200
    """Tokens of the student's prompts."""
    teacher_prompt: int = 800
    """Tokens of the teacher's prompts."""
    completion: int = 1024
    """Tokens of the completions."""
    repeat: int = 3
    """Updates that are timed, after one that is not."""
    json: Path = Path("runs/bench-update.json")
    """File for the figures."""


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, options: Options, phase: Clock
) -> None:
    """What paint.algorithms.paint does between rollouts, phase by phase."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = policy.lm_head.out_features

    def texts(length: int) -> list[list[int]]:
        return torch.randint(
            vocabulary, (options.micro_batch_size, length), generator=generator
        ).tolist()

    for _ in range(0, options.batch_size, options.micro_batch_size):
        prompts, teacher_prompts = texts(options.prompt), texts(options.teacher_prompt)
        completions = texts(options.completion)
        sampled = torch.tensor(completions, device=policy.device).flatten()

        with phase("teacher forward"), open_teacher(policy, cfg.TeacherConfig()).view():
            teacher = policy.hidden_states(teacher_prompts, completions)
        with phase("student forward"):
            student = policy.hidden_states(prompts, completions)
        with phase("loss"):
            lengths = [len(c) for c in completions]
            loss = fused_paint_loss(student, teacher, policy.lm_head, lengths, tokens=sampled)
        with phase("backward"):
            (loss.value * options.micro_batch_size / options.batch_size).backward()

    with phase("update"):
        torch.nn.utils.clip_grad_norm_(policy.trainable, 0.1)
        optimizer.step()
        optimizer.zero_grad()


def measure(path: str, checkpointing: bool, options: Options) -> dict[str, Any]:
    """Seconds by phase of every timed update, and the peak of allocated memory.

    The peak includes all that is resident: weights, adapters, optimizer.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = cfg.ModelConfig(path=path, dtype="bfloat16", gradient_checkpointing=checkpointing)
    policy = load_policy(model, seed=0, device=device)
    optimizer = open_optimizer(AdamW(), policy.trainable, cfg.TrainConfig())

    display = Display(enabled=False)
    update(policy, optimizer, options, Clock(display))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    rounds = []
    for _ in range(options.repeat):
        clock = Clock(display)
        update(policy, optimizer, options, clock)
        rounds.append(clock.seconds)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"rounds": rounds, "peak_bytes": peak}


def main(options: Options) -> None:
    """Measure, print, store."""
    console = Console()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        is_gpu = torch.cuda.is_available()
        path = random_qwen3(Path(folder), device="cuda") if is_gpu else "demo"
        for checkpointing in (True, False):
            console.print(
                f"gradient checkpointing {'on' if checkpointing else 'off'} ...", style="dim"
            )
            try:
                measured["on" if checkpointing else "off"] = measure(path, checkpointing, options)
            except torch.OutOfMemoryError as error:
                console.print(f"out of memory: {str(error).splitlines()[0]}")

    table = Table(title=f"one update of {options.batch_size} completions, {device}: median seconds")
    table.add_column("checkpointing")
    phases = list(next(iter(measured.values()))["rounds"][0])
    for heading in (*phases, "all", "peak GB"):
        table.add_column(heading, justify="right")
    for name, figures in measured.items():
        rounds, peak = figures["rounds"], figures["peak_bytes"]
        middle = sorted(rounds, key=lambda seconds: sum(seconds.values()))[len(rounds) // 2]
        cells = [f"{middle[p]:.2f}" for p in phases] + [f"{sum(middle.values()):.2f}"]
        table.add_row(name, *cells, "-" if peak is None else f"{peak / 1e9:.1f}")
    console.print(table)

    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"device": device, "checkpointing": measured}, indent=1) + "\n"
    )
    console.print(f"written to {options.json}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
