r"""Names that an answer declares as free: 2n+1, n \in \mathbb{Z} is 2k+1, k \in \mathbb{Z}.

A name is declared by a membership (k \in \mathbb{Z}, t \in \mathbb{R}) or by words (k is an
integer, for any integer k). Of two answers that each declare names, those of one are written by the
names of the other. Where one alone declares an integer, the only letter of the other that it does
not have is taken for it.
"""

import re

_SET = (
    r"(?:\\mathbb\s*(?:\{\s*[NZQRC]\s*\}|[NZQRC])|\\[NZQRC](?![A-Za-z])|[ℕℤℚℝℂ]"  # noqa: RUF001
    r"|[NZQRC](?![A-Za-z]))"
)
_IN = r"\s*(?:\\in(?![A-Za-z])|∈)\s*"
_BETWEEN = r"(?:[\s$,]|\\[,;: ]|\\text\s*\{|\})*+"
_IS = rf"(?:(?:is|are|be)(?![A-Za-z]){_BETWEEN})?(?:(?:an|any)(?![A-Za-z]){_BETWEEN})?"
IS_IN_SET = rf"{_IN}(?P<set>{_SET})"
IS_INTEGER = rf"{_BETWEEN}{_IS}integers?(?![A-Za-z])"
"""What follows a name that is declared."""

# Names in a row stand behind a sign or a word: in 2\pi n, k \in \mathbb{Z} n is none.
_ROW = r"(?:(?<=[,;(:|])|(?<=[,;(:|}]\s)|(?<=for\s)|(?<=all\s))[A-Za-z](?:\s*,\s*[A-Za-z])+"
_NAMES = rf"(?P<names>{_ROW}|(?<![A-Za-z\\])[A-Za-z])(?![A-Za-z])"
_DECLARATIONS = (
    re.compile(rf"{_NAMES}(?:{IS_IN_SET}|{IS_INTEGER})"),
    re.compile(rf"(?<![A-Za-z])integers?{_BETWEEN}{_NAMES}"),
)
_RELATION = re.compile(rf"\s*(?:[=<>≤≥≠]|\\(?:[lg]eq?|ne)(?![A-Za-z])|{_IN})")
_INTEGERS = "ZNℤℕ"  # noqa: RUF001

# Commands are passed over, and words: a run of two letters is a product, such as nx.
_RUN = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_WORDS = frozenset(("or", "if", "is", "an", "in", "of", "to", "by", "no"))


def with_names_of(gold: str, given: str, *, answers: tuple[str, str]) -> str:
    """The given text with the free names of the gold one.

    ``answers`` are both texts, the gold one first, without their conditions.
    """
    names, own = _declared(gold), _declared(given)
    new: dict[str, str] = {}
    if len(names) == len(own):
        new = dict(zip(own, names, strict=True))
    elif {len(names), len(own)} == {0, 1}:
        letters, own_letters = map(_letters, answers)
        only_own, only_gold = own_letters - letters, letters - own_letters
        is_declared = (only_gold if names else only_own) == {
            name for name, is_integer in (names or own).items() if is_integer
        }
        if is_declared and len(only_own) == len(only_gold) == 1:
            new = {only_own.pop(): only_gold.pop()}
    new = {name: target for name, target in new.items() if name != target}
    taken = _letters(given) - set(new)
    if not new or taken & set(new.values()):
        return given
    return _RUN.sub(lambda run: _renamed(run[0], new), given)


def _declared(text: str) -> dict[str, bool]:
    """The free names that a text declares, and whether each is an integer."""
    found: dict[str, bool] = {}
    for pattern in _DECLARATIONS:
        for declaration in pattern.finditer(text):
            kind = declaration.groupdict().get("set") or "Z"  # or "integer", in words
            for name in re.findall("[A-Za-z]", declaration["names"]):
                is_unknown = text.startswith(name) and _RELATION.match(text, 1)
                if not is_unknown:  # x = 5, x \in \mathbb{Z}
                    found[name] = any(sign in kind for sign in _INTEGERS)
    return found


def _letters(text: str) -> set[str]:
    return {letter for run in _RUN.findall(text) if _is_product(run) for letter in run}


def _is_product(run: str) -> bool:
    return run.isalpha() and len(run) <= 2 and run not in _WORDS


def _renamed(run: str, new: dict[str, str]) -> str:
    if not _is_product(run):
        return run
    return "".join(new.get(letter, letter) for letter in run)
