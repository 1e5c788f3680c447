"""What an evaluation leaves on disk: every answer as soon as it is there, and all that grading it again needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          who was asked, and how: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line an answer, in the order in which they came
      grades.jsonl        one line an answer: both verdicts with their reasons, and its vote

A store belongs to one setting. Asked in another, it refuses and says what differs; only the number of problems and of
answers a problem may change. A line that a crash cut short is dropped, counted, and asked for again.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from paint import PaintError
from paint.data import Problem

MAY_CHANGE = {"samples", "versions"}


class StoreError(PaintError, RuntimeError):
    """A store cannot be read, written, or gone on with; the message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion of an evaluation.

    Attributes:
        problem: id of the problem; ``sample``: which of its k answers, from 0.
        text: as written, think tags included.
        tokens: its length; ``truncated``: it was cut there, at the limit.
        source: who wrote it: a server's address, or "local".
    """

    problem: str
    sample: int
    text: str
    tokens: int
    truncated: bool
    source: str


@dataclass(frozen=True)
class Store:
    """A folder with the answers of one policy to one benchmark.

    Attributes:
        asked: the setting, as in asked.json; ``samples`` is the k.
        answers: by problem and sample, also those beyond what is asked for now.
        dropped: lines of completions.jsonl that were damaged.
    """

    folder: Path
    asked: dict[str, Any]
    problems: list[Problem]
    answers: dict[tuple[str, int], Answer]
    dropped: int

    @property
    def rows(self) -> list[tuple[Problem, int]]:
        """Every (problem, sample) that is asked for, problem by problem."""
        return [(problem, sample) for problem in self.problems for sample in range(self.asked["samples"])]

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        """Those of them that have no answer yet."""
        return [(problem, sample) for problem, sample in self.rows if (problem.id, sample) not in self.answers]

    @contextmanager
    def adding(self) -> Iterator[Callable[[Answer], None]]:
        """Within this block answers can be added; each is on disk when the call returns. Damaged lines are taken out.

        Raises:
            StoreError: another process is adding to this store, or the disk is full.
        """
        path = self.folder / "completions.jsonl"
        with ExitStack() as stack, _or_store_error(path):
            lock = stack.enter_context((self.folder / ".lock").open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"{path}: another process is adding to this evaluation; wait for it") from None
            answers, dropped = _read_answers(path)
            self.answers.update(answers)  # there may be more since they were read
            if dropped or (path.exists() and not path.read_bytes().endswith(b"\n")):
                write(path, b"".join(map(_line, answers.values())))
            file = stack.enter_context(path.open("ab", buffering=0))

            def add(answer: Answer) -> None:
                with _or_store_error(path):
                    file.write(_line(answer))
                self.answers[answer.problem, answer.sample] = answer

            yield add


def open_store(
    folder: Path, asked: Mapping[str, Any], problems: Sequence[Problem], prompts: Sequence[Sequence[int]]
) -> Store:
    """The store of these problems in this setting: a new one, or what is there already.

    Raises:
        StoreError: there is one of another setting (the message has every difference), or it cannot be written.
    """
    digests = [_digest(prompt) for prompt in prompts]
    with _or_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if (folder / "asked.json").exists():
        before, known = _read_asked(folder), {row["id"]: row for row in _read_problems(folder)}
        names = [name for name in {**before, **asked} if name not in MAY_CHANGE and before.get(name) != asked.get(name)]
        lines = [f"{name}: {before.get(name)!r} -> {asked.get(name)!r}" for name in names]
        lines += [
            f"problem {problem.id}: its prompt is another one (the problem's text or the model's chat template changed)"
            for problem, digest in zip(problems, digests, strict=True)
            if known.get(problem.id, {}).get("prompt", digest) != digest
        ]
        if lines:
            raise StoreError(
                f"{folder} holds an evaluation in another setting:\n  "
                + "\n  ".join(lines[:10])
                + "\nRepeat that setting to go on with it, or choose another place with --folder"
            )
    rows = [
        {"id": problem.id, "problem": problem.problem, "answer": problem.answer, "prompt": digest}
        for problem, digest in zip(problems, digests, strict=True)
    ]
    write(folder / "problems.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write(folder / "asked.json", json.dumps(dict(asked), indent=2) + "\n")
    return read_store(folder)


def read_store(folder: Path) -> Store:
    """What a store holds; damaged lines of completions.jsonl count as if they were not there.

    Raises:
        StoreError: no store there, or its setting or problems are damaged.
    """
    asked = _read_asked(folder)
    problems = [Problem(row["problem"], "", row["answer"], row["id"]) for row in _read_problems(folder)]
    answers, dropped = _read_answers(folder / "completions.jsonl")
    return Store(folder, asked, problems, answers, dropped)


def find_stores(folder: Path) -> list[Path]:
    """The stores in a folder, at any depth, sorted; the folder itself if it is one."""
    return sorted(path.parent for path in folder.rglob("asked.json"))


def write(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either the old one or the whole new one. Raises StoreError where that fails."""
    partial = path.with_name(f".{path.name}.partial")
    with _or_store_error(path):
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        partial.replace(path)


def _read_answers(path: Path) -> tuple[dict[tuple[str, int], Answer], int]:
    """The first good line of every answer, and how many lines are damaged or come again."""
    answers: dict[tuple[str, int], Answer] = {}
    dropped = 0
    # Only "\n" ends a line: an answer may hold U+2028 and its like.
    for line in filter(None, path.read_bytes().split(b"\n") if path.exists() else []):
        try:
            answer = Answer(**json.loads(line))
            types = [type(value) for value in astuple(answer)]
            if types != [str, int, str, int, bool, str] or (answer.problem, answer.sample) in answers:
                raise ValueError
        except (ValueError, TypeError):
            dropped += 1
            continue
        answers[answer.problem, answer.sample] = answer
    return answers, dropped


def _line(answer: Answer) -> bytes:
    return (json.dumps(asdict(answer), ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _read_asked(folder: Path) -> dict[str, Any]:
    path = folder / "asked.json"
    try:
        asked: dict[str, Any] = json.loads(path.read_text())
        if type(asked["samples"]) is not int:
            raise ValueError("samples is not a number")
    except FileNotFoundError:
        raise StoreError(f"{folder} holds no evaluation (no asked.json)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged ({error}); evaluate again with another --folder") from None
    return asked


def _read_problems(folder: Path) -> list[dict[str, str]]:
    path = folder / "problems.jsonl"
    rows = []
    with _or_store_error(path):
        lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in ("id", "problem", "answer", "prompt")})
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} line {number} is damaged ({error}); `paint eval` writes it again") from None
    return rows


def _digest(prompt: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, prompt)).encode()).hexdigest()[:16]


@contextmanager
def _or_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(f"{path}: {reason}; nothing that was stored before is lost") from error
