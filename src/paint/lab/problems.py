"""The lab's problems: chains of operations modulo 100, with a reference that skips steps and a style that does not."""

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
        """The reference: shorter than the model's own style, since it skips steps."""
        return (
            f"We find {', then '.join(self.formulas)}, so the result is $\\boxed{{{self.answer}}}$."
        )

    def known(self, context: str) -> int:
        """How many operations, from the first on, have their result in a partly hidden reference."""
        if f"\\boxed{{{self.answer}}}" in context:
            return len(self.operations)
        seen = [i for i, formula in enumerate(self.formulas) if formula in context]
        return min(2 * (max(seen, default=-1) + 1), len(self.operations))

    def worked(self, slip_rates: Sequence[float] = (), rng: random.Random | None = None) -> str:
        """The model's own style: one line an operation; a slip is carried on, as in real life.

        ``slip_rates`` holds the probability of a slip for each operation; without it none slips.
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
    match sign:
        case "+":
            return (value + operand) % MODULUS
        case "-":
            return (value - operand) % MODULUS
        case _:
            return (value * operand) % MODULUS


def draw_chain(rng: random.Random) -> Chain:
    operations = []
    for _ in range(rng.randint(3, 5)):
        sign = rng.choice("++--*")
        operations.append((sign, rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)))
    return Chain(rng.randint(0, MODULUS - 1), tuple(operations))


def held_out(chain: Chain) -> bool:
    """One chain in ten, by the hash of its text, is never trained on: neither here nor in pretraining."""
    return hashlib.sha256(chain.problem.encode()).digest()[0] % 10 == 0


def draw_chains(count: int, *, seed: int, held_out_split: bool) -> list[Chain]:
    rng = random.Random(seed)
    chains: dict[Chain, None] = {}
    while len(chains) < count:
        chain = draw_chain(rng)
        if held_out(chain) == held_out_split:
            chains[chain] = None
    return list(chains)
