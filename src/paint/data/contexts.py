"""The teacher's privileged contexts, before and after masking.

    sources -> references -> overlap with the completion -> mask ratio -> context

Source: section 'Overlap-Adaptive Partial Solution Conditioning'. All sources but the solution are
ours. Every choice is a pure function of (seed, problem).
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from paint.config.schema import CONTEXT_SOURCES, ConfigError, ContextConfig
from paint.core.errors import format_short, wrap_errors
from paint.core.options import bind_options
from paint.core.plugins import load_object
from paint.data.problems import Problem, row_of
from paint.data.readers import DataError
from paint.grading.math.equality import compare_text
from paint.objective.masking import MARKER, anchors, mask_ratio, mask_solution, overlap_metrics
from paint.objective.messages import announces_complete

IN_FULL = ("text", "file", "answer", "wrong_answer")
"""Sources that are never masked."""

CONTROLS = ("none", "other", "answer", "wrong_answer")
"""Sources whose overlap is that of the problem's own solution."""

OTHER_ROWS = ("neighbour", "rollout")
"""Sources that show what other rows hold, apart from controls."""

FILE_BYTES = 2**22
"""Most bytes of context.file: a million tokens or so, more than a model reads."""

ContextFunction = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]], int], str]
"""A source of your own: the row, all rows and a seed to the reference of the row."""


@dataclass(frozen=True)
class Context:
    """What the teacher reads: the text, None for nothing, and whether it is announced complete."""

    text: str | None
    complete: bool


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

    def references(self, problem: Problem, seed: int, peers: Sequence[str] = ()) -> dict[str, str]:
        """The reference of each source, before masking.

        Args:
            seed: chooses among other problems and peers.
            peers: verified completions of the problem in other rows of its step. Without any, the
                source rollout is the problem's solution, or nothing.

        Raises:
            ConfigError: the file of context.file cannot be read.
            DataError: a source needs another problem or another answer, and there is none.
        """
        found = {}
        for s in self.options.source:
            found[s] = self._reference(s, problem, seed, peers)
        references: dict[str, str] = {}
        for source, text in found.items():
            if text:
                references[source] = text
        return references

    def of_own_row(self, problem: Problem) -> dict[str, str]:
        """The references that come from no other row."""
        sources = []
        for s in self.options.source:
            if s not in OTHER_ROWS + CONTROLS:
                sources.append(s)
        texts: dict[str, str] = {}
        for source in sources:
            texts[source] = self._reference(source, problem, 0, ()) or ""
        return texts

    def longest(self, problem: Problem) -> str:
        """The longest context of a problem by its own row: all of it, and the marker."""
        texts = {"solution": problem.solution} | self.of_own_row(problem)
        return f"{_joined(texts.values())} {MARKER}"

    def aligned(self, problem: Problem, references: Mapping[str, str]) -> str:
        """The text that a completion is compared with: the references that are masked.

        For controls, and where nothing is masked, it is the problem's own solution.
        """
        masked = []
        for s, text in references.items():
            if s not in IN_FULL + CONTROLS:
                masked.append(text)
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
        return self.options.alignment != "anchors" or _has_anchors(reference)

    def context(self, references: Mapping[str, str], ratio: float, seed: int) -> Context:
        """The references with ``ratio`` of each masked that is not given in full."""
        masked = dict(references)
        for source, text in references.items():
            if source not in IN_FULL and self.is_masked(text):
                masked[source] = mask_solution(
                    text, ratio, placement=self.options.placement, seed=seed
                )
        complete = announces_complete(self.options.wording, is_complete=masked == references)
        return Context(_joined(masked.values()) or None, complete)

    @cached_property
    def shared(self) -> str:
        """The text of the sources text and file, which is the same for all problems.

        Raises:
            ConfigError: the file cannot be read, has no text or over FILE_BYTES, or is a pipe.
        """
        return _joined(self._shared_text(s) for s in self.options.source if s in ("text", "file"))

    def _reference(
        self, source: str, problem: Problem, seed: int, peers: Sequence[str]
    ) -> str | None:
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
                if peers:
                    return random.Random(seed).choice(peers)
                return problem.solution
            case "other" | "wrong_answer":
                return self._of_another(source, problem, seed)
        if ":" in source:
            return self._by_function(source, problem, seed)
        if source not in problem.fields:
            raise DataError(
                f"context.source {source} is none of {', '.join(CONTEXT_SOURCES)}, and problem "
                f"{problem.id} has no such field; it has {', '.join(problem.fields)}"
            )
        return str(problem.fields[source])

    def _of_another(self, source: str, problem: Problem, seed: int) -> str:
        problems = self.problems
        start = random.Random(seed).randrange(len(problems))
        for i in range(len(problems)):
            other = problems[(start + i) % len(problems)]
            if source == "other" and other.id != problem.id:
                return other.solution
            if source == "wrong_answer" and compare_text(other.answer, problem.answer) == "wrong":
                return f"The answer is $\\boxed{{{other.answer}}}$."

        if source == "other":
            needed = "a second problem"
        else:
            needed = f"a problem with another answer than {problem.answer!r}"
        raise DataError(f"context.source {source} needs {needed}, and there is none")

    def _shared_text(self, source: str) -> str:
        if source == "text":
            return self.options.text
        return self.file_content or ""

    @cached_property
    def file_content(self) -> str | None:
        """The content of context.file; None where no source is "file". Raises as ``shared``."""
        if self.given is not None or "file" not in self.options.source:
            return self.given
        path = Path(self.options.file)
        with wrap_errors(f"context.file {path}", ConfigError, "name a text file in UTF-8"):
            if path.exists() and not path.is_file():
                raise ValueError("it is a folder, a pipe or a device")
            if path.stat().st_size > FILE_BYTES:
                raise ValueError(f"it is longer than {FILE_BYTES:,} bytes")
            text = path.read_text("utf-8-sig").strip()
            if not text:
                raise ValueError("it holds no text")
        return text

    def _by_function(self, source: str, problem: Problem, seed: int) -> str:
        function = context_function(self.options, source)
        place = f"context.source {source}, problem {problem.id}"
        with wrap_errors(place, DataError, "correct the function"):
            found = function(row_of(problem), self._rows, seed)
            if isinstance(found, str):
                found.encode("utf-8")  # half of a surrogate pair is no text
        if not isinstance(found, str):
            raise DataError(f"{place}: it returned {format_short(found)}, and a context is a text")
        return found

    @cached_property
    def _rows(self) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        for problem in self.problems:
            rows.append(row_of(problem))
        return rows

    def _neighbour(self, problem: Problem) -> Problem:
        """The most similar solved problem: by anchors and then words, or by words alone."""
        mine = self._features_of(problem)

        def similarity(other: Problem) -> list[float]:
            pairs = zip(mine, self._features[other.id], strict=True)
            similarities: list[float] = []
            for a, b in pairs:
                similarities.append(len(a & b) / max(len(a | b), 1))
            return similarities

        others = []
        for p in self.problems:
            if p.solution and p.id != problem.id:
                others.append(p)
        if not others:
            raise DataError("context.source neighbour needs a second problem with a solution")
        return max(others, key=similarity)

    @cached_property
    def _features(self) -> dict[str, list[set[str]]]:
        features: dict[str, list[set[str]]] = {}
        for problem in self.problems:
            features[problem.id] = self._features_of(problem)
        return features

    def _features_of(self, problem: Problem) -> list[set[str]]:
        words = set(re.findall(r"\w+", problem.problem.casefold()))
        is_by_anchors = self.options.alignment == "anchors"
        if is_by_anchors:
            return [set(anchors(problem.problem)), words]
        return [words]


def context_function(config: ContextConfig, source: str) -> ContextFunction:
    """The function that a source names as "module:function", with its options bound to it."""
    function = load_object(source, "context.source", CONTEXT_SOURCES)
    setting = f"context.source {source}"
    return bind_options(function, config.options, "context.options", setting)


@lru_cache(maxsize=100_000)
def _has_anchors(text: str) -> bool:
    return bool(anchors(text))


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
