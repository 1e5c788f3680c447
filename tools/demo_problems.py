"""Problems of the demo: chains of operations modulo 100.

A reference solution states the result of every step. One problem in two, by the hash of its text,
has a reference in the model's own style, the others in another style. The demo's model is made by
tools/pretrain_demo.py.
"""

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

LENGTHS = (16, 20)
MODULUS = 100
SLIPS = (-10, -1, 1, 10)

Step = tuple[int, str, int]
"""A number, a sign (+, -, *), and the operand that is applied to it."""

_SIGNS = {"+": "+", "-": "-", "*": r"\times "}
_SIGN = r"(?P<sign>\+|-|\\times )"
_STEP = re.compile(
    # The lookahead, since a result can also be the number that the next step starts from. A number
    # that begins or ends at a mask is no number: its other digit may be hidden.
    r"(?:(?<=\$)|(?<=equiv ))(?P<value>\d+)"
    rf"(?={_SIGN}(?P<operand>\d+) \\equiv (?P<result>\d+)(?:\$|[+-]|\\times))"
)


@dataclass(frozen=True)
class Chain:
    """A starting number and sixteen to twenty operations modulo 100, no two of them the same."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def values(self) -> list[int]:
        """The value before the first operation and after each one."""
        return [self.start, *(result for *_, result in self._steps(0.0, None, {}))]

    @property
    def problem(self) -> str:
        steps = ", ".join(f"{_SIGNS[sign]}{operand}" for sign, operand in self.operations)
        return f"Start at ${self.start}$ and apply ${steps}$ modulo $100$."

    @property
    def answer(self) -> str:
        return str(self.values[-1])

    @property
    def is_in_own_style(self) -> bool:
        """Whether the reference is in the model's own style: one in two, by its hash."""
        return _digest(self)[1] % 2 == 0

    @property
    def solution(self) -> str:
        """The reference."""
        return self.reference()

    def reference(self, given_results: Mapping[Step, int] | None = None) -> str:
        """Return the reference; steps in ``given_results`` have the results given there."""
        return self.worked(given_results=given_results, in_own_style=self.is_in_own_style)

    def worked(
        self,
        slip_rate: float = 0.0,
        rng: random.Random | None = None,
        given_results: Mapping[Step, int] | None = None,
        *,
        in_own_style: bool = True,
    ) -> str:
        """Write the solution step by step; later steps build on an arithmetic error.

        The model's own style, used for answers, is one running formula. The other style, used for
        rationales, has a line for each step.

        Args:
            slip_rate: probability of an arithmetic error in each step that is not given.
            rng: source of the errors; None makes none.
            given_results: results of steps to copy instead of computing them.
        """
        steps = self._steps(slip_rate, rng, given_results or {})
        operations = [rf"{_SIGNS[sign]}{x} \equiv {result}" for _, sign, x, result in steps]
        result = f"is ${boxed(steps[-1][-1])}$."
        if in_own_style:
            return f"We get ${self.start}{''.join(operations)}$.\nThe answer {result}"

        lines = [f"${value}{done}$." for (value, *_), done in zip(steps, operations, strict=True)]
        return "\n".join([*lines, f"The result {result}"])

    def _steps(
        self, slip_rate: float, rng: random.Random | None, given_results: Mapping[Step, int]
    ) -> list[tuple[int, str, int, int]]:
        """Number, sign, operand and result of each step."""
        value, steps = self.start, []
        for sign, operand in self.operations:
            result = apply(value, sign, operand)
            if (value, sign, operand) in given_results:
                result = given_results[value, sign, operand]
            elif rng is not None and rng.random() < slip_rate:
                result = (result + rng.choice(SLIPS)) % MODULUS

            steps.append((value, sign, operand, result))
            value = result
        return steps


def boxed(answer: int | str) -> str:
    return f"\\boxed{{{answer}}}"


def visible_steps(text: str) -> dict[Step, int]:
    """Parse the results of the complete steps in a text, in either style."""
    return {
        (
            int(step["value"]),
            "*" if "times" in step["sign"] else step["sign"],
            int(step["operand"]),
        ): int(step["result"])
        for step in _STEP.finditer(text)
    }


def apply(value: int, sign: str, operand: int) -> int:
    """The result of one operation modulo 100."""
    match sign:
        case "+":
            return (value + operand) % MODULUS
        case "-":
            return (value - operand) % MODULUS
        case _:
            return (value * operand) % MODULUS


def random_chain(rng: random.Random, lengths: tuple[int, int] = LENGTHS) -> Chain:
    """A chain of different operations with small operands, about one in five a multiplication."""
    length = rng.randint(*lengths)
    operations: dict[tuple[str, int], None] = {}
    while len(operations) < length:
        sign = rng.choice("++--*")
        operations[sign, rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)] = None
    return Chain(rng.randint(0, MODULUS - 1), tuple(operations))


def is_held_out(chain: Chain) -> bool:
    """Whether a chain is held out, from pretraining, too: one in ten, by its hash."""
    return _digest(chain)[0] % 10 == 0


def random_chains(count: int, *, seed: int, held_out: bool) -> list[Chain]:
    """Draw different chains, all held out or all for training; depends on the seed alone."""
    rng = random.Random(seed)
    chains: dict[Chain, None] = {}
    while len(chains) < count:
        chain = random_chain(rng)
        if is_held_out(chain) == held_out:
            chains[chain] = None
    return list(chains)


def _digest(chain: Chain) -> bytes:
    return hashlib.sha256(chain.problem.encode()).digest()
