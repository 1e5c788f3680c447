"""What an evaluation leaves on disk: every sample at once, and all that grading them again needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          who was asked, and how: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line a sample, in the order in which they came
      grades.jsonl        one line a sample: both verdicts with their reasons, and its vote

A store belongs to one setting. Opened in another, it refuses and says what differs; only the
numbers of problems and of samples a problem may change. A line that a crash cut short is dropped,
counted, and asked for again. One process at a time works on a store, and it never holds all texts
in memory.
"""

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import IO, Any

from paint import files
from paint.data.problems import Problem, from_row, to_row
from paint.errors import PaintError

MAY_CHANGE = {"samples", "versions"}
"""What may differ between two calls that fill one store."""


class StoreError(PaintError, RuntimeError):
    """A store cannot be read, written or continued; the message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One stored completion of an evaluation.

    Attributes:
        problem: id of the problem.
        sample: which of the problem's k samples, from 0.
        prompt: digest of the prompt that the policy read (`prompt_digest`).
        text: as written, think tags included.
        tokens: length of the completion.
        truncated: whether it was cut there, at the limit.
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
    """A folder with the samples of one policy on one benchmark, open for this process alone.

    Attributes:
        asked: the setting, as in asked.json; its ``samples`` is k.
        written: problem and number of every stored sample, also of those not asked for now.
        dropped: number of damaged lines that were removed from completions.jsonl.
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
        return [
            (problem, sample)
            for problem in self.problems
            for sample in range(self.asked["samples"])
        ]

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        """The rows that are not stored yet."""
        return [
            (problem, sample)
            for problem, sample in self.rows
            if (problem.id, sample) not in self.written
        ]

    def add(self, sample: Sample) -> None:
        """Write a sample; a kill after this call keeps it. Raises StoreError where that fails."""
        line = files.to_jsonl([asdict(sample)]).encode("utf-8", "replace")
        with _or_store_error(self.folder / "completions.jsonl"):
            # The file is not buffered, and a full disk takes a part of the line without an error.
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "")
        self.written.add((sample.problem, sample.sample))

    def samples(self) -> Iterator[Sample]:
        """The stored samples of all rows, in the order in which they came."""
        wanted = {(problem.id, sample) for problem, sample in self.rows}
        for sample, _ in _lines(self.folder / "completions.jsonl"):
            if sample is not None and (sample.problem, sample.sample) in wanted:
                yield sample


@contextmanager
def open_store(
    folder: Path,
    asked: Mapping[str, Any],
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
) -> Iterator[Store]:
    """The store of these problems in this setting: a new one, or the one in the folder.

    Raises:
        StoreError: the folder's is of another setting (the message has every difference), is
            damaged, or cannot be written.
        FolderInUse: another process works on it.
    """
    with _or_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)

    with files.locked(folder):
        _require_same(folder, asked, problems, prompts)

        versions = _read_asked(folder)["versions"] if (folder / "asked.json").exists() else []
        versions += [asked["versions"]] if asked["versions"] not in versions else []
        rows = [to_row(problem) for problem in problems]
        with _or_store_error(folder):
            files.write(folder / "problems.jsonl", files.to_jsonl(rows))
            files.write_json(folder / "asked.json", {**asked, "versions": versions})

        with _opened(folder) as store:
            yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """A store as it is, in its own setting.

    Raises:
        StoreError: no store there, or its setting or problems are damaged.
        FolderInUse: another process works on it.
    """
    _read_asked(folder)
    with files.locked(folder), _opened(folder) as store:
        yield store


def find_stores(folder: Path) -> list[Path]:
    """The stores in a folder, at any depth, sorted; the folder itself if it is one."""
    return sorted(path.parent for path in folder.resolve().rglob("asked.json"))


def write_grades(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write grades.jsonl, a row a sample. Raises StoreError where that fails."""
    with _or_store_error(folder):
        files.write(folder / "grades.jsonl", files.to_jsonl(rows))


def write_summary(folder: Path, figures: Mapping[str, Any], text: str) -> None:
    """Write summary.json and summary.md. Raises StoreError where that fails."""
    with _or_store_error(folder):
        files.write_json(folder / "summary.json", figures)
        files.write(folder / "summary.md", text)


def prompt_digest(prompt: Sequence[int]) -> str:
    """The digest of a prompt's token ids, as samples store it."""
    return files.digest(" ".join(map(str, prompt)))[:16]


@contextmanager
def _opened(folder: Path) -> Iterator[Store]:
    path = folder / "completions.jsonl"
    written: set[tuple[str, int]] = set()
    dropped = 0
    for sample, _ in _lines(path):
        key = (sample.problem, sample.sample) if sample else None
        dropped += key is None or key in written
        written |= {key} if key else set()

    with _or_store_error(path):
        if dropped:
            files.write(path, _first_lines(path))
        file = path.open("ab", buffering=0)
    with file:
        asked, problems = _read_asked(folder), _read_problems(folder)
        yield Store(folder, asked, problems, written, dropped, file)


def _first_lines(path: Path) -> Iterator[bytes]:
    """The first good line of every sample."""
    seen = set()
    for sample, line in _lines(path):
        if sample is not None and (sample.problem, sample.sample) not in seen:
            seen.add((sample.problem, sample.sample))
            yield line


def _lines(path: Path) -> Iterator[tuple[Sample | None, bytes]]:
    """Every line with its sample: None for a damaged line, and for a last one without its end."""
    with _or_store_error(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:  # only "\n" ends a line: text may hold U+2028 and its like
                yield (_parse(line) if line.endswith(b"\n") else None), line


def _parse(line: bytes) -> Sample | None:
    try:
        sample = Sample(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    types = [type(value) for value in astuple(sample)]
    return sample if types == [str, int, str, str, int, bool, str] else None


def _require_same(
    folder: Path,
    asked: Mapping[str, Any],
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
) -> None:
    """Refuse a store of another setting, or with samples of other prompts."""
    path = folder / "completions.jsonl"
    if not (folder / "asked.json").exists():
        if path.exists() and path.stat().st_size:
            raise StoreError(
                f"{path} holds samples, and nothing says in which setting (no asked.json); "
                f"move it away"
            )
        return

    before = _read_asked(folder)
    lines = [
        f"{name}: {before.get(name)!r} -> {asked.get(name)!r}"
        for name in {**before, **asked}
        if name not in MAY_CHANGE and before.get(name) != asked.get(name)
    ]

    wanted = {
        problem.id: prompt_digest(prompt) for problem, prompt in zip(problems, prompts, strict=True)
    }
    changed = {
        sample.problem
        for sample, _ in _lines(path)
        if sample and wanted.get(sample.problem, sample.prompt) != sample.prompt
    }
    lines += [
        f"problem {name}: its prompt was another one (the problem's text or the model's chat "
        f"template has changed)"
        for name in sorted(changed)
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
        samples, versions = asked["samples"], asked["versions"]
        if type(samples) is not int or samples < 1 or not isinstance(versions, list):
            raise ValueError("samples or versions make no sense")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is damaged ({error}); evaluate again in another place (--folder)"
        ) from None
    return asked


def _read_problems(folder: Path) -> list[Problem]:
    path = folder / "problems.jsonl"
    problems = []
    # The file is written whole, so a last line without its end is damage and not to be left out.
    with _or_store_error(path):
        lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            problems.append(from_row(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} line {number} is damaged ({error}); `paint eval` writes it again"
            ) from None
    return problems


@contextmanager
def _or_store_error(path: Path) -> Iterator[None]:
    with files.explained(path, StoreError, "nothing that was stored before is lost"):
        yield
