"""A decode step of the local engine as it is and compiled to fewer kernels, in one process.

    python benchmarks/decode.py [--model FOLDER] [--rows 32 128] [--tokens 512]

The model is a random Qwen3-1.7B, or that of --model, with a changed adapter. Each engine writes the
same prompts three times. In the first call graphs are captured and steps compiled, in the second
they are made again, and the third is timed. Some steps of a fourth are profiled: milliseconds of
GPU time, launches, and the kernels that take most. The table has also the gap of the log-probs to
the trainer's, and how far the tokens of both engines agree. Notes say if a step was not compiled.

Without a GPU nothing is compiled: a rehearsal with the demo's model, whose figures mean nothing.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from gpu import device, gaps_to_trainer, kernels_in, on_gpu
from models import random_qwen3
from paint.config.schema import ModelConfig
from paint.core.device import wait_for_device
from paint.core.display import Display
from paint.inference.engine import Completion, Sampling
from paint.inference.local import LONG, STEPS, LocalEngine
from paint.models.policy import Policy, load_policy

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=LONG)


BEFORE, PROFILED = 24, 8
"""Looks of the engine before the profile, and in it."""


@dataclass(frozen=True)
class Options:
    """A decode step as it is and compiled."""

    model: str = ""
    """Folder of a model; a random Qwen3-1.7B where it is empty."""
    rows: tuple[int, ...] = (32, 128)
    """Completions at once."""
    prompt: int = 250
    """Tokens of a prompt."""
    tokens: int = LONG
    """Tokens of a completion."""
    json: Path = Path("runs/bench-decode.json")
    """File for the figures."""


class Looks(Display):
    """Keeps notes, and does something at each look of the engine."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.texts: list[str] = []
        self.look: Callable[[], None] = lambda: None

    def note(self, text: str) -> None:
        self.texts.append(text)

    def writing(self, finished: int, under_way: int) -> None:
        self.look()


class Profiled(Exception):
    """Ends a call when its steps are profiled."""


def profile_steps(display: Looks, write: Callable[[], Any]) -> dict[str, Any]:
    """GPU time and launches of a step in the middle of a call, and what takes most of it."""
    found: dict[str, Any] = {"gpu_ms_a_step": float("nan"), "launches_a_step": 0, "kernels": {}}
    if not on_gpu():
        return found
    profiler = profile(activities=[ProfilerActivity.CUDA])
    looks = itertools.count()

    def look() -> None:
        number = next(looks)
        if number == BEFORE:
            torch.cuda.synchronize()
            profiler.start()
        elif number == BEFORE + PROFILED:
            torch.cuda.synchronize()
            profiler.stop()
            raise Profiled

    display.look = look
    with suppress(Profiled):
        write()
        return found  # it ended before
    steps = STEPS * PROFILED
    events = sorted(kernels_in(profiler), key=lambda event: -event.device_time_total)
    found["gpu_ms_a_step"] = sum(event.device_time_total for event in events) / 1e3 / steps
    found["launches_a_step"] = sum(event.count for event in events) / steps
    for event in events[:12]:
        cell = f"{event.count / steps:.1f} x {event.device_time_total / event.count:.1f} us"
        found["kernels"][event.key[:100]] = cell
    return found


def measure(
    policy: Policy, prompts: Sequence[list[int]], sampling: Sampling, *, compiled: bool
) -> tuple[dict[str, Any], list[Completion]]:
    """The figures of an engine, and what it wrote in its third call."""
    looks = Looks()
    engine = LocalEngine(policy, batch_size=len(prompts), display=looks, compiled=compiled)
    write = partial(engine.generate, prompts, sampling, range(len(prompts)))
    seconds = []
    for _ in range(3):
        wait_for_device()
        began = time.perf_counter()
        completions = write()
        wait_for_device()
        seconds.append(time.perf_counter() - began)
        name = "compiled" if compiled else "as it is"
        print(f"{len(prompts)} rows, {name}: {seconds[-1]:.1f} s", flush=True)
    steps = max(len(completion.ids) for completion in completions)
    gaps = gaps_to_trainer(policy, prompts[:32], completions[:32])
    figures = {
        "rows": len(prompts),
        "step": "compiled" if compiled else "as it is",
        "first_s": seconds[0],
        "second_s": seconds[1],
        "third_s": seconds[2],
        "tokens_per_s": sum(len(completion.ids) for completion in completions) / seconds[2],
        "ms_a_step": 1e3 * seconds[2] / steps,
        **profile_steps(looks, write),
        "mean_gap": float(gaps.mean()),
        "largest_gap": float(gaps.max()),
        "notes": looks.texts,
    }
    return figures, completions


def agreement(some: Sequence[Completion], others: Sequence[Completion]) -> dict[str, Any]:
    """How far two engines write the same: equal rows, common beginnings, and the gaps in these."""
    gaps, common = [], 0
    for one, other in zip(some, others, strict=True):
        pairs = zip(one.ids, other.ids, strict=False)
        length = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        both = zip(one.log_probs[:length], other.log_probs[:length], strict=True)
        gaps += [abs(ours - theirs) for ours, theirs in both]
        common += length
    return {
        "same_rows": sum(one.ids == other.ids for one, other in zip(some, others, strict=True)),
        "same_beginning": common / sum(len(completion.ids) for completion in others),
        "mean_gap_between": sum(gaps) / max(len(gaps), 1),
        "largest_gap_between": max(gaps, default=0.0),
    }


def compare(policy: Policy, rows: int, options: Options) -> Iterator[dict[str, Any]]:
    """The figures of both engines for this number of rows, each when it is measured."""
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(250, (rows, options.prompt), generator=generator).tolist()
    # Of different lengths, as in a training.
    prompts = [text[row % (1 + options.prompt // 10) :] for row, text in enumerate(texts)]
    sampling = replace(SAMPLING, max_new_tokens=options.tokens)
    plain, own = measure(policy, prompts, sampling, compiled=False)
    yield plain
    figures, completions = measure(policy, prompts, sampling, compiled=True)
    yield figures | agreement(completions, own)


def main(options: Options) -> list[dict[str, Any]]:
    """Print and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or ("demo" if not on_gpu() else random_qwen3(Path(folder) / "1.7B"))
        setting = ModelConfig(path=path, dtype="bfloat16" if on_gpu() else "float32")
        policy = load_policy(setting, seed=0, device=device())
        with torch.no_grad():
            for parameter in policy.trainable:
                parameter.normal_(0, 0.01)
        figures = []
        options.json.parent.mkdir(parents=True, exist_ok=True)
        for rows in options.rows:
            for found in compare(policy, rows, options):
                figures.append(found)
                # At once: what comes later may run out of time.
                options.json.write_text(json.dumps(figures, indent=1))
    table = Table(title="A decode step", title_justify="left")
    names = list(dict.fromkeys(name for row in figures for name in row))
    names = [name for name in names if name not in ("notes", "kernels")]
    for name in names:
        table.add_column(name.replace("_", " "))
    for row in figures:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells))
    Console(width=200).print(table)
    for row in figures:
        print(*(f"{key}: {cell}" for key, cell in row["kernels"].items()), sep="\n")
    for note in dict.fromkeys(note for row in figures for note in row["notes"]):
        print(note)
    return figures


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
