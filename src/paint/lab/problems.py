"""The lab's problems: chains of operations modulo 100.

Each has a reference solution, which skips intermediate results. The model works in a style of its
own, which skips none.

Left out on purpose: torch. The lab's model is made by paint.lab.pretraining.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

MODULUS = 100
SLIPS = (-10, -1, 1, 10)

_WORDS = {"+": "Add", "-": "Subtract", "*": "Multiply by"}
_SIGNS = {"+": "+", "-": "-", "*": r"\times "}


@dataclass(frozen=True)
class Chain:
    """A starting number and three to five operations modulo 100."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def values(self) -> list[int]:
        """The value before the first operation and after each one."""
        values = [self.start]
        for sign, operand in self.operations:
            values.append(apply(values[-1], sign, operand))
        return values

    @property
    def problem(self) -> str:
        steps = ", ".join(f"${_SIGNS[sign]}{operand}$" for sign, operand in self.operations)
        return f"Start at ${self.start}$ and apply {steps} modulo $100$."

    @property
    def answer(self) -> str:
        return str(self.values[-1])

    @property
    def formulas(self) -> list[str]:
        """Two operations at a time in one formula, the intermediate result skipped."""
        formulas, values = [], self.values
        for i in range(0, len(self.operations), 2):
            merged = self.operations[i : i + 2]
            formula = str(values[i])
            for j, (sign, operand) in enumerate(merged):
                formula = f"({formula})" if j else formula
                formula += f"{_SIGNS[sign]}{operand}"
            formulas.append(rf"${formula} \equiv {values[i + len(merged)]}$")
        return formulas

    @property
    def solution(self) -> str:
        """The reference: shorter than the model's own style, since it skips results."""
        return (
            f"We find {', then '.join(self.formulas)}, so the result is $\\boxed{{{self.answer}}}$."
        )

    def known_results(self, context: str) -> int:
        """How many operations, from the first on, have their result in a masked reference."""
        if f"\\boxed{{{self.answer}}}" in context:
            return len(self.operations)

        seen = [i for i, formula in enumerate(self.formulas) if formula in context]
        return min(2 * (max(seen, default=-1) + 1), len(self.operations))

    def worked(self, slip_rates: Sequence[float] = (), rng: random.Random | None = None) -> str:
        """The model's own style: one line an operation; a slip is carried on, as in real life.

        ``slip_rates`` holds the probability of a slip for each operation, and ``rng`` decides.
        Without ``rng`` there are no slips.
        """
        value = self.start
        lines = [f"We start at ${value}$."]
        for i, (sign, operand) in enumerate(self.operations):
            result = apply(value, sign, operand)
            if rng is not None and rng.random() < slip_rates[i]:
                result = (result + rng.choice(SLIPS)) % MODULUS

            lines.append(
                rf"{_WORDS[sign]} ${operand}$: ${value}{_SIGNS[sign]}{operand} \equiv {result}$."
            )
            value = result

        lines.append(f"The answer is $\\boxed{{{value}}}$.")
        return "\n".join(lines)


def apply(value: int, sign: str, operand: int) -> int:
    """The result of one operation modulo 100."""
    match sign:
        case "+":
            return (value + operand) % MODULUS
        case "-":
            return (value - operand) % MODULUS
        case _:
            return (value * operand) % MODULUS


def random_chain(rng: random.Random) -> Chain:
    """A chain of three to five operations: small operands, and one multiplication in five."""
    operations = []
    for _ in range(rng.randint(3, 5)):
        sign = rng.choice("++--*")
        operations.append((sign, rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)))
    return Chain(rng.randint(0, MODULUS - 1), tuple(operations))


def is_held_out(chain: Chain) -> bool:
    """Whether a chain is never trained on, not in pretraining either: one in ten, by its hash."""
    return hashlib.sha256(chain.problem.encode()).digest()[0] % 10 == 0


def random_chains(count: int, *, seed: int, held_out: bool) -> list[Chain]:
    """So many different chains, all held out or all to train on; a function of the seed alone."""
    rng = random.Random(seed)
    chains: dict[Chain, None] = {}
    while len(chains) < count:
        chain = random_chain(rng)
        if is_held_out(chain) == held_out:
            chains[chain] = None
    return list(chains)
