"""GPU benchmarks and tests in one command of at most eight minutes (docs/dev/benchmarks.md).

    python benchmarks/gpu.py [--smollm2 FOLDER]        (make gpu)

Writes gpu-report.md and gpu-report.json, and the rows of each part as a JSON line each, as soon as
there are any. Each part runs in a process of its own with its own time limit: a part that fails, is
out of memory or takes too long loses only the rows that it has not written. The report is written
anew after each part. The most important parts come first. Nothing is downloaded; what is missing is
skipped and named.

Without a GPU, or with --rehearse, everything is tiny: a rehearsal of the code, whose figures mean
nothing.
"""

import gc
import json
import math
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
from pathlib import Path
from typing import Any

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # paint may be not installed

from paint.config.schema import Config, Impl, TrainConfig
from paint.resolve.check import check_config
from paint.resolve.memory import CHUNK, Kernels, Rows, training_memory
from paint.resolve.shapes import SHAPES, Shape
from workers import chosen, seconds_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPT = Path(__file__).resolve()
BUDGET = 465
"""Seconds for all parts: below eight minutes with what comes before and after."""

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
    """The rows of an update, all in one micro-batch."""

    rows: int
    prompt: int
    teacher_prompt: int
    completion: int
    checkpointing: bool = False


@dataclass(frozen=True)
class Decoded:
    """What an engine writes at once."""

    rows: int
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Long:
    """Long completions: one step of them."""

    rows: int
    prompt: int
    teacher_prompt: int
    completion: int
    lengths: tuple[int, ...]
    """Tokens that a text has when the decoding of its next ones is timed."""
    steps: tuple[int, int]
    """Tokens of the two calls whose difference is timed."""


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    heads: Mapping[str, int]
    vocabulary: int
    tokens: int
    """Of the kernels' comparison with the reference."""
    model: Shape
    decoded: tuple[Decoded, ...]
    loads: tuple[Load, ...]
    repeat: int
    """Updates that are timed, after one that is not."""
    trained: tuple[int, int, int]
    """Of a training: steps, rows, tokens of a completion."""
    steps: tuple[int, int]
    """Of the run that is resumed: all, and those before it is stopped."""
    real_steps: int
    """Most steps of the real model."""
    tests: tuple[str, ...]
    loss: tuple[str, ...]
    """Further arguments of benchmarks/loss.py."""
    peers: tuple[str, ...]
    """Further arguments of benchmarks/whole_step.py."""
    long: Long
    started: tuple[int, int, int]
    """As ``trained``, of the training that is started twice."""


FULL = Scale(
    heads={"1.7B": 2048, "4B": 2560, "8B": 4096},
    vocabulary=151_936,
    tokens=1024,
    model=SHAPES["Qwen/Qwen3-1.7B"],
    decoded=(Decoded(32, 250, 256), Decoded(128, 250, 256)),
    loads=(
        Load(8, 250, 1050, 1024),
        Load(16, 250, 1050, 1024),
        Load(1, 250, 1050, 1024),
        Load(4, 250, 1050, 1024),
        Load(8, 250, 1050, 1024, checkpointing=True),
        Load(32, 250, 1050, 1024, checkpointing=True),
        Load(1, 250, 8192, 16_384),
    ),
    repeat=3,
    trained=(3, 32, 1024),
    steps=(6, 3),
    real_steps=200,
    tests=("tests/objective/test_fused.py", "tests/objective/test_loss.py"),
    loss=("--repeat", "3"),
    # transformers generates some 344 tokens a second, so 1,024 tokens would take 95 s a step.
    peers=("--tokens", "512", "--steps", "3", "--limit", "80"),
    long=Long(8, 250, 8192, 16_384, (250, 8192, 16_384), (8, 512)),
    started=(2, 32, 512),
)

_TINY = Shape(2, 32, 2, 64, tied=True, kv_heads=1, head_size=16, vocabulary=1024)
REHEARSAL = Scale(
    heads={"tiny": 16},
    vocabulary=300,
    tokens=8,
    model=_TINY,
    decoded=(Decoded(2, 6, 4), Decoded(3, 6, 4)),
    loads=(Load(2, 4, 8, 6), Load(1, 4, 8, 12, checkpointing=True)),
    repeat=1,
    trained=(3, 2, 4),
    steps=(2, 1),
    real_steps=1,
    tests=("tests/objective/test_loss.py", "-k", "entropy"),
    loss=("--repeat", "1", "--completion", "8", "--vocabulary", "300", "--memory", "1"),
    peers=("--rows", "2", "--tokens", "4", "--steps", "2", "--only", "paint", "trl sdft"),
    long=Long(2, 4, 8, 12, (4, 12), (2, 4)),
    started=(2, 2, 4),
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


# --- the commands of a user -----------------------------------------------------------------------


def start_demo(scale: Scale, say: Say, place: Place) -> None:
    """The first commands of a user: this machine, a plan, two steps of the demo."""
    where = ("--log.folder", str(place.folder), "--log.name", "demo")
    commands = {
        "doctor": ("doctor",),
        "plan": ("plan", "paint-qwen3-1.7b"),
        "train the demo": ("train", "demo-paint", "--train.steps", "2", *where),
    }
    for name, command in commands.items():
        _start(name, command, say, place)


def start_eval(scale: Scale, say: Say, place: Place) -> None:
    """An evaluation of the demo's run, or of its model where there is no run."""
    run = place.folder / "demo"
    command = (
        *("eval", str(run) if run.exists() else "demo", "--benchmarks", "demo", "--no-thinking"),
        *("--limit", "4", "--samples", "1", "--rollout.max-new-tokens", "32"),
        *("--rollout.engine", "local", "--output-dir", str(place.folder / "evals")),
    )
    _start("evaluate the demo", command, say, place)


def first_step(scale: Scale, say: Say, place: Place) -> None:
    """Start and first step of a random 1.7B, with caches that are empty at first, then once more.

    They are the folders of compiled kernels, whose new files are counted, and of measured times.
    """
    from paint.config.run_folder import read_metrics

    caches = Path(tempfile.mkdtemp())  # not in shared memory, which may run no code
    kernels = caches / "kernels"
    own = {"TRITON_CACHE_DIR": str(kernels), "XDG_STATE_HOME": str(caches / "state")}
    environment = os.environ | own
    before = 0
    for name in ("cold", "warm"):
        command = _training(scale.model, scale.started, "local", name, place)
        with row_of_its_own(say, "First step", caches=name):
            began = time.time()
            seconds = _paint(command, place, environment)
            steps = [
                sum(s for n, s in row.items() if n.startswith("seconds_") and n != "seconds_left")
                for row in read_metrics(place.folder / name)
            ]
            # The first step's rollouts are stored at its end.
            end = (place.folder / name / "rollouts" / "step-000001.jsonl").stat().st_mtime
            files = sum(path.is_file() for path in kernels.rglob("*"))
            say(
                "First step",
                caches=name,
                seconds_to_first_step=end - began - steps[0],
                first_step=steps[0],
                usual_step=_median(steps[1:]),
                beyond_usual=steps[0] - _median(steps[1:]),
                command=seconds,
                new_files=files - before,
            )
            before = files
    shutil.rmtree(caches)


def _start(name: str, command: Sequence[str], say: Say, place: Place) -> None:
    with row_of_its_own(say, "Starts", command=name):
        say("Starts", command=name, seconds=_paint(command, place))


def _training(
    shape: Shape, trained: tuple[int, int, int], engine: str, name: str, place: Place
) -> tuple[str, ...]:
    """The command that trains a random model on the demo's problems."""
    steps, rows, tokens = trained
    return (
        *("train", "paint-qwen3-1.7b", "--model.path", _random_model(shape, place.folder)),
        *("--data.path", "demo", "--train.steps", str(steps)),
        *("--train.batch-size", str(rows), "--rollout.batch-size", str(rows)),
        *("--rollout.engine", engine, "--rollout.max-new-tokens", str(tokens)),
        *("--log.folder", str(place.folder), "--log.name", name),
    )


def _paint(
    command: Sequence[str], place: Place, environment: Mapping[str, str] | None = None
) -> float:
    """Run a command of paint, in this environment; return its seconds.

    Raises:
        RuntimeError: it failed, or the part's time is over; the message has its last line.
    """
    began = time.monotonic()
    print("$ paint", *command, flush=True)
    output = place.folder / "command.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "paint.cli", *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            ended = f"ended with {process.wait(max(place.ends - time.time() - 3, 1))}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = "had no time left"
    text = output.read_text(errors="replace")
    print(text, flush=True)
    if process.returncode:
        last = (text.strip().splitlines() or ["without a word"])[-1]
        raise RuntimeError(f"{ended}: {last}")
    return time.monotonic() - began


def train(engine: str, scale: Scale, say: Say, place: Place) -> None:
    """A real training of a random 1.7B: seconds and tokens a second of each step."""
    from paint.config.run_folder import read_metrics

    name = f"train-{engine}"
    command = _training(scale.model, scale.trained, engine, name, place)
    if engine == "vllm":
        server = vllm_server() if on_gpu() else ""
        if not server:
            raise Skipped("there is no GPU, or no vLLM")
        command = (*command, "--gpus", "1", "--rollout.server", server)
    with row_of_its_own(say, "Training", engine=engine):
        say("Training", engine=engine, step="all", seconds=_paint(command, place))
    run = place.folder / name
    for row in read_metrics(run) if (run / "metrics.jsonl").exists() else ():
        say(
            "Training",
            engine=engine,
            step=row["step"],
            tokens=row["rollout_tokens"],
            rollout_tokens_per_second=row["rollout_tokens"] / row["seconds_rollout"],
            mismatch=row.get("logprob_mismatch_mean"),
            **{name: cell for name, cell in row.items() if name.startswith("seconds")},
        )


def vllm_server() -> str:
    """The command of a vLLM server here; "" for none."""
    if command := shutil.which("vllm"):
        return f"{command} serve"
    return f"{sys.executable} -m vllm.entrypoints.openai.api_server" if _has("vllm") else ""


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


# --- the loss ------------------------------------------------------------------------------------


def loss(scale: Scale, say: Say, place: Place) -> None:
    """benchmarks/loss.py: products, ours, TRL, Liger."""
    only = ["products", "paint triton" if on_gpu() else "paint chunked"]
    for peer, package in (("trl", "trl"), ("liger", "liger_kernel")):
        if _has(package):
            only.append(peer)
        else:
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

    _benchmark("loss.py", [*scale.loss, "--only", *only], place, rows)


def peers(scale: Scale, say: Say, place: Place) -> None:
    """benchmarks/whole_step.py: a whole step of ours and of TRL's trainers."""
    from whole_step import summary

    if not _has("trl"):
        say(note="TRL's trainers fail: the package trl is not installed")

    def rows(found: dict[str, Any]) -> None:
        for name, figures in found.items():
            say("A whole step", contender=name, **summary(figures))

    seconds = place.ends - time.time() - 10
    arguments = [*scale.peers, "--model", _random_model(scale.model, place.folder)]
    if on_gpu() and _has("vllm"):
        arguments.append("--vllm")
    _benchmark("whole_step.py", [*arguments, "--seconds", str(seconds)], place, rows)


def _benchmark(
    script: str, arguments: Sequence[str], place: Place, rows: Callable[[Any], None]
) -> None:
    """Run another benchmark, and tell all that it has stored whenever that is more.

    It counts, even if the benchmark does not get to its end.
    """
    path = place.folder / f"{script}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / script), *arguments, "--json", str(path)]
    process = subprocess.Popen(command, stdout=sys.stderr)
    ended = told = ""
    while not ended:
        try:
            ended = f"ended with {process.wait(1)}"
        except subprocess.TimeoutExpired:
            if time.time() > place.ends - 5:
                process.kill()
                process.wait()
                ended = "had no time left"
        text = path.read_text() if path.exists() else ""
        with suppress(json.JSONDecodeError):  # it is being written, or was when it was killed
            if text != told:
                rows(json.loads(text))
                told = text
    if process.returncode:
        raise RuntimeError(f"{script} {ended}")


# --- updates -------------------------------------------------------------------------------------


def update(scale: Scale, say: Say, place: Place) -> None:
    """Whole updates of a random 1.7B by rows: seconds, also by phase, kernels, FLOPs, memory.

    Where Liger is installed, the last rows are those of the first load without it.
    """
    from paint.config import schema as cfg

    setting = cfg.ModelConfig(
        path=_random_model(scale.model, place.folder),
        dtype="bfloat16",
        gradient_checkpointing=False,
    )
    kept = [load for load in scale.loads if not load.checkpointing]
    _updates(setting, kept, scale, say)
    checkpointed = [load for load in scale.loads if load.checkpointing]
    _updates(replace(setting, gradient_checkpointing=True), checkpointed, scale, say)
    if on_gpu() and _has("liger_kernel"):
        _updates(replace(setting, liger=False), kept[:1], scale, say)


def _updates(setting: Any, loads: Sequence[Load], scale: Scale, say: Say) -> None:
    """Rows of the tables of updates by one policy, whose memory is free afterwards."""
    from paint.config.schema import TrainConfig
    from paint.models.policy import load_policy
    from paint.resolve.optimizer import AdamW, open_optimizer

    policy = load_policy(setting, seed=0, device=device())
    if policy.kernels:
        say(note=policy.kernels)
    optimizer = open_optimizer(AdamW(), policy.trainable, TrainConfig())
    for load in loads:
        named = {
            "liger": "Liger" in policy.kernels,
            "rows": load.rows,
            "tokens": load.completion,
            "teacher_prompt": load.teacher_prompt,
            "checkpointing": load.checkpointing,
        }
        with row_of_its_own(say, "Updates", **named):  # out of memory, most likely
            _update_of_load(policy, optimizer, setting, load, named, scale, say)
        _forget(policy)
    del policy, optimizer
    gc.collect()  # modules are in cycles
    if on_gpu():
        torch.cuda.empty_cache()


def layers(scale: Scale, say: Say, place: Place) -> None:
    """States and gradients by PyTorch's layers and by Liger's, beside a model in float32.

    Errors are norms of differences over that of the truth: of the states of the last layer and of
    the gradients of the adapters by a projection of them.
    """
    from paint.config import schema as cfg

    exact = cfg.ModelConfig(
        path=_random_model(scale.model, place.folder), dtype="float32", liger=False
    )
    short = replace(exact, dtype="bfloat16")
    cases = {"PyTorch's": short, "Liger's": replace(short, liger=True)}
    truth = _layers_of(exact, scale)
    for name, setting in cases.items():
        if setting.liger and not (on_gpu() and _has("liger_kernel")):
            say(note="Liger's layers are skipped: there is no GPU, or no liger-kernel")
            continue
        with row_of_its_own(say, "Layers", layers=name):
            states, gradients = _layers_of(setting, scale)
            say(
                "Layers",
                layers=name,
                error_of_states=_distance(states, truth[0]),
                error_of_gradients=_distance(gradients, truth[1]),
            )


def _layers_of(setting: Any, scale: Scale) -> tuple[torch.Tensor, torch.Tensor]:
    """Final states of four rows, and the gradients of all adapters in one vector."""
    from paint.models.policy import load_policy

    policy = load_policy(setting, seed=0, device=device())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.copy_(0.01 * torch.randn(parameter.shape, generator=generator))
    load = scale.loads[0]
    texts = torch.randint(
        scale.model.vocabulary, (4, load.prompt + load.completion), generator=generator
    ).tolist()
    prompts, completions = ([text[part] for text in texts] for part in _parts(load.prompt))
    states = policy.hidden_states(prompts, completions)
    # Not of their squares, whose sum is the same for all states after a norm.
    direction = torch.randn(states.shape[-1], generator=generator).to(states.device)
    (states.float() @ direction).mean().backward()
    gradients = [p.grad.flatten() for p in policy.trainable if p.grad is not None]
    return states.detach(), torch.cat(gradients)


def _parts(prompt: int) -> tuple[slice, slice]:
    return slice(prompt), slice(prompt, None)


def _update_of_load(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    setting: Any,
    load: Load,
    named: dict[str, Any],
    scale: Scale,
    say: Say,
) -> None:
    from paint.core.display import Clock, Display
    from update import Options
    from update import update as one_update

    quiet = Display(enabled=False)
    options = Options(
        batch_size=load.rows,
        micro_batch_size=load.rows,
        prompt=load.prompt,
        teacher_prompt=load.teacher_prompt,
        completion=load.completion,
    )
    began = time.monotonic()
    one_update(policy, optimizer, options, Clock(quiet))
    first = time.monotonic() - began
    _start_peak()
    clocks = [Clock(quiet) for _ in range(scale.repeat)]
    walls = [seconds_of(partial(one_update, policy, optimizer, options, clock)) for clock in clocks]
    measured = torch.cuda.max_memory_allocated() if on_gpu() else float("nan")
    middle = sorted(range(len(walls)), key=lambda i: walls[i])[len(walls) // 2]
    wall, seconds = walls[middle], clocks[middle].seconds
    work_ms, launches = kernels_of(partial(one_update, policy, optimizer, options, Clock(quiet)))

    flops = update_flops(scale.model, setting, load)
    peak = peak_flops(torch.cuda.get_device_name()) if on_gpu() else None
    planned = planned_memory(scale.model, setting, load)
    say(
        "Updates",
        **named,
        seconds=wall,
        first_seconds=first,
        seconds_a_row=wall / load.rows,
        GPU_ms=work_ms,
        launches=launches,
        share_of_peak=sum(flops.values()) / wall / peak if peak else None,
        peak_GB=measured / 1e9,
        formula_GB=planned / 1e9,
        measured_over_formula=measured / planned,
        **seconds,
    )


def kernels_of(run: Callable[[], Any]) -> tuple[float, int]:
    """Milliseconds that the GPU works in a run, and its kernels; nan and 0 without a GPU."""
    if not on_gpu():
        return float("nan"), 0
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = kernels_in(profiler)
    return sum(event.device_time_total for event in events) / 1e3, sum(e.count for e in events)


def kernels_in(profiler: Any) -> list[Any]:
    """The profiler's averages of everything that the GPU did: kernels and copies."""
    return [
        event
        for event in profiler.key_averages()
        if str(event.device_type).endswith("CUDA") and "Optimizer" not in event.key
    ]


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


def update_flops(shape: Shape, model: Any, load: Load) -> dict[str, float]:
    """FLOPs of an update by phase (the names are benchmarks/update.py's)."""
    config = _config(model, load)
    adapters = shape.adapters(model.lora_rank, model.lora_targets)
    student = load.prompt + load.completion
    forward = forward_flops(shape, adapters, student)
    # Onto the vocabulary for each view, and back; in several chunks, selected positions twice.
    products = 3 * (1 + (config.objective.top_fraction if load.completion > CHUNK else 0))
    by_row = {
        "teacher forward": forward_flops(shape, 0, load.teacher_prompt + load.completion),
        "student forward": forward,
        "loss": products * 2 * shape.head * load.completion,
        "backward": backward_flops(shape, adapters, student)
        + (forward if load.checkpointing else 0),
    }
    return {phase: load.rows * flops for phase, flops in by_row.items()}


def planned_memory(shape: Shape, model: Any, load: Load) -> float:
    """Bytes of an update by the formula."""
    rows = Rows(load.rows, load.prompt, load.teacher_prompt, load.completion)
    kernels: Kernels = "cpu"
    if on_gpu():
        kernels = "liger" if model.liger and _has("liger_kernel") else "cuda"
    run = check_config(_config(model, load))
    return training_memory(
        run.config,
        shape,
        rows,
        has_teacher=run.algorithm.needs_teacher,
        state_bytes=run.optimizer.state_bytes,
        kernels=kernels,
    ).peak


def _config(model: Any, load: Load) -> Config:
    return Config(
        model=replace(model, gradient_checkpointing=load.checkpointing),
        train=TrainConfig(batch_size=load.rows, micro_batch_size=load.rows),
    )


def _random_model(shape: Shape, folder: Path) -> str:
    """The folder of a random Qwen3; the first part that needs it writes it, in memory if it can."""
    from models import random_qwen3

    path = folder / "qwen3-1.7B"
    if not (path / "config.json").exists():
        partial_path = folder / "qwen3-1.7B.partial"
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


# --- decoding ------------------------------------------------------------------------------------


def decode(scale: Scale, say: Say, place: Place) -> None:
    """The local engine on a random 1.7B with a changed adapter, by rows.

    Two calls with the same prompts: the first has all that is prepared once. The gap is that of the
    log-probs to the trainer's own scores of the first 32 rows.
    """
    from paint.config import schema as cfg
    from paint.models.policy import load_policy

    setting = cfg.ModelConfig(path=_random_model(scale.model, place.folder), dtype="bfloat16")
    policy = load_policy(setting, seed=0, device=device())
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.normal_(0, 0.01)
    for decoded in scale.decoded:
        with row_of_its_own(say, "Decoding", rows=decoded.rows):
            _decode_rows(policy, decoded, say)


def _decode_rows(policy: Any, decoded: Decoded, say: Say) -> None:
    from paint.inference.engine import Completion, Sampling
    from paint.inference.local import LocalEngine

    generator = torch.Generator().manual_seed(1)
    shape = decoded.rows, decoded.prompt
    texts = torch.randint(0, 250, shape, generator=generator).tolist()
    # Of different lengths, as in a training.
    prompts = [text[i % (1 + decoded.prompt // 10) :] for i, text in enumerate(texts)]
    sampling = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=decoded.tokens)

    def written(engine: Any) -> tuple[list[Completion], float]:
        began = time.perf_counter()
        completions = engine.generate(prompts, sampling, range(decoded.rows))
        if on_gpu():
            torch.cuda.synchronize()
        return completions, time.perf_counter() - began

    engine = LocalEngine(policy, batch_size=decoded.rows)
    before = _start_peak()
    first, seconds_first = written(engine)
    second, seconds = written(engine)
    peak = _peak_gb(before)
    tokens = sum(len(completion.ids) for completion in second)
    gaps = gaps_to_trainer(policy, prompts[:32], second[:32])
    cells = {
        "rows": decoded.rows,
        "tokens": tokens,
        "first_seconds": seconds_first,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "ms_a_step": 1e3 * seconds / max(len(completion.ids) for completion in second),
        "peak_GB": peak,
        "mean_gap": float(gaps.mean()),
        "largest_gap": float(gaps.max()),
        "calls_with_the_same_tokens": _same(first, second),
    }
    say("Decoding", **cells)


def _same(some: Sequence[Any], others: Sequence[Any]) -> str:
    """How many completions have the same tokens."""
    count = sum(one.ids == other.ids for one, other in zip(some, others, strict=True))
    return f"{count} of {len(some)}"


def gaps_to_trainer(
    policy: Any, prompts: Sequence[list[int]], completions: Sequence[Any]
) -> torch.Tensor:
    """How far the trainer's log-probs of the tokens are from the engine's, in nats."""
    drawn = [list(completion.ids) for completion in completions]
    with torch.no_grad():
        states = policy.hidden_states(prompts, drawn)
        ids = torch.tensor([i for row in drawn for i in row], device=states.device)
        parts = zip(states.split(4096), ids.split(4096), strict=True)
        scored = [
            policy.lm_head(part).float().log_softmax(-1).gather(1, some[:, None])[:, 0]
            for part, some in parts
        ]
    engine = [log_prob for completion in completions for log_prob in completion.log_probs]
    return (torch.cat(scored).cpu() - torch.tensor(engine)).abs()


def long_completions(scale: Scale, say: Say, place: Place) -> None:
    """A step of long completions: its rollouts by the local engine, its update, and the rule.

    Decoding is timed at a few lengths; the seconds of a whole completion are the area below the
    line through them.
    """
    from paint.config import schema as cfg
    from paint.inference.machine import find_machine
    from paint.models.policy import load_policy
    from paint.resolve.check import resolve_engine

    long = scale.long
    rollout = cfg.RolloutConfig(max_new_tokens=long.completion)
    run = resolve_engine(check_config(Config(rollout=rollout)), find_machine())
    for note in run.notes:
        say(note=f"completions of {long.completion:,} tokens: {note}")
    path = _random_model(scale.model, place.folder)
    setting = cfg.ModelConfig(path=path, dtype="bfloat16", gradient_checkpointing=False)
    policy = load_policy(setting, seed=0, device=device())
    seconds = []
    for length in long.lengths:
        with row_of_its_own(say, "Decoding", rows=long.rows, length=length):
            before = _start_peak()
            seconds.append(_seconds_a_step(policy, long, length))
            say(
                "Decoding",
                rows=long.rows,
                length=length,
                ms_a_step=1e3 * seconds[-1],
                tokens_per_second=long.rows / seconds[-1],
                peak_GB=_peak_gb(before),
            )
        _forget(policy)
    rollouts = float("nan")
    if len(seconds) == len(long.lengths):
        pairs = zip(long.lengths, seconds, long.lengths[1:], seconds[1:], strict=False)
        rollouts = sum((end - begin) * (a + b) / 2 for begin, a, end, b in pairs)
        say("A step of long completions", phase="rollouts, by the line", seconds=rollouts)
    with row_of_its_own(say, "A step of long completions", phase="update"):
        update_seconds, peak = _long_update(policy, long)
        say(
            "A step of long completions",
            phase=f"update, {long.rows} micro-batches of a row",
            seconds=update_seconds,
            share=update_seconds / (update_seconds + rollouts),
            peak_GB=peak,
        )


def _seconds_a_step(policy: Any, long: Long, length: int) -> float:
    """Of one token of every row whose text has this length."""
    from paint.inference.engine import Sampling
    from paint.inference.local import LocalEngine

    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, 250, (long.rows, length), generator=generator).tolist()
    engine = LocalEngine(policy, batch_size=long.rows)
    taken: dict[int, float] = {}
    for tokens in long.steps:
        sampling = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=tokens)
        run = partial(engine.generate, prompts, sampling, range(long.rows))
        run()  # has all that is prepared once
        taken[tokens] = seconds_of(run)
    few, many = long.steps
    return (taken[many] - taken[few]) / (many - few)


def _long_update(policy: Any, long: Long) -> tuple[float, float]:
    """Seconds of an update by rows one after the other, and the peak of memory in GB."""
    from paint.core.display import Clock, Display
    from paint.resolve.optimizer import AdamW, open_optimizer
    from update import Options
    from update import update as one_update

    optimizer = open_optimizer(AdamW(), policy.trainable, TrainConfig())
    options = Options(
        batch_size=1,
        micro_batch_size=1,
        prompt=long.prompt,
        teacher_prompt=long.teacher_prompt,
        completion=long.completion,
    )
    clock = Clock(Display(enabled=False))
    one_update(policy, optimizer, options, clock)  # compiles
    _start_peak()
    seconds = seconds_of(
        partial(one_update, policy, optimizer, replace(options, batch_size=long.rows), clock)
    )
    return seconds, _peak_gb(0)


# --- resuming ------------------------------------------------------------------------------------


def resume(scale: Scale, say: Say, place: Place) -> None:
    """A run of the demo's model, the same run again, and one that is resumed: how far are they one?

    The second says how far this GPU repeats itself at all.
    """
    from paint.config.recipe import find_recipe, from_table, read_recipe, to_table
    from paint.core.display import Display
    from paint.resolve.check import check_training
    from paint.training.trainer import train

    steps, stop = scale.steps
    table = to_table(read_recipe(find_recipe("demo-paint")))
    small = {} if on_gpu() else {"batch_size": 2, "micro_batch_size": 2}
    table["train"] |= {"steps": steps, "checkpoint_every": stop, **small}
    if not on_gpu():
        table["rollout"]["max_new_tokens"] = 16
    run = check_training(from_table(table))
    quiet = Display(enabled=False)

    names = ("first", "again", "resumed")
    first, again, resumed = (place.folder / f"resume-{name}" for name in names)
    began = time.monotonic()
    train(run, first, display=quiet)
    say(note=f"{steps} steps of demo-paint took {time.monotonic() - began:.0f} s")

    shutil.copytree(first, resumed)
    for path in _checkpoints(resumed)[1:]:
        shutil.rmtree(path)
    train(run, resumed, resume=True, display=quiet)
    say("Resuming", run=f"resumed after step {stop}", **_beside(first, resumed))
    train(run, again, display=quiet)
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
    "decode": Part("Generation by the local engine", 75, decode),
    "update": Part("Updates of a random 1.7B", 90, update),
    "layers": Part("Layers by PyTorch and by Liger", 40, layers),
    "start-demo": Part("The first commands", 60, start_demo),
    "start-eval": Part("A first evaluation", 40, start_eval),
    "loss": Part("The loss beside its matrix products and its peers", 110, loss),
    "train-local": Part("Training by the local engine", 100, partial(train, "local")),
    "peers": Part("A whole step beside TRL's", 190, peers),
    "long": Part("Long completions", 65, long_completions),
    "first-step": Part("Start and first step, with cold and warm caches", 105, first_step),
    "resume": Part("Resuming on the GPU", 60, resume),
    "tests": Part("Tests on the GPU", 75, tests),
    "train-vllm": Part("Training by vLLM", 220, partial(train, "vllm")),
    "kernels": Part("Kernels against the reference", 40, kernels),
    "smollm2": Part("PAINT on SmolLM2-135M", 200, smollm2),
}
"""In the order of their worth: the last ones may get no time."""


@dataclass(frozen=True)
class Options:
    """All that only a GPU can show."""

    folder: Path = Path("runs/gpu")
    """Folder for gpu-report.md, gpu-report.json, and the rows and the log of each part."""
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
    found: dict[str, Any]
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
            for row in found["rows"]:
                print(json.dumps(row))
            print(f"{name}: {found['status']}, {found['seconds']:.0f} s", flush=True)
    print(markdown(report))
    print(f"written to {options.folder}: gpu-report.md, gpu-report.json")
    return report


def run_part(name: str, limit: float, folder: Path, options: Options) -> dict[str, Any]:
    """One part's rows and how it ended, from a process of its own that is ended at its limit."""
    rows = options.folder / f"{name}.jsonl"
    rows.unlink(missing_ok=True)
    order = {
        "name": name,
        "rows": str(rows.absolute()),
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

        @once
        def say(table: str = "", **cells: Any) -> None:
            known = {name: _stored(cell) for name, cell in cells.items()}
            print(json.dumps({"table": table, **known}), file=file, flush=True)

        try:
            part.run(scale, say, Place(Path(folder), ends, smollm2))
        except (Skipped, ImportError) as missing:
            print(_line(missing))
            return 3
    return 0


def once(say: Say) -> Say:
    """Say each row once: those of another benchmark come again with each new one."""
    said = set()

    def new(table: str = "", **cells: Any) -> None:
        row = str((table, cells))
        if row not in said:
            said.add(row)
            say(table, **cells)

    return new


def _stored(value: Any) -> Any:
    """A figure of five digits; None for nan, which JSON does not have."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.5g}")


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
