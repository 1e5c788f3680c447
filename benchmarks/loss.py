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

Every contender has a process of its own. Seconds are medians over rounds in which it and the
products run once, so that whatever else the machine does slows both alike. Memory is the peak
beside the inputs: on a CPU for 1, 4 and 16 completions. The figures are stored after each
contender. Those that torch compiles are run for the first size only: compiling takes about a minute
a size.
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

from paint.config.schema import Impl
from paint.objective import fused
from paint.objective.fused import fused_paint_loss
from workers import Worker, answers_alone, chosen, seconds_of, serve

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
COMPILED = {"paint chunked, compiled", "liger"}
"""Contenders that torch.compile compiles on a GPU, anew in every process."""


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

    def added(_: Any, a: Sequence[int], b: Sequence[int], *__: Any, **___: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    # In place, and with out_dtype: torch's own formula takes neither.
    formulas = {torch.ops.aten.addmm_: added, torch.ops.aten.addmm: added}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        run()
    flops: int = counter.get_total_flops()
    return flops / (2 * x.student.numel() * len(x.head))


Figures = dict[str, Any]


def measured(name: str, size: Size, bound: Worker | None, options: Options) -> Figures:
    """One contender's figures for one head; one that fails or dies has an "error".

    Args:
        bound: the worker of the products, which run once before each timed run; None if it died.
    """
    contender = Worker(__file__, [name, asdict(size), size.completions])
    try:
        answers: list[Any] = [contender.first]
        if "error" not in contender.first:
            answers.append(contender("products"))
        seconds, products = list[Any](), list[Any]()
        while not _is_error(answers[-1]) and len(seconds) < options.repeat:
            if bound is not None:
                products.append(bound("seconds"))
            answers.append(contender("seconds"))
            seconds.append(answers[-1])
    finally:
        contender.close()
    if _is_error(answers[-1]):
        return dict(answers[-1])

    sound = [found for found in products if not _is_error(found)]
    ratios = [mine / least for mine, least in zip(seconds, sound, strict=False)]
    peaks = {size.completions: contender.first["peak_bytes"]}
    for count in () if torch.cuda.is_available() else sorted({*options.memory} - {*peaks}):
        other = Worker(__file__, [name, asdict(size), count])
        peaks[count] = other.first.get("peak_bytes")
        other.close()
    return {"products": answers[1], "seconds": seconds, "ratios": ratios, "peak_bytes": peaks}


def _is_error(answer: Any) -> bool:
    return isinstance(answer, dict)


def compare(
    size: Size,
    names: Sequence[str],
    options: Options,
    console: Console,
    store: Callable[[str, Figures], None],
) -> None:
    """Measure every contender for one head, one after the other, and store each at once."""
    bound = Worker(__file__, ["products", asdict(size), size.completions])
    has_bound = "error" not in bound.first
    for name in names:
        console.print(f"{size.name}: {name}", style="dim")
        figures = measured(name, size, bound if has_bound else None, options)
        if "error" in figures:
            console.print(f"{name} cannot run here: {figures['error']}")
        store(name, figures)
    bound.close()


def table(size: Size, figures: dict[str, dict[str, Any]]) -> Table:
    """One head's figures."""
    counts = [n for found in figures.values() for n in found.get("peak_bytes", ())]
    counts = list(dict.fromkeys(counts))
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
        if "error" in found:
            result.add_row(name, "-", found["error"][:40])
            continue
        s, r = found["seconds"], found["ratios"] or [float("nan")]
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
    can_run = [name for name in CONTENDERS if gpu or name not in ON_GPU_ALONE]
    names = chosen(can_run, options.only)
    about = {
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    sizes = [
        replace(
            size, vocabulary=options.vocabulary, completion=options.completion or size.completion
        )
        for size in (GPU if gpu else CPU)
    ]
    results: dict[str, dict[str, Any]] = {
        size.name: {**asdict(size), "contenders": {}} for size in sizes
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)

    late = [name for name in names if name in COMPILED]
    soon = [name for name in names if name not in COMPILED]
    for size, some in [(sizes[0], soon), (sizes[0], late), *((size, soon) for size in sizes[1:])]:

        def store(name: str, figures: Figures, size: Size = size) -> None:
            results[size.name]["contenders"][name] = figures
            options.json.write_text(json.dumps(about | {"sizes": results}, indent=1) + "\n")

        if some:
            compare(size, some, options, console, store)
    for size in sizes:
        console.print(table(size, results[size.name]["contenders"]))
    console.print(f"written to {options.json}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        name, size, completions = json.loads(sys.argv[2])
        work(answers_alone(), name, Size(**size), completions)
    else:
        main(tyro.cli(Options, description=__doc__))
