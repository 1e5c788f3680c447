"""Benchmark of the loss against its matrix products, Liger and TRL: seconds and memory.

    python benchmarks/loss.py           (make bench-loss installs the peers and runs it)

On a CPU: 151,936 tokens of vocabulary and hidden states of 1,024, float32. On a GPU: the heads of
Qwen3-1.7B, 4B and 8B with 8 completions of 1,024 tokens, bfloat16. The head is frozen, and the
student's states get their gradient.

    products      two projections onto the vocabulary and one back, into buffers that exist already:
                  the bound
    paint ...     the paper's whole objective with the sampled tokens' log-probabilities; reference
                  holds all logits
    liger, trl    plain forward KL at the same temperature, which is all they can do of it

Every contender has a process of its own. Seconds are medians over rounds in which each runs once,
so that whatever else the machine does slows all alike. Memory is the peak beside the inputs: on a
CPU for 1, 4 and 16 completions. The whole took 17 minutes on two cores.
"""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paint.objective import fused
from paint.objective.fused import fused_paint_loss
from paint.objective.options import Impl
from workers import Worker, answers_alone, seconds_of, serve, started

VOCABULARY = 151_936
TEMPERATURE = 1.1


@dataclass(frozen=True)
class Size:
    """A head and what is projected onto it."""

    name: str
    hidden: int
    completion: int
    completions: int
    vocabulary: int = VOCABULARY


CPU = [Size("h = 1,024", 1024, 512, 1)]
GPU = [
    Size("Qwen3-1.7B", 2048, 1024, 8),
    Size("Qwen3-4B", 2560, 1024, 8),
    Size("Qwen3-8B", 4096, 1024, 8),
]


@dataclass(frozen=True)
class Options:
    """Time and memory of the loss, of its matrix products and of its peers."""

    repeat: int = 5
    """Rounds that are timed, after one that is not."""
    memory: tuple[int, ...] = (1, 4, 16)
    """Numbers of completions for which a CPU's peak memory is measured."""
    only: tuple[str, ...] = ()
    """Contenders, by name; none: all that can run here."""
    completion: int | None = None
    """Tokens of a completion; None: 512 on a CPU, 1,024 on a GPU."""
    vocabulary: int = VOCABULARY
    """Rows of the head."""
    json: Path = Path("runs/bench-loss.json")
    """File for the figures."""


@dataclass
class Inputs:
    """Two views' states of the same completions, a frozen head, sampled tokens."""

    student: Tensor
    teacher: Tensor
    head: Tensor
    lengths: Sequence[int]
    tokens: Tensor


def make(size: Size, completions: int) -> Inputs:
    """Random inputs, made in place: a later peak of memory must not hide behind theirs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.empty(*shape, device=device, dtype=dtype).normal_(std=scale)

    n = completions * size.completion
    student = normal(n, size.hidden)
    teacher = student + normal(n, size.hidden, scale=0.1)
    head = normal(size.vocabulary, size.hidden, scale=2 / size.hidden**0.5)
    tokens = torch.randint(size.vocabulary, (n,), device=device)
    return Inputs(student.requires_grad_(), teacher, head, [size.completion] * completions, tokens)


# The contenders: each returns what runs one loss and its gradient.


def products(x: Inputs) -> Callable[[], Any]:
    """The three matrix products, a completion at a time."""
    student = x.student.detach()
    logits = torch.empty(x.lengths[0], len(x.head), device=x.head.device)
    back = torch.empty(x.lengths[0], x.head.shape[1], device=x.head.device)
    slope = logits if logits.dtype == x.head.dtype else torch.zeros_like(logits, dtype=x.head.dtype)
    wide = {} if logits.dtype == x.head.dtype else {"out_dtype": logits.dtype}

    def run() -> None:
        for mine, theirs in zip(
            student.split(x.lengths[0]), x.teacher.split(x.lengths[0]), strict=True
        ):
            torch.mm(mine, x.head.T, out=logits, **wide)
            torch.mm(theirs, x.head.T, out=logits, **wide)
            torch.mm(slope, x.head, out=back, **wide)

    return run


def paint(impl: Impl) -> Callable[[Inputs], Callable[[], Any]]:
    """Ours."""

    def contender(x: Inputs) -> Callable[[], Any]:
        def run() -> None:
            loss = fused_paint_loss(
                x.student,
                x.teacher,
                x.head,
                x.lengths,
                tokens=x.tokens,
                impl=impl,
                temperature=TEMPERATURE,
            )
            loss.value.backward()

        return run

    return contender


def compiled(x: Inputs) -> Callable[[], Any]:
    """Ours in plain torch, its row work compiled by torch: the Triton kernels have to beat it."""
    measure, differentiate = torch.compile(fused.measure), torch.compile(fused.differentiate)
    plain = paint("chunked")(x)

    def run() -> None:
        with patch.multiple(fused, measure=measure, differentiate=differentiate):
            plain()

    return run


def liger(x: Inputs) -> Callable[[], Any]:
    """Liger's chunked divergence with beta = 0: forward KL."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0,
        weight_soft_loss=1.0,
        beta=0.0,
        temperature=TEMPERATURE,
        compiled=x.head.is_cuda,
    )
    return lambda: loss(x.student, x.head, x.teacher, x.head, x.tokens).backward()


def trl(x: Inputs) -> Callable[[], Any]:
    """TRL's chunked divergence with beta = 0: forward KL."""
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    kl: Callable[..., Any] = ChunkedDivergenceFunction.apply

    def run() -> None:
        divergence, _ = kl(x.student, x.head, None, x.teacher, x.head, None, 0.0, TEMPERATURE)
        divergence.mean().backward()

    return run


CONTENDERS: dict[str, Callable[[Inputs], Callable[[], Any]]] = {
    "products": products,
    "paint triton": paint("triton"),
    "paint chunked": paint("chunked"),
    "paint chunked, compiled": compiled,
    "paint reference": paint("reference"),
    "liger": liger,
    "trl": trl,
}
ON_GPU_ALONE = {"paint triton", "paint chunked, compiled"}


# The measurements


def work(answers: TextIO, name: str, size: Size, completions: int) -> None:
    """The worker: report the peak of a first run, then run once for each line that it reads."""
    x = make(size, completions)
    # The C library learns from what is freed how much memory to keep, and every training run frees
    # this much.
    torch.ones(2**22)

    def seconds(run: Callable[[], Any]) -> float:
        x.student.grad = None
        return seconds_of(run)

    def products(run: Callable[[], Any]) -> float:
        x.student.grad = None
        return products_of(run, x)

    serve(answers, lambda: CONTENDERS[name](x), seconds=seconds, products=products)


def products_of(run: Callable[[], Any], x: Inputs) -> float:
    """How many products of tokens × hidden × vocabulary a run takes, by its multiplications."""
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        run()
    flops: int = counter.get_total_flops()
    return flops / (2 * x.student.numel() * len(x.head))


def compare(
    size: Size, names: Sequence[str], options: Options, console: Console
) -> dict[str, dict[str, Any]]:
    """Figures of every contender for one head."""
    contenders, figures = dict[str, Worker](), dict[str, dict[str, Any]]()
    orders = {name: [name, asdict(size), size.completions] for name in names}
    for name, contender in started(__file__, orders):
        console.print(f"{size.name}: warming up {name}", style="dim")
        if "error" in contender.first:
            console.print(f"{name} cannot run here: {contender.first['error']}")
            contender.close()
            continue
        contenders[name] = contender
        figures[name] = {
            "products": contender("products"),
            "seconds": [],
            "peak_bytes": {size.completions: contender.first["peak_bytes"]},
        }
    for number in range(options.repeat):
        left = sum(found["seconds"][-1] for found in figures.values() if number) * (
            options.repeat - number
        )
        estimate = f", {left:.0f} s left for the rounds" if number else ""
        console.print(f"{size.name}: round {number + 1} of {options.repeat}{estimate}", style="dim")
        for name, contender in contenders.items():
            figures[name]["seconds"].append(contender("seconds"))
    bound = figures["products"]["seconds"]
    for name, contender in contenders.items():
        contender.close()
        figures[name]["ratios"] = [
            mine / least for mine, least in zip(figures[name]["seconds"], bound, strict=True)
        ]
    for count in (
        () if torch.cuda.is_available() else sorted({*options.memory} - {size.completions})
    ):
        for name in contenders:
            console.print(f"{size.name}: memory of {name}, {count} completions", style="dim")
            contender = Worker(__file__, [name, asdict(size), count])
            figures[name]["peak_bytes"][count] = contender.first.get("peak_bytes")
            contender.close()
    return figures


def table(size: Size, figures: dict[str, dict[str, Any]]) -> Table:
    """One head's figures."""
    counts = list(next(iter(figures.values()))["peak_bytes"])
    tokens = size.completions * size.completion
    result = Table(
        title=f"{size.name}, V = {size.vocabulary:,}, {tokens:,} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    result.add_column("")
    for heading in ("seconds", "min to max", "ratio to products", "min to max", "products"):
        result.add_column(heading, justify="right")
    for count in counts:
        result.add_column(f"GB at {count} x {size.completion}", justify="right")
    for name, found in figures.items():
        s, r = found["seconds"], found["ratios"]
        peaks = [found["peak_bytes"][count] for count in counts]
        result.add_row(
            name,
            f"{statistics.median(s):.3g}",
            f"{min(s):.3g} to {max(s):.3g}",
            f"{statistics.median(r):.2f}",
            f"{min(r):.2f} to {max(r):.2f}",
            f"{found['products']:.2f}",
            *("-" if peak is None else f"{peak / 1e9:.2f}" for peak in peaks),
        )
    return result


def main(options: Options) -> None:
    """Measure, print, store."""
    console = Console(width=140)
    gpu = torch.cuda.is_available()
    names = [
        n
        for n in CONTENDERS
        if (gpu or n not in ON_GPU_ALONE) and (not options.only or n in options.only)
    ]
    names = ["products", *(name for name in names if name != "products")]
    device = torch.cuda.get_device_name() if gpu else "CPU"
    results = {}
    for size in GPU if gpu else CPU:
        size = replace(
            size, vocabulary=options.vocabulary, completion=options.completion or size.completion
        )
        figures = compare(size, names, options, console)
        console.print(table(size, figures))
        results[size.name] = {**asdict(size), "contenders": figures}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        about = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
        options.json.write_text(json.dumps(about | {"sizes": results}, indent=1) + "\n")
    console.print(f"written to {options.json}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        name, size, completions = json.loads(sys.argv[2])
        work(answers_alone(), name, Size(**size), completions)
    else:
        main(tyro.cli(Options, description=__doc__))
