"""Problems of the demo: chains of operations modulo 100, some of whose operands are words.

A word stands for a number by a rule that the problem does not state. A reference solution states
the rule where the word is first used, and the result of every step. One problem in two, by the hash
of its text, has a reference in the model's own style, the others in another style. The demo's model
is made by tools/pretrain_demo.py; it was never told which rule holds.
"""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LENGTHS = (8, 10)
MODULUS = 100
SLIPS = (-10, -1, 1, 10)

VALUES = (3, 5, 8, 11)
"""What a word can stand for, all equally often, so that a guess is right one time in four."""

RULES = {
    "zor": 3, "mib": 5, "tav": 8, "kel": 11, "pum": 5, "rud": 11, "fip": 8, "gan": 3
}  # fmt: skip
"""The rules of the training problems and of the held-out ones.

Each value stands twice. Which word has which is such that the model's likeliest guess is right as
often as a sampled one; a guess is the same in a whole problem, so this is not so by itself.
"""

NEW_RULES = {
    "dax": 8, "wug": 11, "lem": 11, "sho": 5, "bip": 3, "nok": 3, "jal": 8, "vez": 5
}  # fmt: skip
"""The rules of a second held-out set, which no training problem uses."""

WORD_COUNTS = {0: 0.3, 1: 0.3, 2: 0.4}
"""How many different words a chain has, as weights."""

Operation = tuple[str, int | str]
"""A sign (+, -, *), and the operand: a number, or a word."""

Step = tuple[int, str, int]
"""A number, a sign, and the number that is applied to it."""

_SIGNS = {"+": "+", "-": "-", "*": r"\times "}
_SIGN = r"(?P<sign>\+|-|\\times )"
_STEP = re.compile(
    # The lookahead, since a result can also be the number that the next step starts from. A number
    # that begins or ends at a mask is no number: its other digit may be hidden.
    r"(?:(?<=\$)|(?<=equiv ))(?P<value>\d+)"
    rf"(?={_SIGN}(?P<operand>\d+) \\equiv (?P<result>\d+)(?:\$|[+-]|\\times))"
)
_RULE = re.compile(r"A (?P<word>[a-z]+) is \$(?P<value>\d+)\$")


@dataclass(frozen=True)
class Worked:
    """A chain worked step by step.

    Attributes:
        steps: number, sign, number applied and result of each step.
        stated: the rule that is stated before each step: a word and its value, or None.
    """

    steps: tuple[tuple[int, str, int, int], ...]
    stated: tuple[tuple[str, int] | None, ...]


@dataclass(frozen=True)
class Chain:
    """A starting number and eight to ten operations modulo 100, no two of them the same."""

    start: int
    operations: tuple[Operation, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The different words, in the order of their first use."""
        return tuple(dict.fromkeys(x for _, x in self.operations if isinstance(x, str)))

    @property
    def problem(self) -> str:
        steps = ", ".join(f"{_SIGNS[sign]}{operand}" for sign, operand in self.operations)
        return f"Start at ${self.start}$ and apply ${steps}$ modulo $100$."

    @property
    def is_in_own_style(self) -> bool:
        """Whether the reference is in the model's own style: one in two, by its hash."""
        return _digest(self)[1] % 2 == 0

    def values(self, rules: Mapping[str, int]) -> list[int]:
        """The value before the first operation and after each one."""
        return [self.start, *(result for *_, result in self.work(rules).steps)]

    def answer(self, rules: Mapping[str, int]) -> str:
        return str(self.values(rules)[-1])

    def reference(
        self, rules: Mapping[str, int], given_results: Mapping[Step, int] | None = None
    ) -> str:
        """The reference under these rules; steps in ``given_results`` have the results given."""
        worked = self.work(rules, given_results=given_results)
        return written(worked, in_own_style=self.is_in_own_style)

    def work(
        self,
        rules: Mapping[str, int],
        slip_rate: float = 0.0,
        rng: random.Random | None = None,
        given_results: Mapping[Step, int] | None = None,
    ) -> Worked:
        """Work the chain; later steps build on an arithmetic error.

        Args:
            rules: the value of each word.
            slip_rate: probability of an arithmetic error in each step that is not given.
            rng: source of the errors; None makes none.
            given_results: results of steps to copy instead of computing them.
        """
        value, steps, stated = self.start, [], []
        known: set[str] = set()
        for sign, operand in self.operations:
            rule = None
            number = operand
            if isinstance(operand, str):
                number = rules[operand]
                rule = None if operand in known else (operand, number)
                known.add(operand)
            assert isinstance(number, int)
            result = apply(value, sign, number)
            if given_results is not None and (value, sign, number) in given_results:
                result = given_results[value, sign, number]
            elif rng is not None and rng.random() < slip_rate:
                result = (result + rng.choice(SLIPS)) % MODULUS

            steps.append((value, sign, number, result))
            stated.append(rule)
            value = result
        return Worked(tuple(steps), tuple(stated))


def written(worked: Worked, *, in_own_style: bool = True) -> str:
    """The text of a worked chain.

    The model's own style, used for answers, is one running formula, which a rule interrupts. The
    other style, used for rationales, has a line for each step and each rule.
    """
    text = ""
    for (value, sign, number, result), rule in zip(worked.steps, worked.stated, strict=True):
        done = rf"{_SIGNS[sign]}{number} \equiv {result}"
        if not in_own_style:
            text += "" if rule is None else f"{rule_text(*rule)}\n"
            text += f"${value}{done}$.\n"
            continue
        if rule is not None:
            text += f"$. {rule_text(*rule)} ${value}" if text else f"{rule_text(*rule)} ${value}"
        elif not text:
            text = f"${value}"
        text += done
    ending = f"is ${boxed(worked.steps[-1][-1])}$."
    return f"{text}$.\nThe answer {ending}" if in_own_style else f"{text}The result {ending}"


def rule_text(word: str, value: int) -> str:
    """The sentence that states a rule."""
    return f"A {word} is ${value}$."


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


def visible_rules(text: str) -> dict[str, int]:
    """Parse the rules that a text states completely."""
    return {rule["word"]: int(rule["value"]) for rule in _RULE.finditer(text)}


def apply(value: int, sign: str, operand: int) -> int:
    """The result of one operation modulo 100."""
    match sign:
        case "+":
            return (value + operand) % MODULUS
        case "-":
            return (value - operand) % MODULUS
        case _:
            return (value * operand) % MODULUS


def random_rules(words: Sequence[str], rng: random.Random) -> dict[str, int]:
    """A value for each word."""
    return {word: rng.choice(VALUES) for word in words}


def random_chain(
    rng: random.Random,
    words: Sequence[str],
    lengths: tuple[int, int] = LENGTHS,
    word_counts: Mapping[int, float] = WORD_COUNTS,
) -> Chain:
    """A chain of different operations with small operands, about one in five a multiplication."""
    length = rng.randint(*lengths)
    [count] = rng.choices(list(word_counts), list(word_counts.values()))
    operations: dict[Operation, None] = {}
    for word in rng.sample(list(words), count):
        signs = "+-" if rng.random() < 0.2 else rng.choice("+-")
        operations |= dict.fromkeys((sign, word) for sign in signs)
    while len(operations) < length:
        sign = rng.choice("++--*")
        operations[sign, rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)] = None
    mixed = rng.sample(list(operations), len(operations))
    return Chain(rng.randint(0, MODULUS - 1), tuple(mixed))


def is_held_out(chain: Chain) -> bool:
    """Whether a chain is held out, from pretraining, too: one in ten, by its hash."""
    return _digest(chain)[0] % 10 == 0


def random_chains(count: int, words: Sequence[str], *, seed: int, held_out: bool) -> list[Chain]:
    """Draw different chains, all held out or all for training; depends on the seed alone."""
    rng = random.Random(seed)
    chains: dict[Chain, None] = {}
    while len(chains) < count:
        chain = random_chain(rng, words)
        if is_held_out(chain) == held_out:
            chains[chain] = None
    return list(chains)


def _digest(chain: Chain) -> bytes:
    return hashlib.sha256(chain.problem.encode()).digest()
