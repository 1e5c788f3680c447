"""The teacher's privileged contexts, before and after masking.

    sources -> references -> overlap with the completion -> mask ratio -> context

Source: section 'Overlap-Adaptive Partial Solution Conditioning'. All sources but the solution are
ours. Every choice is a pure function of (seed, problem, completions of the step).
"""

import inspect
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from paint.config.context_sources import SOURCES, context_source
from paint.config.schema import ConfigError, ContextConfig
from paint.core.errors import did_you_mean, is_unicode, wrap_errors
from paint.core.extensions import bind_options, extension_errors, load_object, of_type, require_call
from paint.core.user_code import user_errors
from paint.data.problems import Problem, row_of
from paint.data.readers import DataError
from paint.grading.contract import Grade
from paint.objective.masking import MARKER, anchors, mask_ratio, mask_solution, overlap_metrics
from paint.objective.messages import announces_complete
from strictgrade.equality import compare_text

ContextFunction = Callable[..., str]
"""A source of your own: the row, all rows and a seed to the reference of the row."""

ROW_ARGUMENTS = ("row", "rows", "seed")
"""What such a function is called with, by place."""

COMPLETION_ARGUMENTS = {"completion", "grade"}
"""Further arguments, by name, of a function whose context depends on the completion."""

PLACEBO = "It rained in the morning, and in the afternoon the sun came out over the hills. "
"""What a placebo says: nothing of any problem, and no anchor that an overlap could count."""


@dataclass(frozen=True)
class Attempt:
    """A completion, and what other completions of its step add to what the teacher may read.

    Attributes:
        grade: None where nothing is graded.
        row: of the completion in its step.
        peers: verified completions of the problem in other rows.
        comments: what the grader said of the step's completions, each with its problem's id.
    """

    text: str = ""
    grade: Grade | None = None
    row: int = 0
    problem_id: str = ""
    peers: Sequence[str] = ()
    comments: Sequence[tuple[str, str]] = ()

    @property
    def comment(self) -> str:
        return self.grade.comment if self.grade else ""

    @property
    def other_comments(self) -> list[str]:
        """What was said of other completions of the problem; or else of other problems'."""
        # A remark that is made of this completion, too, is no control.
        others = [(problem, said) for problem, said in self.comments if said != self.comment]
        of_problem = [said for problem, said in others if problem == self.problem_id]
        return of_problem or [said for _, said in others]


NO_ATTEMPT = Attempt()
"""Before there is a completion."""


def with_others(completions: Sequence[Attempt]) -> dict[int, Attempt]:
    """Return all completions of a step by row, each with what the others add."""
    comments = [(one.problem_id, one.comment) for one in completions if one.comment]
    right: defaultdict[str, list[Attempt]] = defaultdict(list)
    for one in completions:
        if one.grade and one.grade.correct:
            right[one.problem_id].append(one)
    attempts = {}
    for one in completions:
        peers = [peer.text for peer in right[one.problem_id] if peer.row != one.row]
        attempts[one.row] = replace(one, peers=peers, comments=comments)
    return attempts


@dataclass(frozen=True)
class Context:
    """What the teacher reads: the text, None for nothing, and whether it is announced complete.

    ``names`` are what templates see by name: completion, and with feedback also feedback and
    reference (the other sources).
    """

    text: str | None
    complete: bool
    names: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Contexts:
    """The contexts of a run's problems, by the settings of the section context.

    ``given`` is the content of context.file, if it was read before.
    """

    options: ContextConfig
    problems: Sequence[Problem]
    given: str | None = None

    @property
    def needs_peers(self) -> bool:
        """Whether a source shows other completions of the step."""
        return any(context_source(s).grade == "verdict" for s in self.options.source)

    @property
    def needs_attempts(self) -> bool:
        return any(context_source(s).origin == "step" for s in self.options.source)

    @cached_property
    def reads_feedback(self) -> bool:
        """Whether a source depends on the completion, so that it may have nothing to show."""
        return any(map(self._depends_on_completion, self.options.source))

    def references(
        self, problem: Problem, seed: int, attempt: Attempt = NO_ATTEMPT
    ) -> dict[str, str]:
        """Return the reference of each source that has one, before masking.

        ``seed`` chooses among other problems and completions. Raises ConfigError if context.file
        cannot be read, DataError if a source needs another problem or answer, and there is none.
        """
        sources = self.options.source
        texts = {source: self._read(source, problem, seed, attempt) for source in sources}
        return {source: text for source, text in texts.items() if text}

    def of_own_row(self, problem: Problem) -> dict[str, str]:
        """Return the references that depend on no other row and no completion."""
        references = {}
        for name in self.options.source:
            source = context_source(name)
            is_of_others = source.is_control or source.reads_others
            if not is_of_others and not self._depends_on_completion(name):
                references[name] = self._read(name, problem, 0, NO_ATTEMPT) or ""
        return references

    def longest(self, problem: Problem) -> str:
        """Return the longest context of a problem by its own row: all of it, and the marker."""
        texts = {"solution": problem.solution} | self.of_own_row(problem)
        for name in self.options.source:
            if context_source(name).bounded_by == "setting":
                texts[name] = self._read(name, problem, 0, NO_ATTEMPT) or ""
        return f"{_joined(texts.values())} {MARKER}"

    def aligned(self, problem: Problem, references: Mapping[str, str]) -> str:
        """Return the references that are masked, with which a completion is compared.

        For controls, and where nothing is masked, it is the problem's own solution.
        """
        aligned = (text for s, text in references.items() if context_source(s).is_aligned)
        return _joined(aligned) or problem.solution

    def measure(
        self, completion: str, problem: Problem, references: Mapping[str, str]
    ) -> dict[str, float]:
        """Return the overlap of a completion with its references, and their mask ratio."""
        options, text = self.options, self.aligned(problem, references)
        scores = overlap_metrics(completion, text, words=options.alignment == "words")
        ratio = mask_ratio(
            scores["overlap"], wrong=options.mask_ratio_wrong, correct=options.mask_ratio_correct
        )
        if options.alignment == "fixed":
            ratio = options.mask_ratio_wrong
        return {**scores, "mask_ratio": ratio if self.is_masked(text) else 0.0}

    def is_masked(self, reference: str) -> bool:
        """Return whether a reference has anchors, or is compared by other pieces than anchors."""
        # Without anchors an overlap of 0 says nothing of the completion.
        return self.options.alignment != "anchors" or _has_anchors(reference)

    def context(
        self, references: Mapping[str, str], ratio: float, seed: int, attempt: Attempt = NO_ATTEMPT
    ) -> Context:
        """Return the references with ``ratio`` of each masked that is not given in full."""
        masked = dict(references)
        for source, text in references.items():
            if context_source(source).masked and self.is_masked(text):
                masked[source] = mask_solution(
                    text, ratio, placement=self.options.placement, seed=seed
                )
        # A ratio that rounds to no character leaves the reference complete (fidelity C4).
        complete = announces_complete(self.options.wording, is_complete=masked == references)
        names = {"completion": attempt.text}
        if self.shows_feedback:
            # SDPO's wording has a place for each.
            feedback = [masked[s] for s in masked if context_source(s).shows_feedback]
            others = [masked[s] for s in masked if not context_source(s).shows_feedback]
            names |= {"feedback": _joined(feedback), "reference": _joined(others)}
        return Context(_joined(masked.values()) or None, complete, names)

    @cached_property
    def shared(self) -> str:
        """The text of the sources text and file. Raises ConfigError if the file has no text."""
        texts = {"text": self.options.text, "file": self.file_content}
        return _joined(texts.get(source) for source in self.options.source)

    def _read(self, source: str, problem: Problem, seed: int, attempt: Attempt) -> str | None:
        if source in READERS:
            return READERS[source](self, problem, seed, attempt)
        if context_source(source).origin == "function":
            return self._by_function(source, problem, seed, attempt)
        if source not in problem.fields:
            raise DataError(
                f"context.source {source} is none of {', '.join(SOURCES)}, and problem "
                f"{problem.name} has no such field; it has {', '.join(problem.fields)}"
                f"{did_you_mean(source, [*SOURCES, *problem.fields])}"
            )
        return str(problem.fields[source])

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
    def shows_feedback(self) -> bool:
        return any(context_source(source).shows_feedback for source in self.options.source)

    def _depends_on_completion(self, source: str) -> bool:
        record = context_source(source)
        if record.origin != "function":
            return record.shows_feedback
        return bool(_arguments_of(context_function(self.options, source)) & COMPLETION_ARGUMENTS)

    def _by_function(self, source: str, problem: Problem, seed: int, attempt: Attempt) -> str:
        function = context_function(self.options, source)
        place = f"context.source {source}, problem {problem.name}"
        given = {"completion": attempt.text, "grade": attempt.grade}
        taken = _arguments_of(function) & COMPLETION_ARGUMENTS
        with user_errors(place, DataError, "correct the function"):
            found = function(
                row_of(problem), self._rows, seed, **{name: given[name] for name in taken}
            )
        if not isinstance(found, str):
            raise DataError(
                f"{place}: it returned an object {of_type(found)}, and a context is a text"
            )
        if not is_unicode(found):
            raise DataError(f"{place}: it returned a text with half of a surrogate pair")
        return found

    @cached_property
    def _rows(self) -> list[Mapping[str, Any]]:
        return list(map(row_of, self.problems))

    @cached_property
    def features(self) -> dict[str, list[set[str]]]:
        return {problem.id: self.features_of(problem) for problem in self.problems}

    def features_of(self, problem: Problem) -> list[set[str]]:
        words = set(re.findall(r"\w+", problem.problem.casefold()))
        if self.options.alignment == "anchors":
            return [set(anchors(problem.problem)), words]
        return [words]


Reader = Callable[[Contexts, Problem, int, Attempt], str | None]
"""The text of a source for a problem, by a seed and an attempt; None where there is nothing."""


def _rollout(contexts: Contexts, problem: Problem, seed: int, attempt: Attempt) -> str | None:
    if attempt.peers:
        return random.Random(seed).choice(attempt.peers)
    # Feedback alone is context enough.
    return None if contexts.shows_feedback else problem.solution


def _other_feedback(_: Contexts, problem: Problem, seed: int, attempt: Attempt) -> str | None:
    # The control learns from the same completions as its original.
    others = attempt.other_comments if attempt.comment else []
    return random.Random(seed).choice(others) if others else None


def _other(contexts: Contexts, problem: Problem, seed: int, _: Attempt) -> str:
    for other in _from_random_on(contexts.problems, seed):
        if other.id != problem.id:
            return other.solution
    raise DataError("context.source other needs a second problem, and there is none")


def _wrong_answer(contexts: Contexts, problem: Problem, seed: int, _: Attempt) -> str:
    for other in _from_random_on(contexts.problems, seed):
        # None is not wrong: only algebra could tell whether the answers are equal.
        if compare_text(other.answer, problem.answer) == "wrong":
            return _boxed(other.answer)
    raise DataError(
        f"context.source wrong_answer needs a problem with another answer than "
        f"{problem.answer!r}, and there is none"
    )


def _other_text(contexts: Contexts, problem: Problem, seed: int, _: Attempt) -> str:
    length = _setting_length(contexts)
    others = [other for other in contexts.problems if other.id != problem.id]
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


def _setting_length(contexts: Contexts) -> int:
    return len(_joined([contexts.options.text, contexts.file_content]))


def _placebo(length: int) -> str:
    return (PLACEBO * (length // len(PLACEBO) + 1))[:length]


def _neighbour(contexts: Contexts, problem: Problem, _: int, attempt: Attempt) -> str:
    """The solution of the most similar problem: by anchors and then words, or by words alone."""
    mine = contexts.features_of(problem)

    def similarity(other: Problem) -> list[float]:
        pairs = zip(mine, contexts.features[other.id], strict=True)
        return [len(a & b) / max(len(a | b), 1) for a, b in pairs]

    others = [p for p in contexts.problems if p.solution and p.id != problem.id]
    if not others:
        raise DataError("context.source neighbour needs a second problem with a solution")
    # Lists compare in order: words decide between equal anchors, and the first row between equals.
    return max(others, key=similarity).solution


READERS: dict[str, Reader] = {
    "solution": lambda contexts, problem, seed, attempt: problem.solution,
    "text": lambda contexts, problem, seed, attempt: contexts.options.text,
    "file": lambda contexts, problem, seed, attempt: contexts.file_content,
    "neighbour": _neighbour,
    "rollout": _rollout,
    "feedback": lambda contexts, problem, seed, attempt: attempt.comment,
    "none": lambda contexts, problem, seed, attempt: None,
    "other": _other,
    "other_text": _other_text,
    "placebo": lambda contexts, problem, seed, attempt: _placebo(len(problem.solution)),
    "placebo_text": lambda contexts, problem, seed, attempt: _placebo(_setting_length(contexts)),
    "answer": lambda contexts, problem, seed, attempt: _boxed(problem.answer),
    "wrong_answer": _wrong_answer,
    "other_feedback": _other_feedback,
}
"""How each built-in source is read, by its name (paint.config.context_sources)."""


def _from_random_on(problems: Sequence[Problem], seed: int) -> Iterator[Problem]:
    start = random.Random(seed).randrange(len(problems))
    for i in range(len(problems)):
        yield problems[(start + i) % len(problems)]


def _boxed(answer: str) -> str:
    return f"The answer is $\\boxed{{{answer}}}$."


def context_function(config: ContextConfig, source: str) -> ContextFunction:
    """Return the function that a source names as "module:function", with its options bound.

    Raises ConfigError for what is no function, or has arguments that cannot be read.
    """
    function = load_object(source, "context.source", tuple(SOURCES))
    setting = f"context.source {source}"
    try:
        with extension_errors("context.source", source):
            inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one that is written in C
        raise ConfigError(
            f"{setting} is an object {of_type(function)}, which is no function of Python (its row, "
            f"all rows and a seed to a text)"
        ) from None
    bound = bind_options(function, config.options, "context.options", setting)
    name = source.rpartition(":")[2]
    named = sorted(_arguments_of(bound) & COMPLETION_ARGUMENTS)
    wanted = f"{name}({', '.join([*ROW_ARGUMENTS, *named])})"
    require_call(setting, bound, wanted, *ROW_ARGUMENTS, **dict.fromkeys(named))
    return bound


def _arguments_of(function: ContextFunction) -> set[str]:
    return set(inspect.signature(function).parameters)


# Asked for every completion, twice, and mostly of the same references.
@lru_cache(maxsize=100_000)
def _has_anchors(text: str) -> bool:
    return bool(anchors(text))


def with_source(options: ContextConfig, source: str, **changes: Any) -> ContextConfig:
    """Return settings with another source, and text and file where it shows or measures them."""
    measures = context_source(source).bounded_by == "setting"
    kept: dict[str, Any] = {}
    for key, record in SOURCES.items():
        if record.origin == "setting":
            kept[key] = getattr(options, key) if source == key or measures else ""
    return replace(options, source=(source,), **kept, **changes)


def _joined(texts: Iterable[str | None]) -> str:
    return "\n\n".join(filter(None, texts))
