r"""The letter that a completion chooses, of a question with choices.

    "... \boxed{\text{B. Paris}}" -> box -> B
    "... \boxed{E = mc^2} **Answer: D**" -> no choice in the box -> "Answer: D" -> D
    "\boxed{A or C}" -> A and C, which is no choice

A letter that belongs to a formula (C(n,2), x=5) or to a sentence (A polygenic score, I don't know)
names nothing.
"""

import re
from collections.abc import Sequence

from strictgrade.equality import boxed
from strictgrade.inputs import require_text
from strictgrade.spelling import plain_signs
from strictgrade.thoughts import ThoughtTags, split_thought

_WRAPPER = r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|emph|underline)\s*"
_LETTER_IN_WRAPPER = re.compile(
    rf"(?:(?:{_WRAPPER}|\\(?:text)?circled\s*)\{{\s*|\*\*|(?<![A-Za-z])['‘])([A-Z])[.:]?"  # noqa: RUF001
    r"(?:\s*\}|\*\*|['’](?![A-Za-z]))"  # noqa: RUF001
)
_FORM = re.compile(
    rf"{_WRAPPER}|\\(?:math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname)\s*"
    r"|\\(?:[lL]arge|LARGE|[hH]uge|displaystyle|checkmark|left|right|rm|bf)(?![A-Za-z])"
    r"|\\[()\[\]]|[{}$*`\"“”✓✔✅]"
)
_BLANK = re.compile(r"(?:\\[,;:! ]|\\q?quad(?![A-Za-z])|~|\s)+")
_INTRODUCTION = re.compile(
    r"\s*(?:(?:the|my|final|correct|right|best|answer|option|choice|letter|is|are|both|either"
    r"|therefore|thus|then|clearly|likely|probably)(?![A-Za-z])[\s:=_]*)*",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?P<opening>[(\[]\s*)?(?P<letter>[A-Za-z])(?(opening)\s*[)\]]|(?![A-Za-z]))")
_SEVERAL = re.compile("[A-J]{2,}")  # ACD

# Between two letters: a sign, a word, or nothing.
_JOINT = re.compile(
    r"\s*(?:(?:[,;/&]|\\&|(?:and|or|nor|plus|as\s+well\s+as)(?![A-Za-z]))\s*)+"
    r"(?:(?:also|maybe|perhaps|possibly|option|choice|answer)(?![A-Za-z])\s*)*"
    r"|\s*(?=[(\[][A-Za-z][)\]])|\s+(?=[A-Z](?![A-Za-z]))"
)

# Behind a letter: nothing, a sign and the text of the choice, a reason or a remark.
_END = re.compile(r"\s*[.)\]!_]*\s*$")
_SIGN = re.compile(r"\s*:|[)\]]|\.(?:\s|(?=[A-Za-z]{2}))|\s+[-–—]+\s+(?=[A-Za-z]{2})")  # noqa: RUF001
_REASON = re.compile(
    r"\s*,?\s*(?:because|since|as(?!\s+well)|with|which|by|due|given|based|from|so)(?![A-Za-z])"
    r"|\s+is\s+(?:the\s+)?(?:correct|right|best|answer|true)(?![A-Za-z])"
    r"|\s+(?:and|but)\s+(?:not|this|that|it|the|here|we)(?![A-Za-z])"
)
_REMARK = re.compile(r"\s*[,;]\s*[A-Za-z]|\s+\((?!or|and)[A-Za-z]{2}")
_WORD = re.compile(r"\s+(?!(?:and|or|nor|not|is|isn)(?![A-Za-z]))[A-Za-z]{2}")
_OPERATION = r"cup|cap|times|cdot|to|rightarrow|Rightarrow|le|leq|ge|geq|ll|gg|in|sub\w*|setminus"
_TEXT = re.compile(rf"(?:\s*-?[A-Z0-9]|\s+-?[a-z.]|\s*\\(?!(?:{_OPERATION})(?![A-Za-z]))[a-z])")
_FURTHER_LABEL = re.compile(
    r"(?:[,;/&]|(?<![A-Za-z])(?:and|or)(?![A-Za-z]))\s*(?:[(\[]([A-Z])[)\]]|([A-Z])[:.)]\s)"
)

_TAGGED = re.compile(r"<answer>([^<>]*+)</answer>", re.IGNORECASE)
_STATEMENT = re.compile(
    r"答案(?:[是为]|\s*:)[\s:=*_]*|(?<![A-Za-z])(?:answer|(?:correct|right|best|final)\s+(?:option|choice)"
    r"|(?:option|choice)(?=\s*:))(?![A-Za-z])"
    r"(?:\s+(?:is|would\s+be|must\s+be|should\s+be)(?![A-Za-z]))?[\s:=*_]*",
    re.IGNORECASE,
)
_JOINED_BOXES = re.compile(  # \\boxed{A} and \\boxed{C}; behind a comma, the last one counts
    r"\\boxed\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}[\s$*]*(?:[;/&]|and|or)[\s$*]*\\boxed\s*\{"
)
_LONGEST_STATEMENT = 300  # characters; it keeps the search linear
_SENTENCE = re.compile(r"(?:[^.!?]|[.!?](?!\s|$))*")
_BEFORE_LAST_COLON = re.compile(r".*:\s*")  # a prime number: B


def chosen_letter(completion: str, tags: Sequence[ThoughtTags] = ()) -> str | None:
    r"""The letter that a completion chooses, as a capital; None for no letter or several.

    Only what follows the last closed thought counts. There it is the letter of the last
    \boxed{}; where that names none, the letter of the last statement such as "the answer is B";
    and without a box, the letter with which the text begins.
    """
    require_text(completion)
    answer = split_thought(completion, tags).answer
    if answer is None:
        return None
    written = _TAGGED.sub(r"\nanswer: \1\n", plain_signs(answer))

    joined = ""
    while joined != written:  # each pass joins two boxes
        joined, written = written, _JOINED_BOXES.sub(_joined, written)
    box = boxed(written)
    letters = named_letters(box) if box is not None else ""
    if not letters:
        letters = _stated_letters(written)
    if not letters and box is None:
        letters = named_letters(written.strip().partition("\n")[0])
    if len(letters) == 1:
        return letters
    return None


def _joined(boxes: re.Match[str]) -> str:
    if named_letters(boxes[1]):
        return rf"\boxed{{{boxes[1]} and "
    return boxes[0]


def named_letters(text: str, *, in_sentence: bool = False) -> str:
    """The letters of the choices that a text names, as capitals; empty where it names none.

    In a sentence, small letters need brackets, and a word may follow a letter.
    """
    text = _BLANK.sub(" ", _FORM.sub("", _LETTER_IN_WRAPPER.sub(r"(\1)", plain_signs(text))))
    introduction = _INTRODUCTION.match(text)
    position = introduction.end() if introduction else 0
    run = _SEVERAL.fullmatch(text[position:].strip())
    # ACD names three choices. BAD is not in the alphabet's order: a word.
    if run and list(run[0]) == sorted(set(run[0])):
        return run[0]

    # Letters up to the last one that is a choice: in "A, I think" that is A.
    letters: list[str] = []
    count = end = 0
    while letter := _LETTER.match(text, position):
        letters.append(letter["letter"].upper())
        if _is_choice(letter, in_sentence):
            count, end = len(letters), letter.end()
        joint = _JOINT.match(text, letter.end())
        if joint is None:
            break
        position = joint.end()
    if not count:
        return ""

    found = letters[:count]
    reason = _REASON.search(text, end)
    rest = text[end : reason.start()] if reason else text[end:]
    for label in _FURTHER_LABEL.finditer(rest):  # A. Paris and C. Rome
        found.append(label[1] or label[2])
    return "".join(dict.fromkeys(found))


def _is_choice(letter: re.Match[str], in_sentence: bool) -> bool:
    """True if what follows a letter shows a choice, not a part of a formula or sentence."""
    text, end = letter.string, letter.end()
    if letter["opening"]:
        return any(pattern.match(text, end) for pattern in (_END, _SIGN, _REASON, _REMARK, _TEXT))

    is_capital = letter["letter"].isupper()
    if in_sentence and not is_capital:
        return False
    if _END.match(text, end) or _SIGN.match(text, end):
        return True
    if not is_capital:
        return False
    is_word = letter["letter"] in "AI"  # an article or a pronoun
    if in_sentence and not is_word and _WORD.match(text, end):
        return True
    if _REASON.match(text, end):
        return True
    return letter["letter"] != "I" and _REMARK.match(text, end) is not None


def _stated_letters(text: str) -> str:
    """The letters of the last statement of an answer that names any."""
    for statement in reversed(list(_STATEMENT.finditer(text))):
        rest = text[statement.end() : statement.end() + _LONGEST_STATEMENT].partition("\n")[0]
        letters = named_letters(rest, in_sentence=True)
        sentence = _SENTENCE.match(rest)
        colon = _BEFORE_LAST_COLON.match(sentence[0]) if sentence else None
        if not letters and colon:
            letters = named_letters(rest[colon.end() :], in_sentence=True)
        if letters:
            return letters
    return ""
