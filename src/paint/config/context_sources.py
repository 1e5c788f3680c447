"""The sources of the teacher's context, one record each: the values of ``context.source``.

Help, commands and the tables of docs/how-to/own-context.md and
docs/concepts/teacher-and-controls.md are made of these records. The text of a source is read by the
function of its name in paint.data.contexts.READERS.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

Origin = Literal["row", "field", "setting", "rows", "completion", "step", "function"]
"""What decides a text: the row (by a role or a field), a setting, other rows, what is known of the
completion, other completions of the step, or a function of the user's."""


@dataclass(frozen=True, slots=True)
class ContextSource:
    """What is known of a source before anything is read."""

    name: str
    shows: str  # what the teacher reads, as help and tables say it
    origin: Origin = "row"
    masked: bool = True  # whether a share of the text is hidden
    # It is read to show what another source teaches. Overlap and mask ratio are then those of the
    # problem's own solution.
    is_control: bool = False
    control: str = "other"  # the control that shows the same of another row
    placebo: str = "placebo"  # the control of about the same length that says nothing
    needs: tuple[str, ...] = ()  # of every row: "solution" and "answer", or a field
    # What it shows of a grader's work: comments, or completions that are right.
    grade: Literal["", "comment", "verdict"] = ""
    # What bounds the length of a text that is no row's own: the solutions of all rows, or the
    # settings context.text and context.file.
    bounded_by: Literal["", "solution", "setting"] = ""

    @property
    def of_row(self) -> bool:
        """Whether it is a function of the row and of settings."""
        return self.origin in ("row", "field", "setting")

    @property
    def reads_others(self) -> bool:
        """Whether it shows what other rows hold, or other completions of the step."""
        return self.origin in ("rows", "step")

    @property
    def is_aligned(self) -> bool:
        """Whether a completion is compared with it, and not with the problem's solution."""
        return self.masked and not self.is_control

    @property
    def shows_feedback(self) -> bool:
        """Whether it shows what the grader said, so that it may have nothing to show."""
        return self.grade == "comment"


_of_setting = partial(
    ContextSource, origin="setting", masked=False, control="other_text", placebo="placebo_text"
)
_control = partial(ContextSource, is_control=True)
_ALL = (
    ContextSource("solution", "the problem's own solution (paper)", needs=("solution",)),
    _of_setting("text", "context.text, the same for all rows"),
    _of_setting("file", "the text file context.file, the same for all rows, as it is at the start"),
    ContextSource(
        "neighbour", "the solution of the most similar other problem", "rows", bounded_by="solution"
    ),
    ContextSource(
        "rollout",
        "a verified completion of the same problem from another row of the step, or without "
        "one the row's solution",
        "step",
        grade="verdict",
        bounded_by="solution",
    ),
    ContextSource(
        "feedback",
        "what the grader said of the completion itself",
        "completion",
        grade="comment",
        control="other_feedback",
    ),
    _control("none", "no reference", masked=False),
    _control(
        "other", "another problem's solution", "rows", needs=("solution",), bounded_by="solution"
    ),
    _control(
        "other_text",
        "other problems' text, as many characters as context.text or context.file",
        "rows",
        masked=False,
        bounded_by="setting",
    ),
    _control(
        "placebo",
        "a sentence about the weather, as many characters as the problem's own solution",
        masked=False,
        needs=("solution",),
    ),
    _control(
        "placebo_text",
        "a sentence about the weather, as many characters as context.text or context.file",
        masked=False,
        bounded_by="setting",
    ),
    _control("answer", "the right answer alone", masked=False, needs=("answer",)),
    _control(
        "wrong_answer", "the answer of another problem", "rows", masked=False, needs=("answer",)
    ),
    _control(
        "other_feedback", "what the grader said of another completion", "step", grade="comment"
    ),
)

SOURCES = {source.name: source for source in _ALL}
"""The built-in sources by name, controls last."""

CONTROLS = tuple(source.name for source in SOURCES.values() if source.is_control)

OF_ANOTHER_ROW = {source.control for source in SOURCES.values() if not source.is_control}
"""The controls that show the same as another source, of another row."""

PLACEBOS = {source.placebo for source in SOURCES.values() if not source.is_control}
"""The controls that say nothing of any row."""

FIELD = ContextSource("the name of a field", "that field of the row", origin="field")
FUNCTION = ContextSource("module:function", "what the function returns", origin="function")


def context_source(name: str) -> ContextSource:
    """Return the record of a built-in source, a function or a field."""
    if name in SOURCES:
        return SOURCES[name]
    if ":" in name:
        return replace(FUNCTION, name=name)
    return replace(FIELD, name=name, needs=(name,))


def sources_help() -> str:
    """Say what ``context.source`` takes."""
    controls = [SOURCES[name] for name in CONTROLS]
    others = [source for source in SOURCES.values() if not source.is_control]
    in_full = [source.name for source in SOURCES.values() if not source.masked]
    return (
        f"What the teacher reads, one or several: {FIELD.name}; {FUNCTION.name}; "
        f"{_listed(others)}. Controls: {_listed(controls)}. Never masked: {', '.join(in_full)} "
        f"(docs/how-to/own-context.md)."
    )


def _listed(sources: Iterable[ContextSource]) -> str:
    return "; ".join(f"{source.name}: {source.shows}" for source in sources)
