"""GPU benchmarks and tests in one command of less than nine minutes (docs/dev/benchmarks.md).

    python benchmarks/gpu.py [--smollm2 FOLDER]        (make gpu)

Writes gpu-report.md and gpu-report.json. Each part runs in a process of its own with its own time
limit, so that one failure, or one that is out of memory, costs only its own rows; a part writes row
by row, and what it wrote before it was stopped is kept. The report is written anew after each part.
What is worth most comes first. Nothing is downloaded; what is missing is skipped and named.

Without a GPU, or with --rehearse, everything is tiny: a rehearsal of the code, whose figures mean
nothing.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # paint may be not installed

from paint.config.schema import Config, TrainConfig
from paint.estimate.memory import CHUNK, Rows, training_memory
from paint.estimate.shapes import SHAPES, Shape
from paint.objective.options import Impl, ObjectiveConfig
from workers import chosen, seconds_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPT = Path(__file__).resolve()
BUDGET = 520
"""Seconds for all parts: below nine minutes with what comes before and after."""

PEAKS = {
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.4e12,
    "A100": 312e12,
}
"""FLOP/s of dense bfloat16 products by a part of the device's name, the first that fits (source:
NVIDIA's data sheets of the H200, the H100 and the A100; sparse figures halved)."""

Say = Callable[..., None]
"""Writes one row of a table: ``say(table, column=value, ...)``; or a note: ``say(note=...)``."""


class Skipped(Exception):
    """This part cannot be had here; the message says what is missing."""


@dataclass(frozen=True)
class Place:
    """Where a part works, and until when.

    Attributes:
        folder: that all parts share, for models and for what they leave to each other.
        ends: when the part is stopped (``time.time``).
        smollm2: folder of that model and its problems; "" for none.
    """

    folder: Path
    ends: float
    smollm2: str


@dataclass(frozen=True)
class Load:
    """The rows of an update."""

    title: str
    rows: int
    micro: int
    prompt: int
    teacher_prompt: int
    completion: int


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    heads: Mapping[str, int]
    vocabulary: int
    tokens: int
    """Of the kernels' comparison with the reference."""
    models: Mapping[str, Shape]
    loads: tuple[Load, ...]
    repeat: int
    """Updates that are timed, after one that is not."""
    generated: tuple[int, int]
    """Completions that an engine writes at once, and their tokens."""
    steps: tuple[int, int]
    """Of the run that is resumed: all, and those before it is stopped."""
    real_steps: int
    """Most steps of the real model."""
    tests: tuple[str, ...]
    loss: tuple[str, ...]
    """Further arguments of benchmarks/loss.py."""
    step: tuple[str, ...]
    """Further arguments of benchmarks/step.py."""


FULL = Scale(
    heads={"1.7B": 2048, "4B": 2560, "8B": 4096},
    vocabulary=151_936,
    tokens=1024,
    models={"1.7B": SHAPES["Qwen/Qwen3-1.7B"], "8B": SHAPES["Qwen/Qwen3-8B"]},
    loads=(
        Load("32 x 1,024, 4 at once", 32, 4, 200, 2000, 1024),
        Load("32 x 1,024, 1 at once", 32, 1, 200, 2000, 1024),
        Load("1 x 16,384", 1, 1, 200, 8192, 16_384),
    ),
    repeat=2,
    generated=(32, 256),
    steps=(6, 3),
    real_steps=200,
    tests=("tests/objective/test_fused.py", "tests/objective/test_loss.py"),
    loss=("--repeat", "3"),
    step=("--repeat", "3", "--sizes.completions", "4"),
)

_TINY = Shape(2, 32, 2, 64, tied=True, kv_heads=1, head_size=16, vocabulary=800)
REHEARSAL = Scale(
    heads={"tiny": 16},
    vocabulary=300,
    tokens=8,
    models={"1.7B": _TINY, "8B": replace(_TINY, tied=False)},
    loads=(Load("2 x 6", 2, 2, 4, 8, 6), Load("1 x 12", 1, 1, 4, 8, 12)),
    repeat=1,
    generated=(2, 4),
    steps=(2, 1),
    real_steps=1,
    tests=("tests/objective/test_loss.py", "-k", "entropy"),
    loss=("--repeat", "1", "--completion", "8", "--vocabulary", "300", "--memory", "1"),
    step=(
        *("--repeat", "1", "--layers", "1", "--hidden", "32", "--vocabulary", "800"),
        *("--sizes.completion", "8", "--sizes.prompt", "4", "--sizes.teacher-prompt", "8"),
    ),
)


def on_gpu() -> bool:
    """Whether there is a GPU that torch can use."""
    return torch.cuda.is_available()


def device() -> str:
    """Where everything is computed."""
    return "cuda" if on_gpu() else "cpu"


def peak_flops(name: str) -> float | None:
    """FLOP/s that a device's data sheet promises; None for one that is not in the table."""
    return next((flops for part, flops in PEAKS.items() if part in name), None)


IMPLS: tuple[Impl, ...] = ("reference", "chunked", "triton")
"""The loss in eager code on all logits, in plain torch by chunks, and with kernels."""


@contextmanager
def row_of_its_own(say: Say, table: str, **cells: Any) -> Iterator[None]:
    """Write what fails in the block as a row of the table: it costs that row only."""
    try:
        yield
    except Exception as error:
        say(table, **cells, failed=_line(error))


# --- the first commands ---------------------------------------------------------------------------


def starts(scale: Scale, say: Say, place: Place) -> None:
    """The first commands of a user: do they end well, and how long do they take?"""
    random = _random_model("1.7B", scale.models["1.7B"], place.folder)
    runs = ("--log.folder", str(place.folder), "--log.name")
    commands = {
        "plan": ("plan", "paint-qwen3-1.7b"),
        "train the demo": ("train", "demo-paint", "--train.steps", "2", *runs, "demo"),
        "train 1.7B": ("train", "paint-qwen3-1.7b", *_one_step(random, 4, 32), *runs, "local"),
        "evaluate the demo": (
            *("eval", str(place.folder / "demo"), "--benchmarks", "demo", "--no-thinking"),
            *("--limit", "4", "--samples", "1", "--rollout.max-new-tokens", "32"),
            *("--folder", str(place.folder / "evals")),
        ),
    }
    for name, command in commands.items():
        with row_of_its_own(say, "Starts", command=name):
            say("Starts", command=name, seconds=_paint(command, place))


def _one_step(model: str, rows: int, tokens: int) -> tuple[str, ...]:
    """Flags of a step of short completions by a random model on the demo's problems."""
    return (
        *("--model.path", model, "--data.path", "demo", "--train.steps", "1"),
        *("--train.batch-size", str(rows), "--rollout.batch-size", str(rows)),
        *("--rollout.max-new-tokens", str(tokens)),
    )


def _paint(command: Sequence[str], place: Place) -> float:
    """Run a command of paint; return its seconds. Raises RuntimeError with its last line."""
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "paint.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=max(place.ends - time.time() - 5, 1),
    )
    print(process.stdout)
    if process.returncode:
        last = (process.stdout.strip().splitlines() or ["without a word"])[-1]
        raise RuntimeError(f"ended with {process.returncode}: {last}")
    return time.monotonic() - began


# --- kernels -------------------------------------------------------------------------------------


def kernels(scale: Scale, say: Say, _: Place) -> None:
    """Triton, plain torch and eager code against float64: values, gradients, memory.

    Errors are of the per-token loss and of the states' gradient, as norms over that of the truth.
    A kernel may err at most twice as much as eager code, which the tests of the loss demand, too.
    """
    from paint.objective.fused import fused_paint_loss

    worst = 0.0
    for name, hidden in scale.heads.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            case = _states(hidden, scale, dtype)
            lengths = [scale.tokens - scale.tokens // 3, scale.tokens // 3]
            exact = case[0].detach().double().requires_grad_()
            teacher, head = (x.double() for x in case[1:])
            truth = fused_paint_loss(exact, teacher, head, lengths, impl="reference")
            truth.value.backward()
            value, gradient = truth.per_token.detach(), exact.grad
            del truth, exact, teacher, head

            errors = {}
            for impl in IMPLS:
                case[0].grad = None
                before = _start_peak()
                named = {"head": name, "dtype": str(dtype)[6:], "impl": impl}
                with row_of_its_own(say, "Kernels", **named):
                    found = fused_paint_loss(case[0], case[1], case[2], lengths, impl=impl)
                    found.value.backward()
                    errors[impl] = (
                        _distance(found.per_token.detach(), value),
                        _distance(case[0].grad, gradient),
                    )
                    say(
                        "Kernels",
                        **named,
                        value_error=errors[impl][0],
                        gradient_error=errors[impl][1],
                        peak_GB=_peak_gb(before),
                    )
                    del found
            if {"reference", "triton"} <= errors.keys():
                pairs = zip(errors["triton"], errors["reference"], strict=True)
                worst = max(worst, *(mine / max(eager, 1e-7) for mine, eager in pairs))
    say(note=f"largest error of the kernels over that of eager code: {worst:.2f} (goal: at most 2)")


def _states(hidden: int, scale: Scale, dtype: torch.dtype) -> list[torch.Tensor]:
    """Student's states, teacher's states, head."""
    generator = torch.Generator(device()).manual_seed(0)

    def normal(rows: int, by: float) -> torch.Tensor:
        return by * torch.randn(rows, hidden, generator=generator, device=device())

    student = normal(scale.tokens, 1.0)
    teacher = student + normal(scale.tokens, 0.1)
    head = normal(scale.vocabulary, 2 / hidden**0.5)
    return [student.to(dtype).requires_grad_(), teacher.to(dtype), head.to(dtype)]


def _distance(found: torch.Tensor | None, truth: torch.Tensor | None) -> float:
    assert found is not None
    assert truth is not None
    return float((found.double() - truth.double()).norm() / truth.double().norm())


CHOICES = tuple(product((1024, 2048), (1, 3), (1024, 2048)))
"""Block and pipeline stages of the kernels, and tokens of a chunk; the first are the defaults."""


def choices(scale: Scale, say: Say, _: Place) -> None:
    """What only a GPU can choose: seconds of the row work and of the whole loss by each choice."""
    from paint.objective import triton_kernels

    for name, hidden in scale.heads.items():
        case = _states(hidden, replace(scale, tokens=4 * scale.tokens), torch.bfloat16)
        found = {}
        for choice in CHOICES:
            block, stages, chunk = choice
            cells = {"head": name, "block": block, "stages": stages, "chunk": chunk}
            views = [(states[:chunk].detach() @ case[2].T).float() for states in case[:2]]
            with (
                row_of_its_own(say, "Choices", **cells),
                patch.multiple(triton_kernels, BLOCK=block, STAGES=stages),
            ):
                work, loss = (
                    _median([seconds_of(run) for _ in range(scale.repeat + 2)][1:])
                    for run in (partial(_row_work, views), partial(_whole_loss, case, chunk))
                )
                found[choice] = loss
                say(
                    "Choices",
                    **cells,
                    row_work_us_a_token=1e6 * work / len(views[0]),
                    loss_us_a_token=1e6 * loss / len(case[0]),
                )
        if CHOICES[0] in found:
            best = min(found, key=lambda choice: found[choice])
            share = found[best] / found[CHOICES[0]]
            say(
                note=f"{name}: the loss is fastest with block, stages and chunk {best}, in "
                f"{share:.2f} of the seconds of the default"
            )


def _row_work(views: Sequence[torch.Tensor]) -> None:
    """Both kernels on a chunk of both views' logits."""
    from paint.objective.triton_kernels import differentiate, measure

    student, teacher = views
    first, second = (measure(view, None, 1.1) for view in views)
    nowhere = torch.zeros(len(student), dtype=torch.bool, device=device())
    slope = torch.empty_like(student, dtype=torch.bfloat16)
    options = ObjectiveConfig(temperature=1.1)
    differentiate(student, teacher, first, second, nowhere, None, slope, options)


def _whole_loss(case: Sequence[torch.Tensor], chunk: int) -> None:
    """The loss of four completions and its gradient."""
    from paint.objective.fused import fused_paint_loss

    student, teacher, head = case
    student.grad = None
    lengths = [len(student) // 4] * 4
    loss = fused_paint_loss(student, teacher, head, lengths, impl="triton", chunk_tokens=chunk)
    loss.value.backward()


# --- loss and step: the other benchmarks ---------------------------------------------------------


PREDICTED = {
    "Qwen3-1.7B": "1.5 to 1.6, 1.39 at the roof",
    "Qwen3-4B": "1.45, 1.32 at the roof",
    "Qwen3-8B": "1.3, 1.21 at the roof",
}
"""Seconds of our loss over those of its products on an H100, computed from bytes and FLOPs."""


def loss(scale: Scale, say: Say, place: Place) -> None:
    """benchmarks/loss.py: products, ours, compiled torch, Liger, TRL."""
    only = ["products", "paint chunked", *(["paint triton", "paint chunked, compiled"] * on_gpu())]
    only += [peer for peer, package in (("liger", "liger_kernel"), ("trl", "trl")) if _has(package)]
    for peer, package in (("Liger", "liger_kernel"), ("TRL", "trl")):
        if not _has(package):
            say(note=f"{peer} is skipped: the package {package} is not installed")

    def rows(found: dict[str, Any]) -> None:
        for size, result in found["sizes"].items():
            contenders = result["contenders"]
            for name, figures in contenders.items():
                if "error" in figures:
                    say("Loss", head=size, contender=name, failed=figures["error"])
                    continue
                say(
                    "Loss",
                    head=size,
                    contender=name,
                    seconds=_median(figures["seconds"]),
                    over_products=_median(figures["ratios"]),
                    products=figures["products"],
                    peak_GB=max(figures["peak_bytes"].values()) / 1e9,
                )
            ours = {
                name: _median(figures["ratios"])
                for name, figures in contenders.items()
                if "paint" in name and "error" not in figures
            }
            chosen = "paint triton" if "paint triton" in ours else "paint chunked"
            if chosen in ours:
                fastest = min(ours, key=lambda name: ours[name])
                say(
                    note=f"{size}: auto takes {chosen}, {ours[chosen]:.2f} times the products "
                    f"(goal: at most 1.4; predicted: {PREDICTED.get(size, 'nothing')}); the "
                    f"fastest of ours is {fastest}"
                )

    _benchmark("loss.py", [*scale.loss, "--only", *only], place, rows)


def step(scale: Scale, say: Say, place: Place) -> None:
    """benchmarks/step.py: a whole training step beside its peers'."""
    only = ["paint", "opsd, restated"]
    if _has("trl"):
        peers = ["trl sdft", "trl gold", "trl distillation"]
        only += [*peers, *([f"{peer}, autocast" for peer in peers] if on_gpu() else [])]
    else:
        say(note="TRL's trainers are skipped: the package trl is not installed")

    def rows(found: dict[str, Any]) -> None:
        for model, result in found["models"].items():
            for name, figures in result["contenders"].items():
                beside = result["beside_ours"].get(name, {})
                say(
                    "Step",
                    model=model,
                    contender=name,
                    seconds=_median(figures["seconds"]),
                    tokens_per_second=figures.get("tokens_per_second"),
                    peak_GB=figures.get("peak_bytes", float("nan")) / 1e9,
                    over_our_seconds=beside.get("seconds"),
                    over_our_peak=beside.get("peak_bytes"),
                    failed=figures.get("error", ""),
                )
            say(note=f"{model}: {result['goal']}")

    more = ["--smollm2", f"{place.smollm2}/model"] if place.smollm2 else []
    _benchmark("step.py", [*scale.step, *more, "--only", *only], place, rows)


def _benchmark(
    script: str, arguments: Sequence[str], place: Place, rows: Callable[[dict[str, Any]], None]
) -> None:
    """Run another benchmark; what it had stored counts, even if it did not get to its end."""
    path = place.folder / f"{script}.json"
    command = [sys.executable, str(HERE / script), *arguments, "--json", str(path)]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        ended = f"ended with {process.wait(place.ends - time.time() - 5)}"
    except subprocess.TimeoutExpired:
        process.kill()
        ended = "had no time left"

    if path.exists():
        rows(json.loads(path.read_text()))
    if process.returncode:
        raise RuntimeError(f"{script} {ended}")


# --- updates -------------------------------------------------------------------------------------


def update(model: str, scale: Scale, say: Say, place: Place) -> None:
    """Whole updates of a random Qwen3 by phase: seconds, FLOPs, share of the peak, memory."""
    from paint.config import schema as cfg
    from paint.core.display import Clock, Display
    from paint.models.policy import load_policy
    from update import Options
    from update import update as one_update

    shape = scale.models[model]
    setting = cfg.ModelConfig(
        path=_random_model(model, shape, place.folder),
        dtype="bfloat16",
        gradient_checkpointing=True,
    )
    policy = load_policy(setting, seed=0, device=device())
    peak = peak_flops(torch.cuda.get_device_name()) if on_gpu() else None
    quiet = Display(enabled=False)

    # Renamed in transformers 5.24.
    renamed = hasattr(policy.base, "activation_checkpointing_enable")
    kind = "activation" if renamed else "gradient"
    for checkpointing in (False, True):  # first as it is chosen where it fits
        if checkpointing:
            getattr(policy.base, f"{kind}_checkpointing_enable")({"use_reentrant": False})
        else:
            getattr(policy.base, f"{kind}_checkpointing_disable")()
        for load in scale.loads:
            named = {"model": model, "load": load.title, "checkpointing": checkpointing}
            optimizer = torch.optim.AdamW(policy.trainable, lr=5e-6)
            options = Options(
                batch_size=load.rows,
                micro_batch_size=load.micro,
                prompt=load.prompt,
                teacher_prompt=load.teacher_prompt,
                completion=load.completion,
            )
            try:
                one_update(policy, optimizer, options, Clock(quiet))
                _start_peak()
                clocks = [Clock(quiet) for _ in range(scale.repeat)]
                for clock in clocks:
                    one_update(policy, optimizer, options, clock)
            except Exception as error:  # out of memory, most likely
                say("Updates", **named, failed=_line(error))
                _forget(policy)
                continue

            rounds = [clock.seconds for clock in clocks]
            seconds = sorted(rounds, key=lambda one: sum(one.values()))[len(rounds) // 2]
            for phase, flops in update_flops(shape, setting, load, checkpointing).items():
                rate = flops / seconds[phase]
                say(
                    "Phases",
                    **named,
                    phase=phase,
                    seconds=seconds[phase],
                    TFLOP=flops / 1e12,
                    TFLOP_per_second=rate / 1e12,
                    share_of_peak=rate / peak if peak else None,
                )

            total = sum(update_flops(shape, setting, load, checkpointing).values())
            measured = torch.cuda.max_memory_allocated() if on_gpu() else float("nan")
            planned = planned_memory(shape, setting, load, checkpointing)
            say(
                "Updates",
                **named,
                seconds=sum(seconds.values()),
                tokens_per_second=load.rows * load.completion / sum(seconds.values()),
                share_of_peak=total / sum(seconds.values()) / peak if peak else None,
                peak_GB=measured / 1e9,
                formula_GB=planned / 1e9,
                measured_over_formula=measured / planned,
            )
            _forget(policy)


def forward_flops(shape: Shape, adapters: int, tokens: int) -> float:
    """A causal forward pass over one row, without the head: 2 (N + A) a token, and attention.

    N are the weights of the layers' matrices, A those of the adapters. A token that sees s others
    takes 4 L heads head_size s for attention.
    """
    attention = 4 * shape.layers * shape.queries * tokens**2 / 2
    return 2 * (shape.weights + adapters) * tokens + attention


def backward_flops(shape: Shape, adapters: int, tokens: int) -> float:
    """Its backward pass: 2 N + 4 A a token, since N get no gradient, and attention twice."""
    attention = 4 * shape.layers * shape.queries * tokens**2
    return (2 * shape.weights + 4 * adapters) * tokens + attention


def update_flops(shape: Shape, model: Any, load: Load, checkpointing: bool) -> dict[str, float]:
    """FLOPs of an update by phase (the names are benchmarks/update.py's)."""
    config = _config(model, load, checkpointing)
    adapters = shape.adapters(model.lora_rank, model.lora_targets)
    student = load.prompt + load.completion
    forward = forward_flops(shape, adapters, student)
    # Onto the vocabulary for each view, and back; in several chunks, selected positions twice.
    products = 3 * (1 + (config.objective.top_fraction if load.completion > CHUNK else 0))
    by_row = {
        "teacher forward": forward_flops(shape, 0, load.teacher_prompt + load.completion),
        "student forward": forward,
        "loss": products * 2 * shape.head * load.completion,
        "backward": backward_flops(shape, adapters, student) + (forward if checkpointing else 0),
    }
    return {phase: load.rows * flops for phase, flops in by_row.items()}


def planned_memory(shape: Shape, model: Any, load: Load, checkpointing: bool) -> float:
    """Bytes of an update by the formula."""
    rows = Rows(load.micro, load.prompt, load.teacher_prompt, load.completion)
    return training_memory(_config(model, load, checkpointing), shape, rows).peak


def _config(model: Any, load: Load, checkpointing: bool) -> Config:
    return Config(
        model=replace(model, gradient_checkpointing=checkpointing),
        train=TrainConfig(batch_size=load.rows, micro_batch_size=load.micro),
    )


def _random_model(name: str, shape: Shape, folder: Path) -> str:
    """The folder of a random Qwen3; the first part that needs it writes it, in memory if it can."""
    from models import random_qwen3

    path = folder / f"qwen3-{name}"
    if not (path / "config.json").exists():
        partial_path = folder / f"qwen3-{name}.partial"
        shutil.rmtree(partial_path, ignore_errors=True)
        random_qwen3(
            partial_path,
            layers=shape.layers,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_size=shape.head_size,
            tied=shape.tied,
            vocabulary=shape.vocabulary,
            device=device(),
        )
        partial_path.rename(path)
        if on_gpu():
            torch.cuda.empty_cache()
    return str(path)


def _forget(policy: Any) -> None:
    """Leave no gradient, and no block of an update behind."""
    for parameter in policy.trainable:
        parameter.grad = None
    if on_gpu():
        torch.cuda.empty_cache()


# --- generation ----------------------------------------------------------------------------------


def generation(scale: Scale, say: Say, place: Place) -> None:
    """Both engines: tokens a second, and how far the trainer scores what they drew otherwise."""
    from paint.config import schema as cfg
    from paint.config.run_folder import read_metrics
    from paint.inference.engine import Sampling
    from paint.inference.local import LocalEngine
    from paint.models.policy import load_policy

    random = _random_model("1.7B", scale.models["1.7B"], place.folder)
    models = {"random 1.7B": (random, "bfloat16"), "demo": ("demo", "float32")}
    if place.smollm2:
        models["SmolLM2"] = (f"{place.smollm2}/model", "bfloat16")
    else:
        say(note="SmolLM2 is skipped: --smollm2 names no folder")
    rows, tokens = scale.generated

    for name, (path, dtype) in models.items():
        with row_of_its_own(say, "Generation", model=name, engine="local"):
            model = cfg.ModelConfig(path=path, dtype=dtype)  # type: ignore[arg-type]
            policy = load_policy(model, seed=0, device=device())
            prompts = [policy.student_prompt(f"What is {i} + {i}?") for i in range(rows)]
            sampling = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=tokens)
            engine = LocalEngine(policy, batch_size=rows)
            engine.generate(prompts[:1], replace(sampling, max_new_tokens=2), [0])  # warms up

            before, began = _start_peak(), time.monotonic()
            completions = engine.generate(prompts, sampling, range(rows))
            seconds = time.monotonic() - began
            peak = _peak_gb(before)
            with torch.no_grad():
                drawn = [list(c.ids) for c in completions]
                states = policy.hidden_states(prompts, drawn)
                ids = torch.tensor([i for row in drawn for i in row], device=states.device)
                logits = policy.lm_head(states).float()
                scored = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0].cpu()
            gaps = (scored - torch.tensor([p for c in completions for p in c.log_probs])).abs()
            say(
                "Generation",
                model=name,
                engine="local",
                tokens=len(ids),
                tokens_per_second=len(ids) / seconds,
                peak_GB=peak,
                mean_gap=float(gaps.mean()),
                largest_gap=float(gaps.max()),
            )
            del policy, engine, states, logits

    if not on_gpu() or not (server := vllm_server()):
        say(note="vLLM is skipped: there is no GPU, or no vLLM")
        return
    with row_of_its_own(say, "Generation", model="random 1.7B", engine="vllm"):
        flags = ("--gpus", "1", "--rollout.server", server, "--train.checkpoint-every", "1")
        where = ("--log.folder", str(place.folder), "--log.name", "vllm")
        _paint(
            ("train", "paint-qwen3-1.7b", *_one_step(random, rows, tokens), *flags, *where), place
        )
        [row] = read_metrics(place.folder / "vllm")
        say(
            "Generation",
            model="random 1.7B",
            engine="vllm",
            tokens=row["rollout_tokens"],
            tokens_per_second=row["rollout_tokens"] / row["seconds_rollout"],
            mean_gap=row["logprob_mismatch_mean"],
        )


def vllm_server() -> str:
    """The command of a vLLM server here; "" for none."""
    if command := shutil.which("vllm"):
        return f"{command} serve"
    return f"{sys.executable} -m vllm.entrypoints.openai.api_server" if _has("vllm") else ""


# --- resuming ------------------------------------------------------------------------------------


def resume(scale: Scale, say: Say, place: Place) -> None:
    """A run of the demo's model, the same run again, and one that is resumed: how far are they one?

    The second says how far this GPU repeats itself at all.
    """
    from paint.config.recipe import find_recipe, from_table, read_recipe, to_table
    from paint.config.schema import Config
    from paint.core.display import Display
    from paint.training.trainer import train

    steps, stop = scale.steps
    table = to_table(read_recipe(find_recipe("demo-paint")))
    small = {} if on_gpu() else {"batch_size": 2, "micro_batch_size": 2}
    table["train"] |= {"steps": steps, "checkpoint_every": stop, **small}
    config: Config = from_table(table)
    quiet = Display(enabled=False)

    names = ("first", "again", "resumed")
    first, again, resumed = (place.folder / f"resume-{name}" for name in names)
    began = time.monotonic()
    train(config, first, display=quiet)
    say(note=f"{steps} steps of demo-paint took {time.monotonic() - began:.0f} s")

    shutil.copytree(first, resumed)
    for path in _checkpoints(resumed)[1:]:
        shutil.rmtree(path)
    train(config, resumed, resume=True, display=quiet)
    say("Resuming", run=f"resumed after step {stop}", **_beside(first, resumed))
    train(config, again, display=quiet)
    say("Resuming", run="the same from the start", **_beside(first, again))


def _checkpoints(run: Path) -> list[Path]:
    from paint.config.run_folder import checkpoints

    return checkpoints(run)


def _beside(first: Path, other: Path) -> dict[str, Any]:
    """How far two runs' last adapters and their losses are the same."""
    from safetensors.torch import load_file

    from paint.config.run_folder import read_metrics

    def weights(run: Path) -> dict[str, torch.Tensor]:
        (path,) = _checkpoints(run)[-1].rglob("adapter_model.safetensors")
        return load_file(path)

    mine, theirs = weights(first), weights(other)
    differences = [float((mine[name] - theirs[name]).abs().max()) for name in mine]
    losses = [[row["loss"] for row in read_metrics(run)] for run in (first, other)]
    same = sum(a == b for a, b in zip(*losses, strict=True))
    return {
        "bitwise": all(torch.equal(mine[name], theirs[name]) for name in mine),
        "largest_difference": max(differences),
        "steps_with_the_same_loss": f"{same} of {len(losses[0])}",
    }


# --- a real model ---------------------------------------------------------------------------------

SMOLLM2_RECIPE = str(ROOT / "examples/smollm2/recipes/smollm2-paint.toml")


def smollm2(scale: Scale, say: Say, place: Place) -> None:
    """PAINT on SmolLM2 for as many steps as there is time for: the first steps beside the last."""
    from paint.config.run_folder import read_metrics

    if not place.smollm2:
        raise Skipped("--smollm2 names no folder")
    model, problems = Path(place.smollm2) / "model", Path(place.smollm2) / "train.jsonl"
    for path in (model / "config.json", problems):
        if not path.exists():
            raise Skipped(f"{path} is not there")

    run = place.folder / "smollm2-run"
    setting = {"model.path": model, "data.path": problems, "train.steps": scale.real_steps}
    setting |= {"log.folder": run.parent, "log.name": run.name}
    flags = [str(word) for name, value in setting.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "paint.cli", "train", SMOLLM2_RECIPE, *flags]
    process = subprocess.Popen(command, stdout=sys.stderr)
    with suppress(subprocess.TimeoutExpired):
        process.wait(place.ends - time.time() - 10)
    process.kill()
    if process.wait() > 0:
        raise RuntimeError(f"paint train ended with {process.returncode}")

    rows = read_metrics(run)
    part = max(len(rows) // 4, 1)
    for title, some in (("first quarter", rows[:part]), ("last quarter", rows[-part:])):
        say(
            "SmolLM2",
            steps=title,
            of=len(rows),
            **{
                name: sum(row[name] for row in some) / len(some)
                for name in ("accuracy", "kl", "seconds_rollout", "seconds_loss")
            },
        )


# --- tests ---------------------------------------------------------------------------------------


def tests(scale: Scale, say: Say, place: Place) -> None:
    """The tests of the loss and its kernels, which run on the GPU where there is one.

    Tests that no time was left for are not counted.
    """
    for package in ("pytest", "hypothesis", "beartype"):
        if not _has(package):
            raise Skipped(f"the package {package} is not installed")
    began = time.monotonic()
    output = place.folder / "tests.txt"
    command = [sys.executable, "-m", "pytest", *scale.tests, "-v", "-rfE", "--tb=line"]
    # A kernel is compiled anew for each shape, and hypothesis draws many.
    command += ["-m", "not hypothesis"]
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", "-p", "no:xdist"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(place.ends - time.time() - 5)
        process.kill()
        process.wait()

    text = output.read_text(errors="replace")
    print(text)
    for line in re.findall(r"^(?:FAILED|ERROR) (.+)$", text, re.MULTILINE):
        name, _, error = line.partition(" - ")
        say("Failed tests", test=name, error=error[:200])
    outcomes = re.findall(r"^tests/.+::.+ (PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE)
    if not outcomes:
        raise RuntimeError(f"no test was run: {text.strip().splitlines()[-1][:200]}")
    counts = {name.lower(): outcomes.count(name) for name in ("PASSED", "FAILED", "SKIPPED")}
    has_ended = process.returncode >= 0
    say(
        "Tests",
        files=" ".join(scale.tests),
        **counts,
        all_were_run=has_ended,
        seconds=time.monotonic() - began,
    )


# --- the parts and the report --------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One part of the report, in a process of its own."""

    title: str
    seconds: float
    run: Callable[..., None]


PARTS = {
    "starts": Part("The first commands", 100, starts),
    "kernels": Part("Kernels against the reference", 80, kernels),
    "update-1.7B": Part("Updates of a random Qwen3-1.7B", 110, partial(update, "1.7B")),
    "generation": Part("Generation by both engines", 200, generation),
    "loss": Part("The loss beside its matrix products and its peers", 150, loss),
    "choices": Part("Choices of the kernels", 60, choices),
    "resume": Part("Resuming on the GPU", 80, resume),
    "update-8B": Part("Updates of a random Qwen3-8B", 150, partial(update, "8B")),
    "tests": Part("Tests on the GPU", 120, tests),
    "step": Part("A training step beside its peers'", 120, step),
    "smollm2": Part("PAINT on SmolLM2-135M", 200, smollm2),
}
"""In the order of their worth: the last ones may get no time."""


@dataclass(frozen=True)
class Options:
    """All that only a GPU can show."""

    folder: Path = Path("runs/gpu")
    """Folder for gpu-report.md and gpu-report.json."""
    smollm2: Path | None = None
    """Folder with SmolLM2 as `model` and its problems as `train.jsonl`; None: its rows are left
    out."""
    seconds: float = BUDGET
    """For all parts together."""
    only: tuple[str, ...] = ()
    """Parts, by name; none: all."""
    rehearse: bool = False
    """Tiny sizes, also where there is a GPU."""


def main(options: Options, parts: Mapping[str, Part] = PARTS) -> dict[str, Any]:
    """Run the parts, write the report after each, and return it."""
    began = time.monotonic()
    names = chosen(parts, options.only)
    options.folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"about": about(options), "parts": {}}
    with _scratch() as folder:
        for name in names:
            part = parts[name]
            left = options.seconds - (time.monotonic() - began)
            if left < 10:
                found = {"status": "skipped: no time was left", "seconds": 0.0, "rows": []}
            else:
                patience = 1 if on_gpu() else 6  # importing alone may take half a minute
                found = run_part(name, min(part.seconds * patience, left), folder, options)
            report["parts"][name] = {"title": part.title, **found}
            report["about"]["seconds"] = round(time.monotonic() - began)
            write(report, options.folder)
            print(f"{part.title}: {found['status']}, {found['seconds']:.0f} s", flush=True)
    print(f"written to {options.folder}: gpu-report.md, gpu-report.json")
    return report


def run_part(name: str, limit: float, folder: Path, options: Options) -> dict[str, Any]:
    """One part's rows and how it ended, from a process of its own that is ended at its limit."""
    rows = folder / f"{name}.jsonl"
    order = {
        "name": name,
        "rows": str(rows),
        "rehearse": options.rehearse,
        "place": [str(folder), time.time() + limit, str(options.smollm2 or "")],
    }
    log = options.folder / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "part", json.dumps(order)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            status = {0: "done", 3: "skipped"}.get(code, f"failed with {code}")
        except subprocess.TimeoutExpired:
            status = f"stopped at its limit of {limit:.0f} s"
        _end(process)

    lines = rows.read_text().splitlines() if rows.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    text = log.read_text(errors="replace").strip().splitlines()
    if status.startswith(("failed", "skipped")):
        status = f"{status}: {text[-1][:200] if text else 'without a word'}"
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "rows": found}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    """The house's modules, no network, and Triton's interpreter where there is no GPU."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    if not on_gpu():
        own["TRITON_INTERPRET"] = "1"
    return {**os.environ, **own}


def work(order: dict[str, Any]) -> int:
    """A part's own process; returns its exit status, 3 where something is missing."""
    part = PARTS[order["name"]]
    scale = FULL if on_gpu() and not order["rehearse"] else REHEARSAL
    folder, ends, smollm2 = order["place"]
    with Path(order["rows"]).open("a") as file:

        def say(table: str = "", **cells: Any) -> None:
            known = {name: None if cell != cell else cell for name, cell in cells.items()}  # nan
            print(json.dumps({"table": table, **known}), file=file, flush=True)

        try:
            part.run(scale, say, Place(Path(folder), ends, smollm2))
        except (Skipped, ImportError) as missing:
            print(_line(missing))
            return 3
    return 0


def about(options: Options) -> dict[str, Any]:
    """When, where, with what."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name() if on_gpu() else f"CPU ({platform.machine()})",
        "is_rehearsal": options.rehearse or not on_gpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if on_gpu():
        found["memory_GB"] = torch.cuda.get_device_properties(0).total_memory / 1e9
        found["cuda"] = torch.version.cuda
    for package in ("triton", "transformers", "peft", "trl", "liger_kernel"):
        found[package] = _version(package)
    found["revision"] = "unknown"
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or no repository
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        found["revision"] = subprocess.check_output(
            command, text=True, stderr=subprocess.DEVNULL
        ).strip()
    return found


def write(report: dict[str, Any], folder: Path) -> None:
    """gpu-report.json and gpu-report.md, each replaced as a whole."""
    for name, text in (
        ("gpu-report.json", json.dumps(report, indent=1) + "\n"),
        ("gpu-report.md", markdown(report)),
    ):
        partial_path = folder / f"{name}.partial"
        partial_path.write_text(text)
        partial_path.replace(folder / name)


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    facts = report["about"]
    lines = ["# What a GPU showed", ""]
    if facts["is_rehearsal"]:
        lines += ["**A rehearsal: tiny sizes, whose figures mean nothing.**", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name != "is_rehearsal"]
    for part in report["parts"].values():
        lines += ["", f"## {part['title']}", "", f"{part['status']}, {part['seconds']:.0f} s"]
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in part["rows"]:
            if row["table"]:
                tables.setdefault(row["table"], []).append(row)
        for name, rows in tables.items():
            columns = list(dict.fromkeys(c for row in rows for c in row if c != "table"))
            lines += ["", f"**{name}**", "", _cells(c.replace("_", " ") for c in columns)]
            lines.append(_cells("---" for _ in columns))
            lines += [_cells(_shown(row.get(column)) for column in columns) for row in rows]
        notes = [f"- {row['note']}" for row in part["rows"] if not row["table"]]
        lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _cells(cells: Iterator[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "/")


# --- what the parts share ------------------------------------------------------------------------


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for models, in memory where that is large enough: a disk may be slow."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free > 40e9
    with tempfile.TemporaryDirectory(dir=shared if has_room else None) as folder:
        yield Path(folder)


def _start_peak() -> int:
    """Begin to look for a peak; return what is allocated now."""
    if not on_gpu():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak_gb(before: int) -> float:
    """Most GB beside ``before`` since then; nan without a GPU."""
    if not on_gpu():
        return float("nan")
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def _median(values: Sequence[float]) -> float:
    """The upper one of two; nan of none."""
    return sorted(values)[len(values) // 2] if values else float("nan")


def _has(package: str) -> bool:
    return find_spec(package) is not None


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "not installed"


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:
        sys.exit(work(json.loads(sys.argv[2])))
    main(tyro.cli(Options, description=__doc__))
