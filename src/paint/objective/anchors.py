r"""Normalisation of mathematical text, and the anchors of a solution.

    text -> normalize -> normalised text;   solution -> anchors
    normalised text, anchor -> contains -> bool

There is no algebra here: `1/4` and `\frac{1}{4}` are two spellings and compare equal, `(a+b)^2` and
its expansion do not. No function raises on any text, and each takes time linear in its length.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

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
_FUNCTIONS = """
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
    | {name: f" {name} " for name in _FUNCTIONS.split()}
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
    return _canonical(_unmark(_plain(text)))


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


def _plain(text: str) -> str:
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


_LETTER = r"[^\W\d_]"

# The edge of a box between two letters, and between a number and a comma.
_ONE_LETTER_BEFORE = rf"(?<={_LETTER})(?<!{_LETTER}{_LETTER})"
_TO_EDGE = rf"[\s{START}{END}{CUT}]*+[{BOX}{UNBOX}]"
_LETTERS_AT_BOX = re.compile(
    rf"{_ONE_LETTER_BEFORE}{_TO_EDGE}[\s{MARKS}]*+(?={_LETTER}(?!{_LETTER}))"
)
_COMMA_AT_BOX = re.compile(rf"(?<![\s{MARKS}]){_TO_EDGE}[\s{MARKS}]*+,(?=[0-9])")


def _unmark(text: str) -> str:
    r"""Replace marks by blanks, without joining a box to the text next to it.

    `\boxed{x}y` becomes x*y, where a blank would be removed as loose, and `\boxed{5},000` a list.
    """
    if BOX in text or UNBOX in text:
        text = _LETTERS_AT_BOX.sub("*", text)
        text = _COMMA_AT_BOX.sub(", ", text)

    for mark in MARKS:  # str.translate is slow beyond ASCII
        text = text.replace(mark, " ")
    return text


_DIGIT_OR_LETTER = rf"([0-9]|{_LETTER})"

# A blank is loose (removable) unless it separates numbers or words. It is loose in the product
# `a b`.
_TIGHT_AFTER_BLANK = "|".join(
    (
        r"(?<=[0-9.] )\.?[0-9]",
        r"(?<=[0-9], )[0-9]",
        rf"(?<={_LETTER} ){_LETTER}{{2}}",
        rf"(?<={_LETTER}{_LETTER} ){_LETTER}",
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
        ("", rf"([\^_])(-?[0-9]++(?:\.[0-9]++)?|{_LETTER}|[∞*+])", r"\1{\2}"),
        ("\\", rf"{_TWO_ARGUMENTS} ?{_DIGIT_OR_LETTER} ?{_DIGIT_OR_LETTER}", r"\\\1{\2}{\3}"),
        ("\\", rf"{_TWO_ARGUMENTS} ?{_DIGIT_OR_LETTER}(?=\{{)", r"\\\1{\2}"),
        ("\\", rf"{_TWO_ARGUMENTS}{_BRACED}{_DIGIT_OR_LETTER}", r"\\\1\2{\3}"),
        (r"\sqrt", rf"\\sqrt ?([0-9]++|{_LETTER})", r"\\sqrt{\1}"),
        ("/", r"([0-9](?<![0-9./].)[0-9]*+)/([0-9]++)(?![\^!]|\.[0-9])", r"\\frac{\1}{\2}"),
    )
)


def _canonical(text: str) -> str:
    """Rewrite plain text to its canonical spelling; idempotent."""
    text = _tighten(text)
    for spelling, symbol in _ASCII:
        text = text.replace(spelling, symbol)

    for sign, pattern, replacement in _REWRITES:
        if sign in text:
            text = pattern.sub(replacement, text)

    return _LOOSE_BLANK.sub("", text)


def _tighten(text: str) -> str:
    return _LOOSE_BLANK.sub("", " ".join(text.split()).replace(" ,", ","))


# In characters. Longer formulas hardly occur in two texts; longer answers are not read by graders.
# Both limits keep the search linear.
LONGEST_SIDE, LONGEST_ANSWER = 80, 2000
MOST_ANCHORS = 1000  # the longest real solutions have 150; it keeps the search linear

# The word or number begins before the piece; it continues after the piece.
_RUNS_IN = re.compile(rf"[0-9.][0-9]++|[0-9]\.|{_LETTER}{{2,}}+|\\.")
_RUNS_ON = re.compile(rf"[0-9]\.?[0-9]|{_LETTER}{{2}}")

# An index is matched as one, because no number in it counts. Limits (`\sum_{k=10}`) are no indices.
_NO_RELATION = r"[^{}=<>≤≥≠∈→]"
_INDEX_BRACES = rf"\{{(?:{_NO_RELATION}++|\{{{_NO_RELATION}*+\}})*+\}}"
_NUMBER = re.compile(  # one set of first characters, so that the search can skip between them
    r"[0-9._\\](?:(?<=\\)frac\{[0-9]++\}\{[0-9]++\}|(?<=\.)[0-9]++"
    r"|(?<=[0-9])(?:[0-9]*+\.[0-9]++|[0-9]++)"
    rf"|(?<=_)(?<!\\sum_)(?<!\\prod_)(?<!\\int_){_INDEX_BRACES}(?P<index>))"
)

# A box without a closing brace extends to the next mark.
_MARKED_BOX = re.compile(f"{BOX}(?:([^{BOX}{UNBOX}]*+){UNBOX}|([^{MARKS}]*+))")
_PICTURE = re.compile(r"<img_\{[0-9]++\}>")

_RELATIONS = "=<>≤≥≠≈≡∈∼→:"  # noqa: RUF001
# Spans end at formulas and cells, except that `x &= 5` is one statement.
_SPAN = re.compile(f"([{START}{END}{CUT}](?!(?<={CUT}){CUT}?[{_RELATIONS}]))")
_KINDS = (
    dict.fromkeys("([{", "opening")
    | dict.fromkeys(")]}", "closing")
    | dict.fromkeys(_RELATIONS, "relation")
    | dict.fromkeys(",;⇒⇔", "stop")
)
_PROSE_KINDS = {mark: kind for mark, kind in _KINDS.items() if mark not in ",;:"}

_WORD = rf"(?<!\\)(?<!{_LETTER}){_LETTER}{{2,}}+"
_ARTICLE = rf"(?<!{_LETTER})[aAI](?=[0-9(\\ ])"  # a, A and I before a number are not factors
_FORMULA_SEAM = re.compile(f"[{re.escape(''.join(_KINDS))}]")
_FULL_STOP = r"\.(?![0-9])"
_PROSE_SEAM = re.compile(rf"{_FORMULA_SEAM.pattern}|[?!|]|{_FULL_STOP}|{_WORD}|{_ARTICLE}")

_JOINED = re.compile(rf"[-+*/^!|±{_RELATIONS}]|\\[a-z]|[0-9],")
_INDEX = re.compile(rf"_(?:{_INDEX_BRACES}|\{{[^{{}}]*+\}})")
_SIGN_BETWEEN = r"(?<=.)[-+]"  # not the sign of -x
_OPERATOR_COMMAND = r"\\(?:frac|binom|sqrt|sum|prod|int|lfloor|lceil)"
_FUNCTION = rf"(?:{'|'.join(_FUNCTIONS.split())})(?!{_LETTER})"
_OPERATION = re.compile(rf"{_SIGN_BETWEEN}|[*/^!|±]|{_OPERATOR_COMMAND}|{_FUNCTION}")
_LIST = re.compile(r",.*[0-9]|[0-9].*,")
_OPERAND = re.compile(rf"(?<![\\A-Za-z])(?:{_LETTER}++|[0-9.]++)")


def anchors(solution: str) -> tuple[str, ...]:
    r"""Extract the anchors of a solution: normalised, in order, without repetition.

    A(y*), "the boxed answer, formula-like spans, and informative numbers" (paper: overlap score):
    the content of every box, up to 2,000 characters; each side of a relation that joins operands by
    an operation or lists a number, up to 80 characters, or the complete relation if neither side
    does (`x=7`); numbers of two digits or more, decimals and numerical fractions, except those in
    an index. Names (`x`, `f(x)`), drawing code ([asy]) and pictures are none. Each anchor is
    contained in normalize(solution).
    """
    return tuple(boxed_anchors(solution))


def boxed_anchors(solution: str) -> dict[str, bool]:
    """Map the anchors of a solution, in order, to whether a box contains them."""
    plain = _plain(solution)
    first, *rest = _canonical(plain).split("[asy]")
    without_drawings = CUT.join([first, *(part.partition("[/asy]")[2] for part in rest)])
    marked = _PICTURE.sub(CUT, without_drawings)

    placed = []
    for box in _MARKED_BOX.finditer(marked):
        answer = _trim(box[1] or box[2] or "")
        if 0 < len(answer) <= LONGEST_ANSWER:
            placed.append((box.start(), answer))
    answers = {answer for _, answer in placed}
    placed += _formulas(marked)
    numbers = (match for match in _NUMBER.finditer(marked) if match["index"] is None)
    placed += [(number.start(), number[0]) for number in numbers]
    pieces = [*dict.fromkeys(piece for _, piece in sorted(placed))][:MOST_ANCHORS]

    # Without marks a formula can join with the text around it (`$3ad$ b` becomes 3adb); such an
    # anchor is not found in the normalised text.
    normalized = _canonical(_unmark(plain))
    anchors: dict[str, bool] = {}
    for piece in pieces:
        if contains(normalized, piece):
            anchors[piece] = piece in answers
    return anchors


def _formulas(marked: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of the formula-like spans."""
    is_prose, position = True, 0
    for span in _SPAN.split(marked):
        if span in (START, END):
            is_prose = span == END
        elif len(span) > 2 and _JOINED.search(span):
            for start, piece in _relation_sides(span, is_prose):
                yield position + start, piece
        position += len(span)


def _relation_sides(span: str, is_prose: bool) -> Iterator[tuple[int, str]]:
    """Yield position and text of the informative sides of all statements in a span."""
    seam, kinds = (_PROSE_SEAM, _PROSE_KINDS) if is_prose else (_FORMULA_SEAM, _KINDS)
    depth, sides = 0, [0]  # nesting of brackets; starts of the statement's sides

    for match in seam.finditer(span):
        kind = kinds.get(match[0], "word")
        if kind == "opening":
            depth += 1
        elif kind == "closing":
            depth = max(depth - 1, 0)
        elif kind == "relation" and not depth:
            sides.append(match.end())
        elif kind == "word" or (kind == "stop" and not depth):
            yield from _informative_sides(span, [*sides, match.start() + 1])
            depth, sides = 0, [match.end()]

    yield from _informative_sides(span, [*sides, len(span) + 1])


def _informative_sides(span: str, edges: list[int]) -> list[tuple[int, str]]:
    """The informative sides of a statement; the statement itself if neither of two sides is."""
    if edges[-1] - edges[0] < 4:
        return []

    sides = [(start, _trim(span[start : stop - 1])) for start, stop in pairwise(edges)]
    informative = [(start, side) for start, side in sides if _is_informative(side)]

    if not informative and len(sides) == 2 and all(side for _, side in sides):
        statement = _trim(span[edges[0] : edges[-1] - 1])
        is_short = len(statement) <= LONGEST_SIDE // 2
        if is_short and _is_balanced(statement) and re.search(_LETTER, statement):
            return [(edges[0], statement)]

    return informative


def _is_informative(side: str) -> bool:
    """Whether a side joins operands by an operation, or lists a number."""
    if not 2 < len(side) <= LONGEST_SIDE or not _is_balanced(side):
        return False
    side = _INDEX.sub("", side)
    return bool(_OPERATION.search(side) or _LIST.search(side)) and len(_OPERAND.findall(side)) > 1


def _is_balanced(piece: str) -> bool:
    return piece.count("(") == piece.count(")") and piece.count("{") == piece.count("}")


def _trim(piece: str) -> str:
    if not piece.isprintable():
        piece = _tighten(_unmark(piece))
    return piece.lstrip("+*/.:?,;=…'° ").rstrip("+-*/.:?,;=… ")


def contains(text: str, piece: str) -> bool:
    """Whether a normalised text contains an anchor at word and number boundaries.

    12 is in `12x`, but neither in 312 nor in 3.12.
    """
    start = text.find(piece)
    while start >= 0:
        if start and (run := _RUNS_IN.match(text, start - 1)):
            start = text.find(piece, run.end())
        elif _RUNS_ON.match(text, start + len(piece) - 1):
            start = text.find(piece, start + 1)
        else:
            return True
    return False
