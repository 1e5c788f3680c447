r"""One spelling for mathematical text: LaTeX, Unicode and ASCII.

    text -> mark -> symbols and marks -> unmark -> canonical -> normalised text

There is no algebra here: `1/4` and `\frac{1}{4}` are two spellings and become one, `(a+b)^2` and
its expansion do not. No function raises on any text, and each takes time linear in its length.
"""

import re
import unicodedata

# Boundaries of formulas, cells and boxes. These control characters are in a text only while it is
# parsed; normalisation turns them into blanks.
START, END, CUT, BOX, UNBOX = MARKS = "\x01\x02\x03\x04\x05"

_UNICODE: dict[int, int | str] = str.maketrans(
    "–×·⋅∗÷⩽⩾′’∆µϵϕ~" + MARKS,  # noqa: RUF001
    "-****/≤≥''Δμεφ " + " " * len(MARKS),
) | {ord("√"): "\\sqrt "}

# Unicode's compatibility characters by class. ℝ, ℕ, ℓ, ① and … stay, because R, N, l, 1 and three
# dots are something else.
_SUPERSCRIPTS = "⁰¹²³⁴-⁹⁺⁻⁼⁽⁾ⁱⁿᴬ-ᴮᴰ-ᴱᴳ-ᴺᴼᴾᴿᵀᵁᵂᵃᵇᵈᵉᵍᵏᵐᵒᵖᵗᵘᵛᶜᶠᶻʰʲʳʷʸˡˢˣᵝ-ᵡⱽ"
_SUBSCRIPTS = "₀-₉₊₋₌₍₎ₐ-ₜᵢ-ᵪⱼ"
_FRACTIONS = "¼-¾⅐-⅞"
_UNITS = "\u3371-\u33df"  # ㎝, ㎡
_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2061\u2066-\u2069\ufe00-\ufe0f\ufeff"
_FULL_WIDTH = "\uff01-\uff5a\uff5c\uff5e\uffe0-\uffe6\ufe50-\ufe6b"
_STYLED = "\U0001d400-\U0001d7ffℊℎℐℒℛℬℯℰℱℳℴⅅ-ⅉⅠ-ⅿ\u2126\u212a\u212b℃℉"  # noqa: RUF001
_SAME_SIGNS: dict[int, int | str] = str.maketrans(
    "\u2010\u2011\u2012\u2212\u2044\u2215\u2236º˚。、",
    "----//:°°.,",
) | {0xFF5B: "\\{", 0xFF5D: "\\}"}  # full-width braces are no braces of LaTeX
_COMPATIBLE = re.compile(
    rf"(?P<quotient>[⁰¹²³⁴-⁹]+[\u2044/][₀-₉]+)|(?P<unit>[{_UNITS}])"
    rf"|(?P<raised>[{_SUPERSCRIPTS}]+)|(?P<lowered>[{_SUBSCRIPTS}]+)|(?P<fraction>[{_FRACTIONS}])"
    rf"|(?P<invisible>[{_INVISIBLE}]+)|[{_SPACES}{_FULL_WIDTH}{_STYLED}]+"
)
_SYMBOLS = r"""
\frac dfrac tfrac cfrac; \binom dbinom tbinom; * cdot times ast; / div; ± pm
… dots ldots cdots dotsc dotsb; ≤ le leq leqslant; ≥ ge geq geqslant; ≠ ne neq; ≈ approx; ≡ equiv
∈ in; | mid vert lvert rvert; ∞ infty; → to rightarrow longrightarrow
⇒ implies Rightarrow Longrightarrow; ⇔ iff Leftrightarrow Longleftrightarrow; ℓ ell
∅ emptyset varnothing; ° degree; ' prime; ∠ angle; △ triangle; \{ lbrace; \} rbrace; α alpha; β beta
γ gamma; δ delta; ε epsilon varepsilon; ζ zeta; η eta; θ theta vartheta; ι iota; κ kappa; λ lambda
μ mu; ν nu; ξ xi; π pi; ρ rho; σ sigma; τ tau; φ phi varphi; χ chi; ψ psi; ω omega; Γ Gamma; Δ Delta
Θ Theta; Λ Lambda; Ξ Xi; Π Pi; Σ Sigma; Φ Phi; Ψ Psi; Ω Omega
"""  # noqa: RUF001
FUNCTIONS = """
sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp gcd lcm max min sup inf
lim det dim ker deg
"""
_SILENT = """
left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle
textstyle limits nolimits hfill hline noindent nonumber rm bf it begin end tag label phantom
hphantom vphantom hspace vspace color pmod mbox hbox text textbf textit textrm textnormal mathrm
mathbf mathit mathsf boldsymbol bm operatorname emph underline boxed fbox framebox
"""
_COMMANDS = (
    {
        name: symbol
        for symbol, *names in map(str.split, re.split("[;\n]", _SYMBOLS.strip()))
        for name in names
    }
    | {name: f" {name} " for name in FUNCTIONS.split()}
    | {"bmod": " mod ", "mod": " mod ", "quad": CUT, "qquad": CUT}
    | dict.fromkeys(_SILENT.split(), " ")
)
_ESCAPES = {"{": "\\{", "}": "\\}", "|": "‖", "\\": CUT} | dict.fromkeys("$&~ ,;:/!>\n", " ")
_NO_FORMULA = {"itemize", "enumerate", "center", "proof", "figure", "table", "tabular", "quote"}

# Words within a formula separate two statements: $a=1\text{ or }b>2$.
_CONNECTIVE_WORD = r"(?:and|or|if|for|where|so|then|with|when|since|all)(?![A-Za-z])"
_WRAPPER_NAME = (
    r"text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname|[mh]box|emph"
    r"|underline|pmod"
)
_THREE_DIGITS = r"(?=[0-9]{3}(?![0-9]))"

# The last group that takes part in a match identifies the alternative (re.Match.lastgroup), so some
# groups are empty and placed at the end. Possessive and bounded repetitions keep the search linear.
_LATEX = re.compile(
    "|".join(
        (  # the first match wins
            # A command replaces both braces around its argument, so every brace is matched.
            r"\{(?P<open>)",
            r"\}(?P<close>)",
            # Numbers of equations, invisible and coloured text: no mathematics in the argument.
            r"\\(?:tag|label|[hv]?phantom|[hv]space|color)\*?\s*+\{[^{}]{0,40}\}",
            # \left. and \right. have no bracket, and their dot is not a full stop.
            r"\\(?:left|right)(?![A-Za-z])\s*+\.",
            # An environment, with the columns of an array.
            r"\\(?P<edge>begin|end)\s*+\{(?P<environment>[A-Za-z]{1,20})\*?\}(?:\s*+\{[lcr|\s]{0,20}\})?",
            # A box, with the options of \framebox[3em]{...}.
            r"\\(?:boxed|fbox|framebox)(?![A-Za-z])(?:\[[^\]{}$]{0,20}\])*+"
            r"\s*+(?:(?P<box>\{)|(?P<boxed>[0-9]++|[A-Za-z]))",
            rf"\\(?P<wrapper>{_WRAPPER_NAME})\*?\s*+\{{(?P<connective>(?:\s*+{_CONNECTIVE_WORD})++)?",
            r"\\pmod(?![A-Za-z])\s*+(?P<modulus>[0-9]++|[A-Za-z])",  # without braces
            r"\\(?P<command>[A-Za-z]++)",  # after every command with a special meaning
            rf",(?<=[0-9],)\\!{_THREE_DIGITS}(?P<comma>)",  # 1,\!000, as MATH writes it
            rf"\\(?<=[0-9]\\),{_THREE_DIGITS}(?P<thin>)",  # 1\,000
            r"\\\\\[[0-9.]{1,6}[a-z]{2}\](?P<row>)",  # \\[4pt]; without a distance it is an escape
            r"\\(?P<bracket>[()\[\]])",
            r"\\(?P<escape>.?)",  # after everything else that begins with a backslash
            r"\$(?P<dollar>\$?)",
            r"&(?P<cell>)",
        )
    ),
    re.DOTALL,
)


def normalize(text: str) -> str:
    r"""Rewrite mathematical text to one spelling (paper: Norm in the overlap score).

    Delimiters, spacing, sizes and commands such as \text and \boxed are removed around their
    contents. LaTeX, Unicode and ASCII spellings of a symbol become one. Arguments get braces
    (`\frac12`, `x^2`); `3/4` becomes \frac{3}{4}. 1,000, 1{,}000 and 1\,000 become 1000, but
    (2,251,252) stays a list. Blanks are kept between words and between numbers only. Case is kept,
    and so are trailing zeros (they state a precision). Idempotent.
    """
    return canonical(unmark(mark(text)))


def plain_characters(text: str) -> str:
    r"""Replace Unicode's compatibility characters by plain ones, by NFKC.

    Full-width and styled letters, digits and signs, and blanks of all widths become ASCII or Greek;
    hyphens and minus signs become `-`; zero-width characters are removed. `10⁻³` becomes 10^{-3},
    `x₁` becomes x_{1}, and `⅓` becomes \frac{1}{3}.
    """
    if text.isascii():
        return text
    return _COMPATIBLE.sub(_plain_character, text).translate(_SAME_SIGNS)


def _plain_character(characters: re.Match[str]) -> str:
    plain = unicodedata.normalize("NFKC", characters[0])
    match characters.lastgroup:
        case "raised":
            return f"^{{{plain}}}"
        case "lowered":
            return f"_{{{plain}}}"
        case "fraction" | "quotient":
            top, bottom = re.split("[\u2044/]", plain)
            return rf"\frac{{{top}}}{{{bottom}}}"
        case "unit":
            return " " + re.sub("[23]$", r"^{\g<0>}", plain)
        case "invisible":
            return ""
    return plain


def mark(text: str) -> str:
    """Replace each command by its symbol, and mark the edges of formulas, cells and boxes."""
    text = plain_characters(text).translate(_UNICODE)
    written: list[str] = []
    position = 0
    closers: list[str] = []  # replacements for the closing braces of the open ones
    formula = ""  # opening delimiter of the current formula; empty in prose

    for match in _LATEX.finditer(text):
        kind, value = match.lastgroup, match[match.lastgroup or 0]
        new, delimiter, opens = " ", "", False

        match kind:
            case "dollar" if formula == "$" and value:  # the middle of $a$$b$
                new = END + START
            case "dollar":
                delimiter, opens = "$" + value, not formula
            case "close":
                new = closers.pop() if closers else "}"
            case "open":
                closers.append("}")
                new = "{"
            case "command":
                new = _COMMANDS.get(value, match[0])
            case "bracket":
                delimiter, opens = {")": "(", "]": "["}.get(value, value), value in "(["
            case "escape":
                new = _ESCAPES.get(value, value or " ")
            case "cell" | "row":
                new = CUT
            case "wrapper":
                closers.append(")" if value == "pmod" else " ")
                new = "(mod " if value == "pmod" else " "
            case "connective":
                closers.append(" ")
                new = CUT + value + CUT
            case "environment" if value not in _NO_FORMULA:
                delimiter, opens = value, match["edge"] == "begin"
            case "box":
                closers.append(UNBOX)
                new = BOX
            case "boxed":
                new = BOX + value + UNBOX
            case "modulus":
                new = f"(mod {value})"
            case "comma" | "thin":
                new = ","

        if delimiter:
            if opens and not formula:
                formula, new = delimiter, START
            elif formula == delimiter and not opens:
                formula, new = "", END
            else:  # a delimiter inside a formula with another delimiter
                new = CUT

        written += text[position : match.start()], new
        position = match.end()

    return "".join([*written, text[position:]])


LETTER = r"[^\W\d_]"

# The edge of a box between two letters, and between a number and a comma.
_ONE_LETTER_BEFORE = rf"(?<={LETTER})(?<!{LETTER}{LETTER})"
_TO_EDGE = rf"[\s{START}{END}{CUT}]*+[{BOX}{UNBOX}]"
_LETTERS_AT_BOX = re.compile(
    rf"{_ONE_LETTER_BEFORE}{_TO_EDGE}[\s{MARKS}]*+(?={LETTER}(?!{LETTER}))"
)
_COMMA_AT_BOX = re.compile(rf"(?<![\s{MARKS}]){_TO_EDGE}[\s{MARKS}]*+,(?=[0-9])")


def unmark(text: str) -> str:
    r"""Replace marks by blanks, without joining a box to the text next to it.

    `\boxed{x}y` becomes x*y, where a blank would be removed as loose, and `\boxed{5},000` a list.
    """
    if BOX in text or UNBOX in text:
        text = _LETTERS_AT_BOX.sub("*", text)
        text = _COMMA_AT_BOX.sub(", ", text)

    for sign in MARKS:  # str.translate is slow beyond ASCII
        text = text.replace(sign, " ")
    return text


_DIGIT_OR_LETTER = rf"([0-9]|{LETTER})"

# A blank is loose (removable) unless it separates numbers or words. It is loose in the product
# `a b`.
_TIGHT_AFTER_BLANK = "|".join(
    (
        r"(?<=[0-9.] )\.?[0-9]",
        r"(?<=[0-9], )[0-9]",
        rf"(?<={LETTER} ){LETTER}{{2}}",
        rf"(?<={LETTER}{LETTER} ){LETTER}",
    )
)
_LOOSE_BLANK = re.compile(rf" (?!{_TIGHT_AFTER_BLANK})")

_ASCII = (
    ("<=>", "⇔"),
    ("<=", "≤"),
    (">=", "≥"),
    ("=>", "⇒"),
    ("->", "→"),
    ("\\not=", "≠"),
    ("...", "…"),
)


def _join_thousands(match: re.Match[str]) -> str:
    """Remove the commas of 1,000,000, but keep (1,000) in brackets as a list of two numbers."""
    before = match.string[max(match.start() - 2, 0) : match.start()]
    after = match.string[match.end() : match.end() + 1]
    is_list = before.endswith(("(", "[", "\\{")) and after in (")", "]", "\\", ",")
    if is_list:
        return match[0]
    return match[0].replace(",", "")


_FIRST_DIGITS = r"[1-9](?<![0-9.^_].)(?<![0-9…],.)[0-9]{0,2}+"
_TWO_ARGUMENTS = r"\\(frac|binom)"
_BRACED = r"(\{(?:[^{}]++|\{[^{}]*+\})*+\})"

# The look-behinds come after the first character, so that the search can skip to that character.
_REWRITES = tuple(
    (sign, re.compile(pattern), replacement)
    for sign, pattern, replacement in (  # a text without the sign is skipped
        ("{,}", rf"\{{,\}}(?<=[0-9]\{{,\}}){_THREE_DIGITS}", ""),
        (",", rf"{_FIRST_DIGITS}(?:,[0-9]{{3}})++(?![0-9]|,[0-9…])", _join_thousands),
        (",", r",(?<=[0-9],)(?=[0-9])", ", "),  # a comma that separates no thousands: of a list
        (r"\circ", r"\^(?:\{\\circ\}|\\circ(?![A-Za-z]))", "°"),
        ("'", r"\^(?<!\^\^)\^*+(?:\{('++)\}|('++))", r"\1\2"),  # raised primes
        # Arguments without braces: of scripts, fractions and roots.
        ("", rf"([\^_])(-?[0-9]++(?:\.[0-9]++)?|{LETTER}|[∞*+])", r"\1{\2}"),
        ("\\", rf"{_TWO_ARGUMENTS} ?{_DIGIT_OR_LETTER} ?{_DIGIT_OR_LETTER}", r"\\\1{\2}{\3}"),
        ("\\", rf"{_TWO_ARGUMENTS} ?{_DIGIT_OR_LETTER}(?=\{{)", r"\\\1{\2}"),
        ("\\", rf"{_TWO_ARGUMENTS}{_BRACED}{_DIGIT_OR_LETTER}", r"\\\1\2{\3}"),
        (r"\sqrt", rf"\\sqrt ?([0-9]++|{LETTER})", r"\\sqrt{\1}"),
        ("/", r"([0-9](?<![0-9./].)[0-9]*+)/([0-9]++)(?![\^!]|\.[0-9])", r"\\frac{\1}{\2}"),
    )
)


def canonical(text: str) -> str:
    """Rewrite plain text to its canonical spelling; idempotent."""
    text = tighten(text)
    for spelling, symbol in _ASCII:
        text = text.replace(spelling, symbol)

    for sign, pattern, replacement in _REWRITES:
        if sign in text:
            text = pattern.sub(replacement, text)

    return _LOOSE_BLANK.sub("", text)


def tighten(text: str) -> str:
    return _LOOSE_BLANK.sub("", " ".join(text.split()).replace(" ,", ","))
