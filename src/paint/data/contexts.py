"""The teacher's privileged contexts, before and after masking.

    sources -> references -> overlap with the completion -> mask ratio -> context

Source: section 'Overlap-Adaptive Partial Solution Conditioning'. All sources but the solution are
ours. Every choice is a pure function of (seed, problem, completions of the step).
"""

import inspect
import random
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from paint.config.schema import CONTEXT_SOURCES, FEEDBACK_SOURCES, ConfigError, ContextConfig
from paint.core.errors import did_you_mean, wrap_errors
from paint.core.extensions import bind_options, load_object, of_type
from paint.data.problems import Problem, row_of
from paint.data.readers import DataError
from paint.grading.contract import Grade
from paint.grading.math.equality import compare_text
from paint.objective.masking import MARKER, anchors, mask_ratio, mask_solution, overlap_metrics
from paint.objective.messages import announces_complete

IN_FULL = ("text", "file", "other_text", "answer", "wrong_answer")
"""Sources that are never masked."""

CONTROLS = ("none", "other", "other_text", "answer", "wrong_answer", "other_feedback")
"""Sources whose overlap is that of the problem's own solution."""

OTHER_ROWS = ("neighbour", "rollout")
"""Sources that show what other rows hold, apart from controls."""

ContextFunction = Callable[..., str]
"""A source of your own: the row, all rows and a seed to the reference of the row."""

COMPLETION_ARGUMENTS = {"completion", "grade"}
"""Further arguments of a function whose context depends on the completion."""


class GradedCompletion(NamedTuple):
    """A completion of a step."""

    row: int
    problem_id: str
    text: str
    grade: Grade | None


@dataclass(frozen=True)
class Attempt:
    """A completion, and what other completions of its step add to what the teacher may read.

    Attributes:
        grade: None where nothing is graded.
        peers: verified completions of the problem in other rows.
        other_comments: what the grader said of other completions of the problem, apart from what it
            said of this one; of other problems' where there is nothing else.
    """

    text: str = ""
    grade: Grade | None = None
    peers: Sequence[str] = ()
    other_comments: Sequence[str] = ()

    @property
    def comment(self) -> str:
        return self.grade.comment if self.grade else ""


NO_ATTEMPT = Attempt()
"""Before there is a completion."""


class Without(Sequence[str]):
    """Texts without those of some groups of places; nothing is copied.

    A step of n completions has n of them, with nearly n texts each.
    """

    def __init__(
        self, texts: Sequence[str], *groups: Sequence[int], in_both: Sequence[int] = ()
    ) -> None:
        """Places are indices of the texts, in ascending order; ``in_both`` are in two groups."""
        self._texts, self._groups, self._in_both = texts, groups, in_both

    def __len__(self) -> int:
        return self._kept(len(self._texts))

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        # The number of kept texts grows with the place: the first place with enough is the text's.
        places = range(len(self._texts))
        return self._texts[bisect_left(places, numbers + 1, key=lambda n: self._kept(n + 1))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _kept(self, end: int) -> int:
        """The number of kept texts before a place."""
        left_out = sum(bisect_left(group, end) for group in self._groups)
        return end - left_out + bisect_left(self._in_both, end)


def attempts_of(completions: Sequence[GradedCompletion]) -> dict[int, Attempt]:
    """The attempts of all completions of a step, by row; in time linear in their number."""
    comments: list[str] = []  # of the step, in the order of the rows
    of_problem: defaultdict[str, list[str]] = defaultdict(list)
    right: defaultdict[str, list[str]] = defaultdict(list)
    # Places of comments: of a problem, of a text, and of both among all and among the problem's.
    by_problem: defaultdict[str, list[int]] = defaultdict(list)
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    by_both: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    in_problem: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    peer_of: defaultdict[int, list[int]] = defaultdict(list)  # a row's place in ``right``
    for one in completions:
        problem, comment = one.problem_id, one.grade.comment if one.grade else ""
        if comment:
            by_problem[problem].append(len(comments))
            by_text[comment].append(len(comments))
            by_both[problem, comment].append(len(comments))
            in_problem[problem, comment].append(len(of_problem[problem]))
            comments.append(comment)
            of_problem[problem].append(comment)
        if one.grade and one.grade.correct:
            peer_of[one.row].append(len(right[problem]))
            right[problem].append(one.text)

    attempts = {}
    for one in completions:
        problem, own = one.problem_id, one.grade.comment if one.grade else ""
        peers = Without(right[problem], peer_of[one.row])
        # A remark that is made of both is no control.
        others = Without(of_problem[problem], in_problem[problem, own])
        if not others:
            groups = by_problem[problem], by_text[own]
            others = Without(comments, *groups, in_both=by_both[problem, own])
        attempts[one.row] = Attempt(one.text, one.grade, peers, others)
    return attempts


@dataclass(frozen=True)
class Context:
    """What the teacher reads: the text, None for nothing, and whether it is announced complete.

    Attributes:
        names: what templates see by name: completion, and with feedback also feedback and reference
            (the other sources).
    """

    text: str | None
    complete: bool
    names: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Contexts:
    """The contexts of a run's problems, by the settings of the section context.

    Attributes:
        given: the content of context.file, if it was read before; else it is read once.
    """

    options: ContextConfig
    problems: Sequence[Problem]
    given: str | None = None

    @property
    def needs_peers(self) -> bool:
        """True if a source shows other completions of the step."""
        return "rollout" in self.options.source

    @property
    def needs_attempts(self) -> bool:
        """Whether a source depends on what other completions of the step are."""
        return self.needs_peers or "other_feedback" in self.options.source

    @cached_property
    def reads_feedback(self) -> bool:
        """Whether a source depends on the completion, so that it may have nothing to show."""
        return any(map(self._depends_on_completion, self.options.source))

    def references(
        self, problem: Problem, seed: int, attempt: Attempt = NO_ATTEMPT
    ) -> dict[str, str]:
        """The reference of each source that has one, before masking.

        ``seed`` chooses among other problems and completions.

        Raises:
            ConfigError: the file of context.file cannot be read.
            DataError: a source needs another problem or another answer, and there is none.
        """
        references: dict[str, str] = {}
        for source in self.options.source:
            text = self._reference(source, problem, seed, attempt)
            if text:
                references[source] = text
        return references

    def of_own_row(self, problem: Problem) -> dict[str, str]:
        """The references that come from no other row, and do not depend on a completion."""
        references = {}
        for source in self.options.source:
            if source not in OTHER_ROWS + CONTROLS and not self._depends_on_completion(source):
                references[source] = self._reference(source, problem, 0, NO_ATTEMPT) or ""
        return references

    def longest(self, problem: Problem) -> str:
        """The longest context of a problem by its own row: all of it, and the marker."""
        texts = {"solution": problem.solution} | self.of_own_row(problem)
        if "other_text" in self.options.source:
            texts["other_text"] = self._other_text(problem, 0)
        return f"{_joined(texts.values())} {MARKER}"

    def aligned(self, problem: Problem, references: Mapping[str, str]) -> str:
        """The text that a completion is compared with: the references that are masked.

        For controls, and where nothing is masked, it is the problem's own solution.
        """
        masked = (text for s, text in references.items() if s not in IN_FULL + CONTROLS)
        return _joined(masked) or problem.solution

    def measure(
        self, completion: str, problem: Problem, references: Mapping[str, str]
    ) -> dict[str, float]:
        """Overlap of a completion with its references, and their mask ratio.

        By anchors, references without any are not masked.
        """
        options, text = self.options, self.aligned(problem, references)
        scores = overlap_metrics(completion, text, words=options.alignment == "words")
        ratio = mask_ratio(
            scores["overlap"], wrong=options.mask_ratio_wrong, correct=options.mask_ratio_correct
        )
        if options.alignment == "fixed":
            ratio = options.mask_ratio_wrong
        return {**scores, "mask_ratio": ratio if self.is_masked(text) else 0.0}

    def is_masked(self, reference: str) -> bool:
        """True if a reference has anchors, or is compared by other pieces than anchors."""
        # Without anchors an overlap of 0 says nothing of the completion.
        return self.options.alignment != "anchors" or _has_anchors(reference)

    def context(
        self,
        references: Mapping[str, str],
        ratio: float,
        seed: int,
        attempt: Attempt = NO_ATTEMPT,
    ) -> Context:
        """The references with ``ratio`` of each masked that is not given in full."""
        masked = dict(references)
        for source, text in references.items():
            if source not in IN_FULL and self.is_masked(text):
                masked[source] = mask_solution(
                    text, ratio, placement=self.options.placement, seed=seed
                )
        # A ratio that rounds to no character leaves the reference complete (fidelity C4).
        complete = announces_complete(self.options.wording, is_complete=masked == references)
        names = {"completion": attempt.text}
        if self._shows_feedback:
            # SDPO's wording has a place for each.
            feedback = [masked[s] for s in masked if s in FEEDBACK_SOURCES]
            others = [masked[s] for s in masked if s not in FEEDBACK_SOURCES]
            names |= {"feedback": _joined(feedback), "reference": _joined(others)}
        return Context(_joined(masked.values()) or None, complete, names)

    @cached_property
    def shared(self) -> str:
        """The text of the sources text and file, which is the same for all problems.

        Raises:
            ConfigError: the file cannot be read, or has no text.
        """
        return _joined(self._shared_text(s) for s in self.options.source if s in ("text", "file"))

    def _reference(self, source: str, problem: Problem, seed: int, attempt: Attempt) -> str | None:
        match source:
            case "none":
                return None
            case "solution":
                return problem.solution
            case "text" | "file":
                return self._shared_text(source)
            case "answer":
                return f"The answer is $\\boxed{{{problem.answer}}}$."
            case "neighbour":
                return self._neighbour(problem).solution
            case "rollout":
                if attempt.peers:
                    return random.Random(seed).choice(attempt.peers)
                # Feedback alone is context enough.
                return None if self._shows_feedback else problem.solution
            case "other_text":
                return self._other_text(problem, seed)
            case "feedback":
                return attempt.comment
            case "other_feedback":
                # The control learns from the same completions as its original.
                if not attempt.comment or not attempt.other_comments:
                    return None
                return random.Random(seed).choice(attempt.other_comments)
            case "other" | "wrong_answer":
                return self._of_another(source, problem, seed)
        if ":" in source:
            return self._by_function(source, problem, seed, attempt)
        if source not in problem.fields:
            raise DataError(
                f"context.source {source} is none of {', '.join(CONTEXT_SOURCES)}, and problem "
                f"{problem.name} has no such field; it has {', '.join(problem.fields)}"
                f"{did_you_mean(source, [*CONTEXT_SOURCES, *problem.fields])}"
            )
        return str(problem.fields[source])

    def _of_another(self, source: str, problem: Problem, seed: int) -> str:
        problems = self.problems
        # From a random problem on, the first that fits.
        start = random.Random(seed).randrange(len(problems))
        for i in range(len(problems)):
            other = problems[(start + i) % len(problems)]
            if source == "other" and other.id != problem.id:
                return other.solution
            # None is not wrong: only algebra could tell whether the answers are equal.
            if source == "wrong_answer" and compare_text(other.answer, problem.answer) == "wrong":
                return f"The answer is $\\boxed{{{other.answer}}}$."

        if source == "other":
            needed = "a second problem"
        else:
            needed = f"a problem with another answer than {problem.answer!r}"
        raise DataError(f"context.source {source} needs {needed}, and there is none")

    def _other_text(self, problem: Problem, seed: int) -> str:
        """Text of other problems, as many characters as context.text and context.file have."""
        length = len(_joined([self.options.text, self.file_content]))
        others = [other for other in self.problems if other.id != problem.id]
        if not others:
            raise DataError("context.source other_text needs a second problem, and there is none")
        start = random.Random(seed).randrange(len(others))
        text, count = "", 0
        # Of equal length, so that the control has as many tokens as its original.
        while len(text) < length:
            other = others[(start + count) % len(others)]
            text = _joined([text, other.problem, other.solution])
            count += 1
        return text[:length]

    def _shared_text(self, source: str) -> str:
        if source == "text":
            return self.options.text
        return self.file_content or ""

    @cached_property
    def file_content(self) -> str | None:
        """The content of context.file; None where that is empty. Raises as ``shared``."""
        if self.given is not None or not self.options.file:
            return self.given
        path = Path(self.options.file)
        with wrap_errors(f"context.file {path}", ConfigError, "name a text file in UTF-8"):
            # Some editors put a byte order mark first.
            text = path.read_text("utf-8-sig").strip()
            if not text:
                raise ValueError("it holds no text")
        return text

    @property
    def _shows_feedback(self) -> bool:
        return not set(FEEDBACK_SOURCES).isdisjoint(self.options.source)

    def _depends_on_completion(self, source: str) -> bool:
        if ":" not in source:
            return source in FEEDBACK_SOURCES
        return bool(_arguments_of(context_function(self.options, source)) & COMPLETION_ARGUMENTS)

    def _by_function(self, source: str, problem: Problem, seed: int, attempt: Attempt) -> str:
        function = context_function(self.options, source)
        place = f"context.source {source}, problem {problem.name}"
        given = {"completion": attempt.text, "grade": attempt.grade}
        taken = _arguments_of(function) & COMPLETION_ARGUMENTS
        with wrap_errors(place, DataError, "correct the function"):
            found = function(
                row_of(problem), self._rows, seed, **{name: given[name] for name in taken}
            )
        if not isinstance(found, str):
            raise DataError(
                f"{place}: it returned an object {of_type(found)}, and a context is a text"
            )
        return found

    @cached_property
    def _rows(self) -> list[Mapping[str, Any]]:
        return list(map(row_of, self.problems))

    def _neighbour(self, problem: Problem) -> Problem:
        """The most similar solved problem: by anchors and then words, or by words alone."""
        mine = self._features_of(problem)

        def similarity(other: Problem) -> list[float]:
            pairs = zip(mine, self._features[other.id], strict=True)
            return [len(a & b) / max(len(a | b), 1) for a, b in pairs]

        others = [p for p in self.problems if p.solution and p.id != problem.id]
        if not others:
            raise DataError("context.source neighbour needs a second problem with a solution")
        # Lists compare in order: words decide between equal anchors, and the first row between
        # equals.
        return max(others, key=similarity)

    @cached_property
    def _features(self) -> dict[str, list[set[str]]]:
        return {problem.id: self._features_of(problem) for problem in self.problems}

    def _features_of(self, problem: Problem) -> list[set[str]]:
        words = set(re.findall(r"\w+", problem.problem.casefold()))
        if self.options.alignment == "anchors":
            return [set(anchors(problem.problem)), words]
        return [words]


def context_function(config: ContextConfig, source: str) -> ContextFunction:
    """The function that a source names as "module:function", with its options bound to it.

    Raises ConfigError for what is no function, or has arguments that cannot be read.
    """
    function = load_object(source, "context.source", CONTEXT_SOURCES)
    setting = f"context.source {source}"
    try:
        inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one that is written in C
        raise ConfigError(
            f"{setting} is an object {of_type(function)}, which is no function of Python (its row, "
            f"all rows and a seed to a text)"
        ) from None
    return bind_options(function, config.options, "context.options", setting)


def _arguments_of(function: ContextFunction) -> set[str]:
    return set(inspect.signature(function).parameters)


# Asked for every completion, twice, and mostly of the same references.
@lru_cache(maxsize=100_000)
def _has_anchors(text: str) -> bool:
    return bool(anchors(text))


def with_source(options: ContextConfig, source: str, **changes: Any) -> ContextConfig:
    """The settings with another source; text and file are kept where it shows or measures them."""
    kept: dict[str, Any] = {}
    for key in ("text", "file"):
        kept[key] = getattr(options, key) if source in (key, "other_text") else ""
    return replace(options, source=(source,), **kept, **changes)


def _joined(texts: Iterable[str | None]) -> str:
    return "\n\n".join(filter(None, texts))
