"""How precise is an entropy in float32, and does it rank positions as float64 does?

    python benchmarks/entropy.py SEED

Rows of logits whose entropy is between 1 and 10 times 1e-28 ... 1e-1 nats, for vocabularies of 700
and 151,936. Shown for each way of computing it: the largest relative error against float64, and the
share of pairs of rows in the wrong order. The plain sum is -sum p log p of log_softmax.
"""

import os
import sys
from collections.abc import Callable

import torch
from jaxtyping import Float
from rich.console import Console
from rich.table import Table
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when paint.kernels is imported

from paint import fused, kernels, objective

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain sum": lambda z: -(z.log_softmax(-1).exp() * z.log_softmax(-1)).sum(-1),
    "objective.entropy": lambda z: objective.entropy(z.log_softmax(-1)),
    "fused.measure": lambda z: fused.measure(z.clone(), None, 1.0)["entropy"],
    "kernels.measure": lambda z: kernels.measure(z.clone(), None, 1.0)["entropy"],
}


def precise(logits: Float[Tensor, "n v"]) -> Float[Tensor, "n"]:
    """H = log1p(rest) - moment / (1 + rest), in float64 throughout."""
    distance = logits.double() - logits.double().amax(-1, keepdim=True)
    others = distance.exp().scatter(-1, distance.argmax(-1, keepdim=True), 0.0)
    rest = others.sum(-1)
    return rest.log1p() - (others * distance).sum(-1) / (1 + rest)


def rows(n: int, v: int, least: float, generator: torch.Generator) -> Float[Tensor, "n v"]:
    """Logits of one likely token over a random tail, with entropies in [least, 10 least]."""
    logits = 2.5 * torch.randn(n, v, generator=generator, dtype=torch.float64)
    wanted = least * 10 ** torch.rand(n, generator=generator, dtype=torch.float64)
    low, high = torch.full((n,), 12.0).double(), torch.full((n,), 120.0).double()
    for _ in range(50):  # the higher the first logit, the lower the entropy
        logits[:, 0] = (low + high) / 2
        is_lower = precise(logits) < wanted
        low, high = low.where(is_lower, logits[:, 0]), high.where(~is_lower, logits[:, 0])
    return logits.float()


def main() -> None:
    """Print the table."""
    generator = torch.Generator().manual_seed(int(sys.argv[1]))
    table = Table("vocabulary, least entropy", *WAYS)
    for v, n in ((700, 200), (151_936, 10)):
        for exponent in (-28, -20, -14, -12, -10, -8, -7, -6, -5, -4, -3, -1):
            logits = rows(n, v, 10.0**exponent, generator)
            exact, cells = precise(logits), []
            for way in WAYS.values():
                found = way(logits.to(DEVICE)).double().cpu()
                error = (found / exact - 1).abs().max()
                swapped = ((found[:, None] - found) * (exact[:, None] - exact) < 0).double().mean()
                cells.append(f"{error:.1e}, {swapped:.2%}")
            table.add_row(f"{v}, 1e{exponent}", *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
