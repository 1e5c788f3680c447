r"""Which mathematics does a text hold? One spelling for all ways to write it, and the pieces to know it by.

text -> normalised text;   solution -> anchors;   is this anchor in that text?

Left out on purpose: algebra. `1/4` and `\frac{1}{4}` are two spellings of one thing and compare equal;
`(a+b)^2` and its expansion do not, for whoever wrote the one has not written the other yet. Nothing here
raises, whatever the text, and all of it takes linear time.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

# Where formulas, cells and boxes begin and end: control characters until the text is normalised, then blanks.
START, END, CUT, BOX, UNBOX = MARKS = "\x01\x02\x03\x04\x05"

_UNICODE: dict[int, int | str] = (
    str.maketrans("−–×·⋅∗÷⩽⩾′’∆µϵϕ~" + MARKS, "--****/≤≥''Δμεφ " + " " * len(MARKS))  # noqa: RUF001
    | {ord(power): f"^{{{n}}}" for n, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
    | {ord("√"): "\\sqrt "}
)
_SYMBOLS = r"""
\frac dfrac tfrac cfrac; \binom dbinom tbinom; * cdot times ast; / div; ± pm; … dots ldots cdots dotsc dotsb
≤ le leq leqslant; ≥ ge geq geqslant; ≠ ne neq; ≈ approx; ≡ equiv; ∈ in; | mid vert lvert rvert; ∞ infty
→ to rightarrow longrightarrow; ⇒ implies Rightarrow Longrightarrow; ⇔ iff Leftrightarrow Longleftrightarrow
ℓ ell; ∅ emptyset varnothing; ° degree; ' prime; ∠ angle; △ triangle; \{ lbrace; \} rbrace
α alpha; β beta; γ gamma; δ delta; ε epsilon varepsilon; ζ zeta; η eta; θ theta vartheta; ι iota; κ kappa
λ lambda; μ mu; ν nu; ξ xi; π pi; ρ rho; σ sigma; τ tau; φ phi varphi; χ chi; ψ psi; ω omega
Γ Gamma; Δ Delta; Θ Theta; Λ Lambda; Ξ Xi; Π Pi; Σ Sigma; Φ Phi; Ψ Psi; Ω Omega
"""  # noqa: RUF001
_FUNCTIONS = """
sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp gcd lcm max min sup inf lim det dim
ker deg
"""
_SILENT = """
left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle
limits nolimits hfill hline noindent nonumber rm bf it begin end tag label phantom hphantom vphantom hspace
vspace color pmod mbox hbox text textbf textit textrm textnormal mathrm mathbf mathit mathsf boldsymbol bm
operatorname emph underline boxed fbox framebox
"""
_COMMANDS = (
    {name: symbol for symbol, *names in map(str.split, re.split("[;\n]", _SYMBOLS.strip())) for name in names}
    | {name: f" {name} " for name in _FUNCTIONS.split()}
    | {"bmod": " mod ", "mod": " mod ", "quad": CUT, "qquad": CUT}
    | dict.fromkeys(_SILENT.split(), " ")
)
_ESCAPES = {"{": "\\{", "}": "\\}", "|": "‖", "\\": CUT} | dict.fromkeys("$&~ ,;:/!>\n", " ")
_NO_FORMULA = {"itemize", "enumerate", "center", "proof", "figure", "table", "tabular", "quote"}
_LATEX = re.compile(
    r"""\{(?P<open>) | \}(?P<close>)
    | \\(?:tag|label|[hv]?phantom|[hv]space|color)\*?\s*+\{[^{}]{0,40}\} | \\(?:left|right)(?![A-Za-z])\s*+\.
    | \\(?P<edge>begin|end)\s*+\{(?P<environment>[A-Za-z]{1,20})\*?\}(?:\s*+\{[lcr|\s]{0,20}\})?
    | \\(?:boxed|fbox|framebox)(?![A-Za-z])(?:\[[^\]{}$]{0,20}\])*+\s*+
        (?:(?P<box>\{)|(?P<boxed>[0-9]++|[A-Za-z]))
    | \\(?P<wrapper>text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname|[mh]box|emph
        |underline|pmod)\*?\s*+\{
        (?P<connective>(?:\s*+(?:and|or|if|for|where|so|then|with|when|since|all)(?![A-Za-z]))++)?
    | \\pmod(?![A-Za-z])\s*+(?P<modulus>[0-9]++|[A-Za-z])
    | \\(?P<command>[A-Za-z]++)
    | ,(?<=[0-9],)\\!(?=[0-9]{3}(?![0-9]))(?P<comma>) | \\(?<=[0-9]\\),(?=[0-9]{3}(?![0-9]))(?P<thin>)
    | \\\\\[[0-9.]{1,6}[a-z]{2}\](?P<row>)
    | \\(?P<bracket>[()\[\]])
    | \\(?P<escape>.?)
    | \$(?P<dollar>\$?)
    | &(?P<cell>)
    | \n[ \t\r]*+\n(?P<paragraph>)""",
    re.VERBOSE | re.DOTALL,
)


def normalize(text: str) -> str:
    r"""The same mathematics in one spelling (paper: Norm in the overlap score).

    Delimiters, spacing and sizing go, and so do \text, \boxed and the like around their contents; LaTeX,
    Unicode and ASCII spellings of a symbol become one; arguments get braces (`\frac12`, `x^2`); `3/4` becomes
    \frac{3}{4}; 1,000, 1{,}000 and 1\,000 become 1000, but (2,251,252) stays a list, spelt (2, 251, 252).
    Blanks stay between words and between numbers only. Case stays (A is not a), and so do trailing zeros
    (precision is information). Idempotent; raises on no string.
    """
    return _canonical(_unmark(_plain(text)))


def _plain(text: str) -> str:
    """Commands replaced by what they stand for, with marks where formulas, cells and boxes begin and end."""
    text = text.translate(_UNICODE)
    written: list[str] = []
    at = 0
    closers: list[str] = []  # what the partner of each open brace becomes
    formula = ""  # the delimiter of the formula we are in; empty in prose
    for found in _LATEX.finditer(text):
        kind, value = found.lastgroup, found[found.lastgroup or 0]
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
                new = _COMMANDS.get(value, found[0])
            case "paragraph":  # TeX allows none inside $...$: the formula of a stray dollar sign ends here
                delimiter = "$"
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
                delimiter, opens = value, found["edge"] == "begin"
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
            else:
                new = CUT
        written += text[at : found.start()], new
        at = found.end()
    return "".join([*written, text[at:]])


def _unmark(text: str) -> str:
    for mark in MARKS:  # str.translate is slow beyond ASCII
        text = text.replace(mark, " ")
    return text


_LETTER = r"[^\W\d_]"
_DIGIT_OR_LETTER = rf"([0-9]|{_LETTER})"
_LOOSE_BLANK = re.compile(  # all but those between numbers and between words; `a b` is a product
    r" (?!(?<=[0-9.] )\.?[0-9]|(?<=[0-9], )[0-9]"
    rf"|(?<={_LETTER} ){_LETTER}{{2}}|(?<={_LETTER}{_LETTER} ){_LETTER}|(?<=\\{_LETTER} ){_LETTER})"
)
_ASCII = (("<=>", "⇔"), ("<=", "≤"), (">=", "≥"), ("=>", "⇒"), ("->", "→"), ("\\not=", "≠"), ("...", "…"))


def _join_thousands(found: re.Match[str]) -> str:
    before = found.string[max(found.start() - 2, 0) : found.start()]
    after = found.string[found.end() : found.end() + 1]
    is_list = before.endswith(("(", "[", "\\{")) and after in (")", "]", "\\", ",")
    return found[0] if is_list else found[0].replace(",", "")


_REWRITES = (  # a sign without which there is nothing to do, pattern, replacement
    ("{,}", r"\{,\}(?<=[0-9]\{,\})(?=[0-9]{3}(?![0-9]))", ""),
    (",", r"[1-9](?<![0-9.^_].)(?<![0-9…],.)[0-9]{0,2}+(?:,[0-9]{3})++(?![0-9]|,[0-9…])", _join_thousands),
    (",", r",(?<=[0-9],)(?=[0-9])", ", "),  # no thousands separator: a list, and it says so from here on
    (r"\circ", r"\^(?:\{\\circ\}|\\circ(?![A-Za-z]))", "°"),
    ("'", r"\^(?<!\^\^)\^*+(?:\{('++)\}|('++))", r"\1\2"),
    ("", rf"([\^_])(-?[0-9]++(?:\.[0-9]++)?|{_LETTER}|[∞*+])", r"\1{\2}"),
    ("\\", rf"\\(frac|binom) ?{_DIGIT_OR_LETTER} ?{_DIGIT_OR_LETTER}", r"\\\1{\2}{\3}"),
    ("\\", rf"\\(frac|binom) ?{_DIGIT_OR_LETTER}(?=\{{)", r"\\\1{\2}"),
    ("\\", rf"\\(frac|binom)(\{{(?:[^{{}}]++|\{{[^{{}}]*+\}})*+\}}){_DIGIT_OR_LETTER}", r"\\\1\2{\3}"),
    (r"\sqrt", rf"\\sqrt ?([0-9]++|{_LETTER})", r"\\sqrt{\1}"),
    ("/", r"([0-9](?<![0-9./].)[0-9]*+)/([0-9]++)(?![\^!]|\.[0-9])", r"\\frac{\1}{\2}"),
)
_COMPILED = tuple((sign, re.compile(pattern), replacement) for sign, pattern, replacement in _REWRITES)


def _canonical(text: str) -> str:
    text = _tighten(text)
    for spelling, symbol in _ASCII:
        text = text.replace(spelling, symbol)
    for sign, pattern, replacement in _COMPILED:
        if sign in text:
            text = pattern.sub(replacement, text)
    return _LOOSE_BLANK.sub("", text)


def _tighten(text: str) -> str:
    return _LOOSE_BLANK.sub("", " ".join(text.split()).replace(" ,", ","))


LONGEST_SIDE, LONGEST_ANSWER = 80, 200  # characters: beyond them no two people write the same
MOST_ANCHORS = 1000  # the longest real solutions have 150; it keeps the search linear
_RUNS_IN = re.compile(rf"[0-9.][0-9]++|[0-9]\.|{_LETTER}{{2,}}+|\\.")  # the word or number began before the piece
_RUNS_ON = re.compile(rf"[0-9]\.?[0-9]|{_LETTER}{{2}}")  # it goes on after the piece
_NUMBER = re.compile(  # one set of first characters: the search leaps from one to the next
    r"[0-9.\\](?:(?<=\\)frac\{[0-9]++\}\{[0-9]++\}|(?<=\.)[0-9]++|(?<=[0-9])(?:[0-9]*+\.[0-9]++|[0-9]++))"
)
_BOX = re.compile(f"{BOX}(?:([^{BOX}{UNBOX}]*+){UNBOX}|([^{MARKS}]*+))")
_PICTURE = re.compile(r"<img_\{[0-9]++\}>")
_RELATIONS = "=<>≤≥≠≈≡∈∼→:"  # noqa: RUF001
_SPAN = re.compile(f"([{START}{END}{CUT}](?!(?<={CUT}){CUT}?[{_RELATIONS}]))")  # `x &= 5` is one statement
_KINDS = (
    dict.fromkeys("([{", "opening")
    | dict.fromkeys(")]}", "closing")
    | dict.fromkeys(_RELATIONS, "relation")
    | dict.fromkeys(",;⇒⇔", "stop")
)
_PROSE_KINDS = {mark: kind for mark, kind in _KINDS.items() if mark not in ",;:"}
_FORMULA_SEAM = re.compile(f"[{re.escape(''.join(_KINDS))}]")
_PROSE_SEAM = re.compile(  # a, A and I before a number are articles, not factors
    rf"{_FORMULA_SEAM.pattern}|[?!|]|\.(?![0-9])|(?<!\\)(?<!{_LETTER}){_LETTER}{{2,}}+|(?<!{_LETTER})[aAI](?=[0-9(\\ ])"
)
_JOINED = re.compile(rf"[-+*/^!|±{_RELATIONS}]|\\[a-z]|[0-9],")
_INDEX = re.compile(r"_\{[^{}]*+\}")
_OPERATION = re.compile(
    rf"(?<=.)[-+]|[*/^!|±]|\\(?:frac|binom|sqrt|sum|prod|int|lfloor|lceil)"
    rf"|(?:{'|'.join(_FUNCTIONS.split())})(?!{_LETTER})"
)
_LIST = re.compile(r",.*[0-9]|[0-9].*,")
_OPERAND = re.compile(rf"(?<![\\A-Za-z])(?:{_LETTER}++|[0-9.]++)")


def anchors(solution: str) -> tuple[str, ...]:
    r"""The pieces by which a solution's mathematics is recognised: normalised, in order, each once.

    A(y*), "the boxed answer, formula-like spans, and informative numbers" (paper: overlap score), is read as
    - the content of every \boxed, \fbox and \framebox, however trivial, up to 200 characters;
    - from formulas, and from equations in plain text: each side of a relation that joins operands by an
      operation or lists a number, up to 80 characters; of two sides that do neither (`x=7`), the whole
      relation. Names (`x`, `a_{k+1}`, `f(x)`) are none;
    - numbers of two digits or more, decimals and numerical fractions, wherever they stand, without a sign.
    Drawing code ([asy]) and names of pictures are passed over. Each anchor is found in normalize(solution).
    """
    plain = _plain(solution)
    first, *rest = _canonical(plain).split("[asy]")
    marked = _PICTURE.sub(CUT, CUT.join([first, *(part.partition("[/asy]")[2] for part in rest)]))
    boxes = ((box.start(), _trim(box[1] or box[2] or "")) for box in _BOX.finditer(marked))
    found = [(start, answer) for start, answer in boxes if 0 < len(answer) <= LONGEST_ANSWER]
    found += _formulas(marked)
    found += [(number.start(), number[0]) for number in _NUMBER.finditer(marked)]
    pieces = [*dict.fromkeys(piece for _, piece in sorted(found))][:MOST_ANCHORS]
    normalized = _canonical(_unmark(plain))
    # Without marks a formula can run into its surroundings (`$3ad$ b` reads 3adb), and its last word is lost.
    return tuple(piece for piece in pieces if contains(normalized, piece))


def _formulas(marked: str) -> Iterator[tuple[int, str]]:
    """Position and text of the formula-like spans."""
    prose, position = True, 0
    for span in _SPAN.split(marked):
        if span in (START, END):
            prose = span == END
        elif len(span) > 2 and _JOINED.search(span):
            yield from ((position + start, piece) for start, piece in _statements(span, prose))
        position += len(span)


def _statements(span: str, prose: bool) -> Iterator[tuple[int, str]]:
    seam, kinds = (_PROSE_SEAM, _PROSE_KINDS) if prose else (_FORMULA_SEAM, _KINDS)
    depth, sides = 0, [0]  # of brackets; where the sides of the statement begin
    for found in seam.finditer(span):
        kind = kinds.get(found[0], "word")
        if kind == "opening":
            depth += 1
        elif kind == "closing":
            depth = max(depth - 1, 0)
        elif kind == "relation" and not depth:
            sides.append(found.end())
        elif kind == "word" or (kind == "stop" and not depth):
            yield from _telling(span, [*sides, found.start() + 1])
            depth, sides = 0, [found.end()]
    yield from _telling(span, [*sides, len(span) + 1])


def _telling(span: str, edges: list[int]) -> list[tuple[int, str]]:
    """The telling sides of a statement; the statement itself if it has two sides and neither tells."""
    if edges[-1] - edges[0] < 4:
        return []
    sides = [(start, _trim(span[start : stop - 1])) for start, stop in pairwise(edges)]
    telling = [(start, side) for start, side in sides if _tells(side)]
    if not telling and len(sides) == 2 and all(side for _, side in sides):
        whole = _trim(span[edges[0] : edges[-1] - 1])
        if len(whole) <= LONGEST_SIDE // 2 and _balanced(whole) and re.search(_LETTER, whole):
            return [(edges[0], whole)]
    return telling


def _tells(side: str) -> bool:
    if not 2 < len(side) <= LONGEST_SIDE or not _balanced(side):
        return False
    side = _INDEX.sub("", side)
    return bool(_OPERATION.search(side) or _LIST.search(side)) and len(_OPERAND.findall(side)) > 1


def _balanced(piece: str) -> bool:
    return piece.count("(") == piece.count(")") and piece.count("{") == piece.count("}")


def _trim(piece: str) -> str:
    if not piece.isprintable():
        piece = _tighten(_unmark(piece))
    return piece.lstrip("+*/.:?,;=…'° ").rstrip("+-*/.:?,;=… ")


def contains(text: str, piece: str) -> bool:
    """Whether a normalised text holds an anchor as whole words and numbers: 12 is in `12x`, not in 312 or 3.12."""
    at = text.find(piece)
    while at >= 0:
        if at and (run := _RUNS_IN.match(text, at - 1)):
            at = text.find(piece, run.end())
        elif _RUNS_ON.match(text, at + len(piece) - 1):
            at = text.find(piece, at + 1)
        else:
            return True
    return False
