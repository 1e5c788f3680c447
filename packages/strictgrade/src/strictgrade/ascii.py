r"""ASCII spellings of mathematics, rewritten to LaTeX.

    2*pi -> 2*\pi     sqrt(2)/2 -> \sqrt{2}/2     x**(n+1) -> x^{(n+1)}     theta -> \theta

Names are rewritten as words of their own only: `pi` in `2pi` is the constant, in `spin` it is not.
`xi` is a letter only where nothing else stands, because in `3+xi` it is x times i. `sec` without
an argument is the second, and `max` and `min` without one are words.
"""

import re

GREEK = dict(
    re.findall(
        "([A-Za-z]+)(.)",
        "alphaαbetaβgammaγdeltaδepsilonεzetaζetaηthetaθiotaιkappaκlambdaλmuμnuνxiξpiπrhoρsigmaσtauτ"  # noqa: RUF001
        "upsilonυphiφchiχpsiψomegaωGammaΓDeltaΔThetaΘLambdaΛXiΞPiΠSigmaΣPhiΦPsiΨOmegaΩ",  # noqa: RUF001
    )
)
"""Greek letters by name."""

_BEFORE_NAME, _AFTER_NAME = r"(?<![A-Za-z\\])", r"(?![A-Za-z])"
_LETTERS = "|".join(name for name in GREEK if name != "xi")
_LETTER = re.compile(rf"{_BEFORE_NAME}(?:{_LETTERS}){_AFTER_NAME}|^xi$")
_INFINITY = re.compile(rf"{_BEFORE_NAME}(?:[iI]nfinity|inf|oo){_AFTER_NAME}(?!_)")

# arctan, atan and tanh; log, ln and exp.
_FUNCTION = re.compile(
    rf"{_BEFORE_NAME}(?:(?P<inverse>a(?:rc)?)?(?P<angle>(?:sin|cos|tan|cot|csc)h?|sech?(?=\s*[(^]))"
    rf"|(?P<other>log|ln|exp|sqrt)){_AFTER_NAME}"
)

_CALLS = {
    "sqrt": (r"\sqrt{", "}"),
    "cbrt": (r"\sqrt[3]{", "}"),
    "abs": (r"\left|", r"\right|"),
    "floor": (r"\lfloor ", r"\rfloor "),
    "ceil": (r"\lceil ", r"\rceil "),
    "ceiling": (r"\lceil ", r"\rceil "),
    "factorial": ("(", ")!"),
    "binom": (r"\binom{", "}"),
    "binomial": (r"\binom{", "}"),
    "log2": (r"\log_{2}(", ")"),
    "log10": (r"\log_{10}(", ")"),
    "": ("(", ")"),
}
"""What stands for a call's name and opening bracket, and for its closing bracket.

Exponents in brackets, as in x^(n+1), get braces, too.
"""

_NAMES = "|".join(name for name in _CALLS if name.isalnum())
_TOKEN = re.compile(
    rf"(?P<power>\^\s*)?(?:(?:(?P<root>√|\\sqrt)|{_BEFORE_NAME}(?P<name>{_NAMES}))\s*)?(?P<open>\()"
    r"|[),]"
)

_POWER = re.compile(r"(?<=[A-Za-z0-9)}\]])\s*\*\*\s*(?=[A-Za-z0-9({\\+-])")
_POINT = re.compile(r"(?<![0-9.])([0-9]+)\.(?=\s*(?:[-+*/^)}\],;]|\\(?:cdot|times|div|pi)|$))")
_UNION = re.compile(r"(?<=[)\]\[])\s+U\s+(?=(?:\\left\s*)?[(\[\]])")


def latex_of_ascii(text: str) -> str:
    """The text with ASCII names, calls and signs in LaTeX; what is LaTeX already stays."""
    # Before the calls, in which exponents in brackets get braces.
    text = _POWER.sub("^", text)
    text = _POINT.sub(r"\1", text)  # 1./3
    text = _UNION.sub(r"\\cup ", text)
    text = text.replace("+/-", r"\pm ")
    text = _with_calls(text)
    text = _INFINITY.sub(r"\\infty", text)
    text = _FUNCTION.sub(_function, text)
    return _LETTER.sub(r"\\\g<0>", text)


def _function(name: re.Match[str]) -> str:
    if name["other"]:
        return rf"\{name['other']}"
    inverse = "arc" if name["inverse"] else ""
    return rf"\{inverse}{name['angle']}"


def _with_calls(text: str) -> str:
    """Rewrite calls such as sqrt(2), each with its closing bracket; unclosed ones stay."""
    written: list[str] = []
    position = 0
    calls: list[tuple[str, str]] = []  # name and closing text of the open ones
    for token in _TOKEN.finditer(text):
        new = token[0]
        if token["open"]:
            name = "sqrt" if token["root"] else token["name"] or ""
            new, closing = _CALLS[name]
            if token["power"]:
                name, new, closing = name or "^", f"^{{{new}", f"{closing}}}"
            calls.append((name, closing))
        elif new == ")" and calls:
            new = calls.pop()[1]
        elif new == "," and calls and calls[-1][0].startswith("binom"):
            new = "}{"
        written += text[position : token.start()], new
        position = token.end()
    if any(name for name, _ in calls):
        return text
    return "".join([*written, text[position:]])
