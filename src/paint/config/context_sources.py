"""The sources of the teacher's context, one record each: the values of ``context.source``.

What names a source reads its record here: the help of the setting, the fields that rows need, the
controls of `paint compare` and `paint advise`, the limits of prompts, and the tables of
docs/how-to/own-context.md and docs/concepts/teacher-and-controls.md. The text of a source is read
by the function of its name in paint.data.contexts.READERS.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Origin = Literal["row", "field", "setting", "rows", "completion", "step", "function"]
"""What decides a text: the row (by a role or a field), a setting, other rows, what is known of the
completion, other completions of the step, or a function of the user's."""


@dataclass(frozen=True, slots=True)
class ContextSource:
    """What is known of a source before anything is read.

    Attributes:
        shows: what the teacher reads, as the help of the setting and the tables say it.
        masked: whether a share of the text is hidden.
        is_control: whether the teacher reads it to show what another source teaches; overlap and
            mask ratio are then those of the problem's own solution.
        control: the control that shows the same of another row; it is no control's.
        placebo: the control of about the same length that says nothing; it is no control's.
        needs: what every row needs, of "solution" and "answer", or a field.
        grade: what it shows of a grader's work: its comments, or completions that it finds right.
        bounded_by: what bounds the length of a text that is no row's own: the solutions of all
            rows, or the settings context.text and context.file.
    """

    name: str
    shows: str
    origin: Origin = "row"
    masked: bool = True
    is_control: bool = False
    control: str = "other"
    placebo: str = "placebo"
    needs: tuple[str, ...] = ()
    grade: Literal["", "comment", "verdict"] = ""
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


SOURCES = {
    source.name: source
    for source in (
        ContextSource("solution", "the problem's own solution (paper)", needs=("solution",)),
        ContextSource(
            "text",
            "context.text, the same for all rows",
            origin="setting",
            masked=False,
            control="other_text",
            placebo="placebo_text",
        ),
        ContextSource(
            "file",
            "the text file context.file, the same for all rows, as it is at the start",
            origin="setting",
            masked=False,
            control="other_text",
            placebo="placebo_text",
        ),
        ContextSource(
            "neighbour",
            "the solution of the most similar other problem",
            origin="rows",
            bounded_by="solution",
        ),
        ContextSource(
            "rollout",
            "a verified completion of the same problem from another row of the step, or without "
            "one the row's solution",
            origin="step",
            grade="verdict",
            bounded_by="solution",
        ),
        ContextSource(
            "feedback",
            "what the grader said of the completion itself",
            origin="completion",
            grade="comment",
            control="other_feedback",
        ),
        ContextSource("none", "no reference", masked=False, is_control=True),
        ContextSource(
            "other",
            "another problem's solution",
            origin="rows",
            is_control=True,
            needs=("solution",),
            bounded_by="solution",
        ),
        ContextSource(
            "other_text",
            "other problems' text, as many characters as context.text or context.file",
            origin="rows",
            masked=False,
            is_control=True,
            bounded_by="setting",
        ),
        ContextSource(
            "placebo",
            "a sentence about the weather, as many characters as the problem's own solution",
            masked=False,
            is_control=True,
            needs=("solution",),
        ),
        ContextSource(
            "placebo_text",
            "a sentence about the weather, as many characters as context.text or context.file",
            masked=False,
            is_control=True,
            bounded_by="setting",
        ),
        ContextSource(
            "answer",
            "the right answer alone",
            masked=False,
            is_control=True,
            needs=("answer",),
        ),
        ContextSource(
            "wrong_answer",
            "the answer of another problem",
            origin="rows",
            masked=False,
            is_control=True,
            needs=("answer",),
        ),
        ContextSource(
            "other_feedback",
            "what the grader said of another completion",
            origin="step",
            is_control=True,
            grade="comment",
        ),
    )
}
"""The built-in sources by name, controls last."""

CONTROLS = tuple(source.name for source in SOURCES.values() if source.is_control)

OF_ANOTHER_ROW = {source.control for source in SOURCES.values() if not source.is_control}
"""The controls that show the same as another source, of another row."""

PLACEBOS = {source.placebo for source in SOURCES.values() if not source.is_control}
"""The controls that say nothing of any row."""

FIELD = ContextSource("the name of a field", "that field of the row", origin="field")
FUNCTION = ContextSource("module:function", "what the function returns", origin="function")


def context_source(name: str) -> ContextSource:
    """The record of a value of ``context.source``: a built-in source, a function or a field."""
    if name in SOURCES:
        return SOURCES[name]
    if ":" in name:
        return replace(FUNCTION, name=name)
    return replace(FIELD, name=name, needs=(name,))


def sources_help() -> str:
    """What ``context.source`` takes, as a sentence."""
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
