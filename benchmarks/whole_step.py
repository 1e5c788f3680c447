"""Benchmark of a whole training step, its rollouts included, beside TRL's trainers.

    python benchmarks/whole_step.py [--vllm]

Every contender trains by its public interface for a few steps, in a process of its own: the same
random weights and problems, completions of the same most tokens, LoRA of the paper's rank. Random
weights seldom end a completion, so all generate about as many tokens.

    paint              paint.train, PAINT, rollouts by the local engine
    ..., vllm          the TRL trainers with a vLLM in the same process (--vllm)
    trl sdft           SDFTTrainer with its defaults, rollouts by transformers
    trl grpo           GRPOTrainer, groups of eight, rewards that differ, rollouts by transformers

Seconds are the median of the steps after the first, which compiles; of the first where no other
ended in time. Memory is the allocator's peak; a CPU has none. On a GPU the model has the shape of
Qwen3-1.7B, elsewhere two small layers.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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
    model: str = ""
    """Folder of the model; none: a random one is made."""
    tiny: bool = not torch.cuda.is_available()
    """A model of two small layers."""
    limit: float = 150.0
    """Seconds after which a contender is stopped; the steps that have ended count."""
    seconds: float = 900.0
    """For all contenders together."""
    json: Path = Path("runs/bench-whole-step.json")
    """File for the figures."""


Note = Callable[[float, float], None]
"""Writes down a step that has ended: all its seconds, and those of its rollouts."""


def paint(path: str, options: Options, note: Note) -> None:
    """Steps of ours, by the metrics."""
    import paint as package

    class Noted(package.Callback):
        def on_step(self, step: int, metrics: Any, rollouts: Any) -> None:
            seconds = {name: s for name, s in metrics.items() if name.startswith("seconds_")}
            seconds.pop("seconds_left", None)
            note(sum(seconds.values()), seconds["seconds_rollout"])

    package.train(
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
        callbacks=[Noted()],
    )


def trl(method: str, vllm: bool, path: str, options: Options, note: Note) -> None:
    """Steps of a trainer of TRL, by the clock."""
    from transformers import TrainerCallback

    began, rollouts = 0.0, 0.0

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal began
            began = began or now()  # later ones begin as the one before ends

        def on_step_end(self, *_: Any, **__: Any) -> None:
            nonlocal began, rollouts
            note(now() - began, rollouts)
            began, rollouts = now(), 0.0

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
    trainer = {"sdft": sdft, "grpo": grpo}[method](path, options, shared, Clock())
    generate = trainer._generate

    def timed(*given: Any, **more: Any) -> Any:
        nonlocal rollouts
        start = now()
        found = generate(*given, **more)
        rollouts += now() - start
        return found

    trainer._generate = timed
    trainer.train()


def now() -> float:
    """Seconds by the clock, when the device has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def problems() -> list[dict[str, Any]]:
    """The demo's first problems."""
    lines = TRAINING_PROBLEMS.read_text("utf-8").splitlines()[:512]
    return [json.loads(line) for line in lines]


def sdft(path: str, options: Options, shared: dict[str, Any], clock: Any) -> Any:
    """TRL's trainer of self-distillation."""
    from datasets import Dataset
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

    model, tokenizer = load(path, own_dtype())
    return SDFTTrainer(
        model,
        SDFTConfig(num_generations=1, **shared),
        train_dataset=Dataset.from_list(
            [{"prompt": r["problem"], "privileged_context": r["solution"]} for r in problems()]
        ),
        processing_class=tokenizer,
        peft_config=adapter(path),
        callbacks=[clock],
    )


def grpo(path: str, options: Options, shared: dict[str, Any], clock: Any) -> Any:
    """TRL's trainer of GRPO."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        # Rewards that differ within a group, so that the gradient is not zero.
        return [float(zlib.crc32(text.encode()) % 7) for text in completions]

    model, tokenizer = load(path, own_dtype())
    return GRPOTrainer(
        model,
        reward,
        GRPOConfig(num_generations=min(GROUP, options.rows), **shared),
        train_dataset=Dataset.from_list([{"prompt": r["problem"]} for r in problems()]),
        processing_class=tokenizer,
        peft_config=adapter(path),
        callbacks=[clock],
    )


CONTENDERS: dict[str, Callable[[str, Options, Note], None]] = {
    "paint": paint,
    "trl sdft, vllm": partial(trl, "sdft", True),
    "trl grpo, vllm": partial(trl, "grpo", True),
    "trl sdft": partial(trl, "sdft", False),
    "trl grpo": partial(trl, "grpo", False),
}
"""The fastest first: the last ones may get no time."""


def measure(name: str, path: str, options: Options) -> dict[str, Any]:
    """A contender's steps and peak memory, from a process of its own; "error" if it did not end."""
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps.jsonl"
        order = {"name": name, "path": path, "steps": str(steps), "options": asdict(options)}
        command = [sys.executable, __file__, "worker", json.dumps(order, default=str)]
        error = ""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
            if done.returncode:
                error = (done.stderr.strip().splitlines() or ["failed"])[-1]
        except subprocess.TimeoutExpired:
            error = f"stopped after {options.limit:.0f} s"
        lines = steps.read_text().splitlines() if steps.exists() else []
    found: dict[str, Any] = {"steps": [json.loads(line) for line in lines]}
    return found | ({"error": error} if error else {})


def work(order: dict[str, Any]) -> None:
    """The worker: run the contender, and write each step as soon as it has ended."""
    with Path(order["steps"]).open("a") as file:

        def note(seconds: float, rollouts: float) -> None:
            peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
            row = {"seconds": seconds, "rollouts": rollouts, "peak_bytes": peak}
            print(json.dumps(row), file=file, flush=True)

        CONTENDERS[order["name"]](order["path"], Options(**order["options"]), note)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """A contender's figures: medians of the steps after the first, or those of the first."""
    if not found["steps"]:
        return {"failed": found["error"]}
    counted = found["steps"][1:] or found["steps"]
    seconds, rollouts = (
        statistics.median(step[name] for step in counted) for name in ("seconds", "rollouts")
    )
    peak = found["steps"][-1]["peak_bytes"]
    figures = {
        "seconds": seconds,
        "rollouts": rollouts,
        "update": seconds - rollouts,
        "first": found["steps"][0]["seconds"],
        "steps": len(found["steps"]),
        "peak_GB": None if peak is None else peak / 1e9,
    }
    return figures | ({"ended": found["error"]} if "error" in found else {})


def main(options: Options) -> dict[str, dict[str, Any]]:
    """Measure the contenders one after the other, and print and write their table."""
    ends = time.monotonic() + options.seconds
    names = [name for name in CONTENDERS if options.vllm or "vllm" not in name]
    figures: dict[str, dict[str, Any]] = {}
    small = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or random_qwen3(
            Path(folder) / "model",
            **(small if options.tiny else {}),  # type: ignore[arg-type]
        )
        for name in chosen(names, options.only):
            limit = min(options.limit, ends - time.monotonic())
            if limit < 5:
                figures[name] = {"steps": [], "error": "no time was left"}
            else:
                figures[name] = measure(name, path, replace(options, limit=limit))
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(figures, indent=1))
    table = Table(title=f"A step of {options.rows} x {options.tokens}", title_justify="left")
    columns = ("seconds", "rollouts", "update", "first", "steps", "peak_GB", "ended")
    for column in ("", *columns):
        table.add_column(column)
    for name, found in figures.items():
        cells = summary(found)
        shown = [cells.get(column, "") for column in columns]
        texts = [f"{cell:.3g}" if isinstance(cell, float) else str(cell or "") for cell in shown]
        table.add_row(name, *([cells["failed"]] if "failed" in cells else texts))
    Console().print(table)
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(json.loads(sys.argv[2]))
    else:
        main(tyro.cli(Options, description=Options.__doc__))
