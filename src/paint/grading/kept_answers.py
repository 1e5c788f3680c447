"""Answers of a judge by question, so that the same question is asked once.

A question is a completion and its row, as the function gets them, asked of one grader: its name,
its code and its options. Answers are kept in memory and, of a run or an evaluation, in its folder:

    grader_answers.0.jsonl     a line an answer, as it comes; one file a rank, and each reads all

A line that cannot be read, such as one that a kill has cut, is a question that is asked again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.errors import PaintError, wrap_errors
from paint.grading.contract import Grade

NAME = "grader_answers"


class KeptAnswers:
    """The answers of one grader.

    Args:
        asked: what determines an answer next to the question: name, code and options.
        folder: of a run or an evaluation; None keeps the answers in memory alone.
        rank: of this process, which alone writes its file.
    """

    def __init__(self, asked: Sequence[Any], folder: Path | None = None, rank: int = 0) -> None:
        self._asked = json.dumps(asked, default=str)
        self._folder = folder
        self._rank = rank

    def key(self, question: Sequence[Any]) -> str:
        """The name of a question: the arguments of a call."""
        return storage.digest(self._asked, json.dumps(question, default=str))[:32]

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The answer to a question, as a dict with the fields of a grade; None without one."""
        return self._answers.get(key)

    def add(self, key: str, grade: Grade) -> None:
        """Keep the answer to a question, unless the grader failed, or said nothing.

        Raises PaintError where the file cannot be written.
        """
        if grade.failed or (grade.reward is None and not grade.feedback):
            return
        given = {name: value for name, value in asdict(grade).items() if value}
        answer = {**given, "reward": grade.reward}
        self._answers[key] = answer
        if self._folder is not None:
            path = self._folder / self._own_name
            hint = "make room, or keep no answers (--grading.no-cache)"
            with wrap_errors(path, PaintError, hint):
                storage.append_jsonl(path, [{"key": key, **answer}])

    @cached_property
    def _answers(self) -> dict[str, Mapping[str, Any]]:
        # At the first question: a run's folder is locked, and the files of its ranks are there.
        answers: dict[str, Mapping[str, Any]] = {}
        if self._folder is None:
            return answers
        with wrap_errors(self._folder, PaintError, "keep no answers (--grading.no-cache)"):
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._folder.glob(f"{NAME}.*.jsonl")):
                content = path.read_bytes()
                for line in content.splitlines():
                    with suppress(ValueError, KeyError, TypeError):
                        row = json.loads(line)
                        answers[row.pop("key")] = row
                # Several evaluations may write here at once: nothing that is there is cut off.
                if content and not content.endswith(b"\n") and path.name == self._own_name:
                    with path.open("ab") as file:
                        file.write(b"\n")
        return answers

    @property
    def _own_name(self) -> str:
        return f"{NAME}.{self._rank}.jsonl"
