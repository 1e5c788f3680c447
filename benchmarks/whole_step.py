"""Benchmark of a whole training step, its rollouts included, beside TRL's trainers.

    python benchmarks/whole_step.py [--vllm]

Every contender trains by its public interface for a few steps, in a process of its own: the same
random weights and problems, completions of the same most tokens, LoRA of the paper's rank. Random
weights seldom end a completion, so all generate about as many tokens.

    paint              paint.train, PAINT, rollouts by the local engine
    trl sdft           SDFTTrainer with its defaults, rollouts by transformers
    trl grpo           GRPOTrainer, groups of eight, rewards that differ, rollouts by transformers
    ..., vllm          the TRL trainers with a vLLM in the same process (--vllm)

Seconds are the median of the steps after the first, which compiles. Memory is the allocator's peak;
a CPU has none. On a GPU the model has the shape of Qwen3-1.7B, elsewhere two small layers.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from models import random_qwen3
from paint.core.demo_files import TRAINING_PROBLEMS
from step import adapter, load, own_dtype
from workers import chosen

GROUP = 8  # completions of a problem of GRPO


@dataclass(frozen=True)
class Options:
    """Seconds and memory of a whole step, ours and TRL's."""

    rows: int = 32
    """Completions of a step."""
    tokens: int = 1024
    """Most tokens of a completion."""
    micro_batch: int = 8
    """Rows of a micro-batch of TRL's trainers; ours plans its own."""
    steps: int = 4
    """Steps, the first of which does not count."""
    vllm: bool = False
    """TRL's trainers with a vLLM in their process, too."""
    only: tuple[str, ...] = ()
    """Contenders, by name; none: all."""
    tiny: bool = not torch.cuda.is_available()
    """A model of two small layers."""
    limit: float = 150.0
    """Seconds after which a contender is stopped."""
    json: Path = Path("runs/bench-whole-step.json")
    """File for the figures."""


def paint(path: str, options: Options) -> list[float]:
    """Seconds of each step of ours, by its metrics."""
    import paint as package

    run = package.train(
        "paint",
        model={"path": path, "dtype": own_dtype()},
        data=str(TRAINING_PROBLEMS),
        output_dir=Path(tempfile.mkdtemp()) / "run",
        rollout={
            "engine": "local",
            "max_new_tokens": options.tokens,
            "batch_size": options.rows,
            "max_logprob_mismatch": 1.0,  # random weights, rounded to bfloat16
        },
        train={"steps": options.steps, "batch_size": options.rows},
        confirm=True,
    )
    names = [name for name in run.metrics.columns if name.startswith("seconds_")]
    names.remove("seconds_left")
    return [float(seconds) for seconds in run.metrics[names].sum(axis=1)]


def trl(method: str, path: str, options: Options, *, vllm: bool = False) -> list[float]:
    """Seconds of each step of a trainer of TRL, by the clock."""
    from datasets import Dataset
    from transformers import TrainerCallback

    ends = [time.perf_counter()]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if len(ends) == 1:
                ends[0] = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    micro = min(options.micro_batch, options.rows)
    shared: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": options.rows // micro,
        "max_completion_length": options.tokens,
        "max_steps": options.steps,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
    }
    if vllm:
        shared |= {"use_vllm": True, "vllm_mode": "colocate"}
    lines = TRAINING_PROBLEMS.read_text("utf-8").splitlines()[:512]
    rows = [json.loads(line) for line in lines]
    model, tokenizer = load(path, own_dtype())
    more = {"processing_class": tokenizer, "peft_config": adapter(path), "callbacks": [Clock()]}
    trainer: Any
    if method == "sdft":
        from trl.experimental.sdft import SDFTConfig, SDFTTrainer

        examples = Dataset.from_list(
            [{"prompt": row["problem"], "privileged_context": row["solution"]} for row in rows]
        )
        trainer = SDFTTrainer(
            model, SDFTConfig(num_generations=1, **shared), train_dataset=examples, **more
        )
    else:
        from trl import GRPOConfig, GRPOTrainer

        def reward(completions: Sequence[str], **_: Any) -> list[float]:
            # Rewards that differ within a group, so that the gradient is not zero.
            return [float(zlib.crc32(text.encode()) % 7) for text in completions]

        examples = Dataset.from_list([{"prompt": row["problem"]} for row in rows])
        trainer = GRPOTrainer(
            model,
            reward,
            GRPOConfig(num_generations=min(GROUP, options.rows), **shared),
            train_dataset=examples,
            **more,
        )
    trainer.train()
    return [end - begin for begin, end in pairwise(ends)]


CONTENDERS: dict[str, Callable[[str, Options], list[float]]] = {
    "paint": paint,
    "trl sdft": lambda path, options: trl("sdft", path, options),
    "trl grpo": lambda path, options: trl("grpo", path, options),
    "trl sdft, vllm": lambda path, options: trl("sdft", path, options, vllm=True),
    "trl grpo, vllm": lambda path, options: trl("grpo", path, options, vllm=True),
}


def measure(name: str, path: str, options: Options) -> dict[str, Any]:
    """A contender's seconds and peak memory, from a process of its own; {"error"} if it failed."""
    order = json.dumps({"name": name, "path": path, "options": asdict(options)}, default=str)
    command = [sys.executable, __file__, "worker", order]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {options.limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def work(order: dict[str, Any]) -> None:
    """The worker: run the contender, and print its figures as the last line."""
    options = Options(**order["options"])
    seconds = CONTENDERS[order["name"]](order["path"], options)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    print()
    print(json.dumps({"steps": seconds, "peak_bytes": peak}))


def main(options: Options) -> dict[str, dict[str, Any]]:
    """Measure the contenders one after the other, and print and write their table."""
    names = [name for name in CONTENDERS if options.vllm or "vllm" not in name]
    figures: dict[str, dict[str, Any]] = {}
    small = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        path = random_qwen3(Path(folder) / "model", **(small if options.tiny else {}))  # type: ignore[arg-type]
        for name in chosen(names, options.only):
            figures[name] = measure(name, path, options)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(figures, indent=1))
    table = Table(title=f"A step of {options.rows} x {options.tokens}", title_justify="left")
    for column in ("", "seconds", "first", "peak, GB"):
        table.add_column(column)
    for name, found in figures.items():
        if "error" in found:
            table.add_row(name, found["error"])
            continue
        first, *later = found["steps"]
        peak = "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 1e9:.1f}"
        table.add_row(name, f"{statistics.median(later):.2f}", f"{first:.2f}", peak)
    Console().print(table)
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(json.loads(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=Options.__doc__))
