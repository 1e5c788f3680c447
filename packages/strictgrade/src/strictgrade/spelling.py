r"""Spellings of an answer that are rewritten before anything is compared.

    3✕4 -> 3×4    Ⓐ -> (A)    {5 \choose 2} -> \binom{5}{2}    1'234'567 -> 1234567
    1.5e-8 -> 1.5\cdot 10^{-8}    7 million -> 7\cdot 10^6

It also bounds how deep an answer may be nested: what is deeper is compared as text only.
"""

import re

from strictgrade.text import plain_characters

WRAPPER = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox)\s*\{"

# Characters; longer answers are compared as integers and as text only.
LONGEST_ANSWER = 2000

DEEPEST = 30
"""Brackets in brackets, and signs in a row, that an answer may have."""

MOST_STEPS = 200
"""Signs and names of a formula that may follow each other or enclose others."""

# --- Characters

_CIRCLED_CAPITALS = (0x24B6, 0x1F110, 0x1F130, 0x1F150, 0x1F170)  # Ⓐ 🄐 🄰 🅐 🅰
_CIRCLED_LETTERS = (0x249C, 0x24D0)  # ⒜ ⓐ
_CHARACTERS: dict[int, str] = {
    first + n: f"({chr(ord(letter) + n)})"
    for letter, firsts in (("A", _CIRCLED_CAPITALS), ("a", _CIRCLED_LETTERS))
    for first in firsts
    for n in range(26)
} | dict.fromkeys(map(ord, "✕✖⨯⨉"), "×")  # noqa: RUF001
_INVISIBLE_SIGNS = {"\u2062": r"\cdot ", "\u2063": ",", "\u2064": "+"}
_INVISIBLE_SIGN = re.compile(
    r"(?<=[\w)\]}!])\s*([\u2062-\u2064])\s*(?=[\w(\[{\\√])|[\u2062-\u2064]"
)


def plain_signs(text: str) -> str:
    """The text in plain characters, with letters in circles in brackets."""
    if text.isascii():
        return text
    return plain_characters(text.translate(_CHARACTERS))


# --- Commands

_THREE_DIGITS = r"[0-9]{3}(?![0-9])"
_COMMANDS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:nice|s|x)frac(?![A-Za-z])", r"\\frac"),
        (r"\\color\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}", ""),
        (r"\\(?:pounds|textsterling)(?![A-Za-z])\s*", "£"),
        (r"\\(?:euro|EUR|texteuro)(?![A-Za-z])\s*", "€"),
        (r"\\(?:yen|textyen)(?![A-Za-z])\s*", "¥"),
        (r"\\(?:rupee|textrupee)(?![A-Za-z])\s*", "₹"),
        (r"\\(?:cent|textcent)(?![A-Za-z])\s*", "¢"),
        (r"\\(?:text|math)dollar(?![A-Za-z])\s*", r"\\$"),
        (r"\\math(?:open|close)\s*(?:\{\s*([\[\]()])\s*\}|(?=[\[\]()]))", r"\1"),
        (r"\\(?:text)?circled\s*\{\s*(?:\\[a-z]+\s*)?([A-Za-z])\s*\}", r"(\1)"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\thinspace(?![A-Za-z])\s*", r"\\,"),
        (r"\\(?:text|mathord|mathrm)\s*\{,\}", "{,}"),
        (r"(?<=[0-9])\s*\{:\}\s*(?=[0-9])", ":"),
        (r"\{\s*(\\,)\s*\}", r"\1"),
        # Mixed numbers with braces: {2}\frac12 and 2{\frac12}.
        (r"(?:^|(?<=[-+=(,\s]))\{\s*([0-9]+)\s*\}(?=\s*\\[dtc]?frac)", r"\1"),
        (r"(?<=[0-9])\s*\{(\\[dtc]?frac\s*(?:[0-9]{2}|\{[0-9]+\}\s*\{[0-9]+\}))\s*\}", r"\1"),
    )
)
_COLOR = re.compile(  # with the brace of its text
    r"\\(?:textcolor|colorbox|fcolorbox\s*\{[^{}]*\})\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}\s*(\{)?"
    r"|\\ensuremath\s*(\{)"
)
_INFIX = re.compile(r"\\(choose|over)(?![A-Za-z])")
_INFIX_COMMANDS = {"choose": r"\binom", "over": r"\frac"}
_BRACKETS = re.compile(r"\\.|[{}]", re.DOTALL)


def plain_commands(text: str) -> str:
    r"""Rewrite commands of packages and of plain TeX: \nicefrac, \textcolor, \choose, \pounds.

    Invisible signs of products are written.
    """
    text = _INVISIBLE_SIGN.sub(lambda sign: _INVISIBLE_SIGNS.get(sign[1], ""), text)
    if "\\" not in text and "{" not in text:
        return text
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    while color := _COLOR.search(text):
        before, after = text[: color.start()], text[color.end() :]
        if color[1] or color[2]:
            end = _group_end(after, 0)
            # Arguments keep their braces.
            content = after[:end]
            if before.rstrip().endswith(("^", "_")):
                content = f"{{{content}}}"
            after = content + after[end + 1 :]
        text = before + after
    while infix := _INFIX.search(text):
        start, end = _group_start(text, infix.start()), _group_end(text, infix.end())
        top, bottom = text[start : infix.start()].strip(), text[infix.end() : end].strip()
        command = _INFIX_COMMANDS[infix[1]]
        text = f"{text[:start]}{command}{{{top}}}{{{bottom}}}{text[end:]}"
    return text


def _group_end(text: str, start: int) -> int:
    """Where the group that has this place ends: at its closing brace, or the end of the text."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(bracket[0], 0)
        if depth < 0:
            return bracket.start()
    return len(text)


def _group_start(text: str, end: int) -> int:
    """Where the group that has this place begins: behind its opening brace, or a sign =."""
    starts = [text.rfind("=", 0, end) + 1]
    for bracket in _BRACKETS.finditer(text, 0, end):
        if bracket[0] == "{":
            starts.append(bracket.end())
        elif bracket[0] == "}" and len(starts) > 1:
            starts.pop()
    return starts[-1]


# --- Numbers

# 1'234'567, 1.234.567, 1_234_567 and 1 234.5. One point alone is decimal, and one _ an index.
_GROUPS = re.compile(
    r"(?<![\w.,'])[0-9]{1,3}(?:(?:['’][0-9]{3})++(?![\w'])"  # noqa: RUF001
    r"|(?:\.[0-9]{3}){2,}+(?![\w.]|,[0-9])|(?:_[0-9]{3}){2,}+(?![\w.])"
    r"|(?:[ ~][0-9]{3})++(?=\.[0-9]))"
)
_SPACED_GROUPS = re.compile(
    rf"(?<![\w.,}}])[0-9]{{1,3}}(?:(?:(?:\\!)?,\\!|\{{,\}}|\s?\\[,;:]\s?){_THREE_DIGITS})++"
)


def joined_thousands(text: str) -> str:
    """Numbers without their separators of thousands, except for commas and blanks."""
    text = _GROUPS.sub(lambda number: re.sub("[^0-9]", "", number[0]), text)
    return _SPACED_GROUPS.sub(lambda number: re.sub("[^0-9]", "", number[0]), text)


_POWERS = {"dozen": "12", "tens": "10", "hundred": "10^2", "thousand": "10^3", "lakh": "10^5"}
_POWERS |= {"million": "10^6", "crore": "10^7", "billion": "10^9", "trillion": "10^{12}"}
_POWERS |= {"quadrillion": "10^{15}", "quintillion": "10^{18}"}
_MAGNITUDE = re.compile(
    rf"(?<=[0-9])(?:[\s~]|\\[,;: ])*+({WRAPPER}\s*)?({'|'.join(_POWERS)})s?(?![A-Za-z])"
)
# 1.5e-8 and 15e8. In a formula 3e-1 may have Euler's number; as a complete value it is a number.
_SCIENTIFIC = re.compile(
    r"(?<![A-Za-z0-9.}])(?:([0-9]+\.[0-9]+)[eE]([+-]?[0-9]+)|([0-9]+)[eE]([0-9]+))(?![A-Za-z0-9.])"
)
_JUNCTION = (  # what stands between values
    r"[,;=<>≤≥≈]|\\(?:le|ge|leq|geq|approx)(?![A-Za-z])"
    rf"|(?:{WRAPPER}\s*)?(?<![A-Za-z])(?:and|or)\s*\}}?"
)
_SCIENTIFIC_VALUE = re.compile(
    rf"((?:^|[(\[]|\\\{{|{_JUNCTION})\s*[+-]?)"
    r"([0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)[eE]([+-]?[0-9]{1,6})"
    rf"(?=\s[A-Za-z]|\s*(?:$|[)\]]|\\\}}|{_JUNCTION}))"
)
# 7\text{K} is 7000, but 7\text{ K} may be a temperature.
_SHORT_MAGNITUDE = re.compile(rf"(?<=[0-9]){WRAPPER}([KkMB]|bn|mn)\}}")
_SHORT_POWERS = {"K": "10^3", "k": "10^3", "M": "10^6", "mn": "10^6", "B": "10^9", "bn": "10^9"}


def with_magnitudes(text: str, *, has_letters: bool = True) -> str:
    """Words and letters of magnitude as powers of ten; the letters K, M and B only if asked for."""
    text = _SCIENTIFIC.sub(r"\1\3\\cdot 10^{\2\4}", text)
    if has_letters:
        text = _SHORT_MAGNITUDE.sub(lambda letter: rf"\cdot {_SHORT_POWERS[letter[1]]}", text)
    return _MAGNITUDE.sub(lambda word: rf"\cdot {_POWERS[word[2]]}{word[1] or ''}", text)


def with_powers(text: str) -> str:
    """Complete values such as 1e-8 as powers of ten."""
    return _SCIENTIFIC_VALUE.sub(_as_power, text)


def _as_power(number: re.Match[str]) -> str:
    """1e-8 as a power of ten; within brackets, as in (3e-1)x, it is a formula and stays."""
    before, digits, exponent = number.groups()
    after = number.string[number.end() :].lstrip()
    if before.startswith("(") and after.startswith(")"):
        return number[0]
    return rf"{before}{digits.rstrip('.')}\cdot 10^{{{int(exponent)}}}"


# --- Depth

_OPENING, _CLOSING = frozenset("([{⟮"), frozenset(")]}⟯")
_ROW = re.compile(  # signs, commands or exponents in a row are read as one in the other
    rf"(?:[-+±∓√!'^]\s*|\\(?![,;:! \\{{}}])[A-Za-z]*\s*){{{DEEPEST + 1}}}"
    rf"|(?:\^[^\s{{}}()^]{{1,9}}){{{DEEPEST + 1}}}"
)
_STEP = re.compile(r"\\[A-Za-z]+|[^\W\d]|[-+*/^!'±|]|[(\[{⟮)\]}⟯]")


def is_too_deep(text: str) -> bool:
    """True if brackets are nested, or signs stand in a row, deeper than in any real answer."""
    depth = deepest = 0
    for character in text:
        if character in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif character in _CLOSING:
            depth = max(depth - 1, 0)
    return deepest > DEEPEST or _ROW.search(text) is not None


def is_too_large(formula: str) -> bool:
    """True if more signs and names follow each other, or enclose others, than in any real answer.

    The parser's stack grows with them.
    """
    sizes = [0]  # of the open brackets
    height = 0
    for step in _STEP.findall(formula):
        if step in _CLOSING:
            height -= sizes.pop() if len(sizes) > 1 else 0
            continue
        sizes[-1] += 1
        height += 1
        if height > MOST_STEPS:
            return True
        if step in _OPENING:
            sizes.append(0)
    return False
