"""What an evaluation leaves on disk: every answer as soon as it is there, and all that grading it again needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          who was asked, and how: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line an answer, in the order in which they came
      grades.jsonl        one line an answer: both verdicts with their reasons, and its vote

A store belongs to one setting. Asked in another, it refuses and says what differs; only the number of problems and of
answers a problem may change. A line that a crash cut short is dropped, counted, and asked for again. One process at a
time works on a store, and none holds all its texts in memory.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import IO, Any

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
        prompt: digest of the prompt that was answered (`digest`).
        text: as written, think tags included.
        tokens: its length; ``truncated``: it was cut there, at the limit.
        source: who wrote it: a server's address, or "local".
    """

    problem: str
    sample: int
    prompt: str
    text: str
    tokens: int
    truncated: bool
    source: str


@dataclass(frozen=True)
class Store:
    """A folder with the answers of one policy to one benchmark, open for this process alone.

    Attributes:
        asked: the setting, as in asked.json; ``samples`` is the k.
        written: problem and sample of every answer, also those beyond what is asked for now.
        dropped: lines of completions.jsonl that were damaged, and are gone.
        file: completions.jsonl, at its end.
    """

    folder: Path
    asked: dict[str, Any]
    problems: list[Problem]
    written: set[tuple[str, int]]
    dropped: int
    file: IO[bytes]

    @property
    def rows(self) -> list[tuple[Problem, int]]:
        """Every (problem, sample) that is asked for, problem by problem."""
        return [(problem, sample) for problem in self.problems for sample in range(self.asked["samples"])]

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        """Those of them that have no answer yet."""
        return [(problem, sample) for problem, sample in self.rows if (problem.id, sample) not in self.written]

    def add(self, answer: Answer) -> None:
        """Write an answer; it is on disk when the call returns. Raises StoreError where that fails."""
        line = (json.dumps(asdict(answer), ensure_ascii=False) + "\n").encode("utf-8", "replace")
        with _or_store_error(self.folder / "completions.jsonl"):
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "")
        self.written.add((answer.problem, answer.sample))

    def answers(self) -> Iterator[Answer]:
        """What is asked for and there, in the order in which it came."""
        asked = {(problem.id, sample) for problem, sample in self.rows}
        for answer, _ in _lines(self.folder / "completions.jsonl"):
            if answer is not None and (answer.problem, answer.sample) in asked:
                yield answer


@contextmanager
def open_store(
    folder: Path, asked: Mapping[str, Any], problems: Sequence[Problem], prompts: Sequence[Sequence[int]]
) -> Iterator[Store]:
    """The store of these problems in this setting: a new one, or what is there already.

    Raises:
        StoreError: there is one of another setting (the message has every difference), another process works on it,
            or it cannot be written.
    """
    with _or_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _require_same(folder, asked, problems, prompts)
        versions = _read_asked(folder)["versions"] if (folder / "asked.json").exists() else []
        versions += [asked["versions"]] if asked["versions"] not in versions else []
        rows = [{"id": problem.id, "problem": problem.problem, "answer": problem.answer} for problem in problems]
        write(folder / "problems.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        write(folder / "asked.json", json.dumps({**asked, "versions": versions}, indent=2) + "\n")
        with _opened(folder) as store:
            yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """A store as it is, in its own setting.

    Raises:
        StoreError: no store there, its setting or problems are damaged, or another process works on it.
    """
    _read_asked(folder)
    with locked(folder), _opened(folder) as store:
        yield store


def find_stores(folder: Path) -> list[Path]:
    """The stores in a folder, at any depth, sorted; the folder itself if it is one."""
    return sorted(path.parent for path in folder.resolve().rglob("asked.json"))


def write(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either the old one or the whole new one. Raises StoreError where that fails."""
    partial = path.with_name(f".{path.name}.partial")
    with _or_store_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        partial.replace(path)


def digest(prompt: Sequence[int]) -> str:
    """What tells a prompt from another."""
    return hashlib.sha256(" ".join(map(str, prompt)).encode()).hexdigest()[:16]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder. Raises StoreError where one is at work there."""
    with _or_store_error(folder):
        lock = (folder / ".lock").open("wb")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder}: another process is at work there; wait, or name another folder") from None
        except OSError:
            pass  # a file system without locks
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[Store]:
    path = folder / "completions.jsonl"
    written: set[tuple[str, int]] = set()
    dropped = 0
    for answer, _ in _lines(path):
        key = (answer.problem, answer.sample) if answer else None
        dropped += key is None or key in written
        written |= {key} if key else set()
    with _or_store_error(path):
        if dropped:
            _mend(path)
        file = path.open("ab", buffering=0)
    with file:
        asked, problems = _read_asked(folder), _read_problems(folder)
        yield Store(folder, asked, problems, written, dropped, file)


def _mend(path: Path) -> None:
    """Leave the first good line of every answer."""
    partial, seen = path.with_name(f".{path.name}.partial"), set()
    with partial.open("wb") as file:
        for answer, line in _lines(path):
            if answer is not None and (answer.problem, answer.sample) not in seen:
                seen.add((answer.problem, answer.sample))
                file.write(line.rstrip(b"\n") + b"\n")
    partial.replace(path)


def _lines(path: Path) -> Iterator[tuple[Answer | None, bytes]]:
    """Every line with its answer; None where it is damaged, or was cut: also a last one without an end."""
    with _or_store_error(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:  # only "\n" ends a line: an answer may hold U+2028 and its like
                answer = _parse(line) if line.endswith(b"\n") else None
                yield answer, line


def _parse(line: bytes) -> Answer | None:
    try:
        answer = Answer(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    return answer if [type(x) for x in astuple(answer)] == [str, int, str, str, int, bool, str] else None


def _require_same(
    folder: Path, asked: Mapping[str, Any], problems: Sequence[Problem], prompts: Sequence[Sequence[int]]
) -> None:
    """Refuse a store of another setting, whose answers are not answers to these prompts."""
    path = folder / "completions.jsonl"
    if not (folder / "asked.json").exists():
        if path.exists() and path.stat().st_size:
            raise StoreError(f"{path} holds answers, and nothing says in which setting (no asked.json); move it away")
        return
    before = _read_asked(folder)
    names = [name for name in {**before, **asked} if name not in MAY_CHANGE and before.get(name) != asked.get(name)]
    lines = [f"{name}: {before.get(name)!r} -> {asked.get(name)!r}" for name in names]
    wanted = {problem.id: digest(prompt) for problem, prompt in zip(problems, prompts, strict=True)}
    others = {a.problem for a, _ in _lines(path) if a and wanted.get(a.problem, a.prompt) != a.prompt}
    lines += [
        f"problem {name}: its prompt was another one (the problem's text or the model's chat template has changed)"
        for name in sorted(others)
    ]
    if lines:
        raise StoreError(
            f"{folder} holds an evaluation in another setting:\n  "
            + "\n  ".join(lines[:10])
            + "\nRepeat that setting to go on with it, or choose another place (--folder)"
        )


def _read_asked(folder: Path) -> dict[str, Any]:
    path = folder / "asked.json"
    if not path.exists():
        raise StoreError(f"{folder} holds no evaluation (no asked.json)")
    try:
        with _or_store_error(path):
            asked: dict[str, Any] = json.loads(path.read_text())
        if type(asked["samples"]) is not int or asked["samples"] < 1 or not isinstance(asked["versions"], list):
            raise ValueError("samples or versions make no sense")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged ({error}); evaluate again in another place (--folder)") from None
    return asked


def _read_problems(folder: Path) -> list[Problem]:
    path = folder / "problems.jsonl"
    problems = []
    with _or_store_error(path):
        lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            problems.append(Problem(str(row["problem"]), "", str(row["answer"]), str(row["id"])))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} line {number} is damaged ({error}); `paint eval` writes it again") from None
    return problems


@contextmanager
def _or_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(f"{path}: {reason}; nothing that was stored before is lost") from error
