"""Reference solutions as completions: a thought of their own, and the thought of the prompt.

    the prompt has closed a thought (Qwen3, off)   <think>\\n\\n</think>\\n\\n | 5
    the prompt leaves one open (R1)                <think>\\n | add\\n</think>\\n\\n5
    the model opens it itself (Qwen3, on)          | <think>\\nadd\\n</think>\\n\\n5

A turn has one thought. A solution brings one in the tags of the model, or in R1's form, which
begins within the thought and closes it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chatforms.conventions import Thinking
from paint.models.model_errors import PromptError
from strictgrade.thoughts import ThoughtTags, split_thought, unopened_tags

LEFT_OUT, OPENED, TEXT = "left out", "opened", "text"

NOTES = {
    LEFT_OUT: (
        "bring a thought, which is left out: thinking is off, and the prompt has closed it; "
        "model.student_thinking true trains on it"
    ),
    OPENED: "close a thought that they do not open, as DeepSeek-R1's do; its tag is put first",
    TEXT: "bring a thought in tags that are not the model's, which is learnt as other text",
}
"""What becomes of the thoughts of solutions, in words."""


@dataclass(frozen=True)
class Reference:
    """A reference solution as it follows the student's prompt."""

    lead: str  # closes the prompt's thought, or opens the answer's channel
    text: str
    change: str = ""  # what became of the solution's thought, of NOTES; "" for nothing


def fit_reference(
    solution: str, known: Thinking, *, thinking: bool, whose: str = "a solution"
) -> Reference:
    """Fit the thought of a solution to a prompt with thinking on or off.

    ``whose`` names the solution in messages. Raises PromptError for a thought without an end or an
    answer, for several, for one after other text, and for one that other tags close.
    """
    lead = known.before_reference[thinking]
    for pair in known.tags:
        if pair.opening in solution or pair.closing in solution:
            break
    else:
        return _in_other_tags(solution, lead, known.tags, whose)
    solution, is_opened, answer = _thought(solution, pair, whose)
    if known.opened[thinking]:
        if is_opened:
            solution = solution.lstrip().removeprefix(pair.opening).lstrip()
        return Reference("", solution)
    if known.closed[thinking]:
        return Reference(lead, answer, LEFT_OUT)
    if lead.strip():
        raise PromptError(
            f"{whose} brings a thought, {pair}, and the model's turn begins by {lead!r}"
        )
    if is_opened:
        return Reference("", solution)
    return Reference("", f"{pair.opening}\n{solution.lstrip()}", OPENED)


def describe_changes(references: Sequence[Reference]) -> list[str]:
    """Return notes on what became of the thoughts of solutions, with their numbers."""
    counts, total = Counter(reference.change for reference in references), len(references)
    return [
        f"{counts[change]:,} of {total:,} solutions {note}"
        for change, note in NOTES.items()
        if counts[change]
    ]


def _thought(solution: str, pair: ThoughtTags, whose: str) -> tuple[str, bool, str]:
    """Return a solution without empty thoughts, whether it opens its own, and its answer."""
    opening, closing = re.escape(pair.opening), re.escape(pair.closing)
    empty = rf"(?s)\s*{opening}\s*{closing}\s*(?=.*{closing})"
    while re.match(empty, solution):
        solution = re.sub(empty, "", solution, count=1)
    begin, is_closed, answer = solution.rpartition(pair.closing)
    before, opens, _ = begin.partition(pair.opening)
    fault = ""
    if not is_closed or pair.opening in answer:
        fault = "opens a thought and does not close it"
    elif pair.closing in begin:
        fault = "closes several thoughts, and a turn has one"
    elif opens and before.strip():
        fault = "has text before its thought"
    elif not answer.strip():
        fault = "ends with its thought, and no answer follows"
    if fault:
        raise PromptError(f"{whose} {fault} ({pair})")
    return solution, bool(opens), answer.lstrip()


def _in_other_tags(solution: str, lead: str, tags: Sequence[ThoughtTags], whose: str) -> Reference:
    other = unopened_tags(solution)
    if other is None:
        has_thought = bool(split_thought(solution).thought)
        return Reference(lead, solution, TEXT if has_thought else "")
    if tags:
        raise PromptError(
            f"{whose} closes a thought by {other.closing} that it does not open, and the "
            f"model's thoughts are {tags[0]}; spell it so, or leave it out"
        )
    return Reference(lead, f"{other.opening}\n{solution.lstrip()}", OPENED)
