"""What an evaluation leaves on disk: every sample at once, and all that grading them again needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          who was asked, and how: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line a sample, in the order in which they came
      grades.jsonl        one line a sample: both verdicts with their reasons, and its vote

A store belongs to one setting. Opened in another, it refuses and says what differs; only the
numbers of problems and of samples a problem may change. Every row carries a checksum of its values,
its place and the setting, and asked.json one of the problems: what was changed, lost or comes from
another store is refused as it is (paint.files). Only a last line that a kill cut short is dropped
and asked for again, and only where samples are added. One process at a time works on a store, and
it never holds all texts in memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paint import files
from paint.data.problems import Problem, from_row, to_row
from paint.errors import PaintError, explained

MAY_CHANGE = {"samples", "versions", "problems"}
"""What may differ between two calls that fill one store."""

COMPLETIONS = "completions.jsonl"
PUT_BACK = "put it back as it was, or move {folder} away and evaluate again"


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
        dropped: whether a last line, which a kill cut short, was taken off completions.jsonl.
    """

    folder: Path
    asked: dict[str, Any]
    problems: list[Problem]
    written: set[tuple[str, int]]
    dropped: bool = False

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
        path, owner = self.folder / COMPLETIONS, _owner(self.asked)
        with _or_store_error(path):
            files.append_log(path, [asdict(sample)], after=len(self.written), owner=owner)
        self.written.add((sample.problem, sample.sample))

    def samples(self) -> Iterator[Sample]:
        """The stored samples of all rows, in the order in which they came."""
        wanted = {(problem.id, sample) for problem, sample in self.rows}
        for sample in _samples(self.folder, self.asked):
            if (sample.problem, sample.sample) in wanted:
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
        versions = _require_same(folder, asked, problems, prompts)
        versions += [asked["versions"]] if asked["versions"] not in versions else []
        rows = [
            to_row(problem) | {"prompt": prompt_digest(prompt)}
            for problem, prompt in zip(problems, prompts, strict=True)
        ]
        with _or_store_error(folder):
            files.write_rows(folder / "problems.jsonl", rows)
            setting = {**asked, "versions": versions, "problems": _problems_digest(rows)}
            files.write_json(folder / "asked.json", setting)
            (folder / COMPLETIONS).touch()
            dropped = files.drop_cut_line(folder / COMPLETIONS)
        yield _opened(folder, dropped=dropped)


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """A store as it is, in its own setting, to be read: no file of it is written.

    Raises:
        StoreError: no store there. Damaged: a file was changed since it was written.
        FolderInUse: another process works on it.
    """
    _read_asked(folder)
    with files.locked(folder):
        yield _opened(folder)


def find_stores(folder: Path) -> list[Path]:
    """The stores in a folder, at any depth, sorted; the folder itself if it is one.

    One that has lost its asked.json is one, too: it must not be left out without a word.
    """
    names = ("asked.json", COMPLETIONS)
    return sorted({path.parent for name in names for path in folder.resolve().rglob(name)})


def write_grades(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write grades.jsonl, a row a sample. Raises StoreError where that fails."""
    with _or_store_error(folder):
        files.write_rows(folder / "grades.jsonl", rows)


def write_summary(folder: Path, figures: Mapping[str, Any], text: str) -> None:
    """Write summary.json and summary.md. Raises StoreError where that fails."""
    with _or_store_error(folder):
        files.write_json(folder / "summary.json", figures)
        files.write(folder / "summary.md", text)


def prompt_digest(prompt: Sequence[int]) -> str:
    """The digest of a prompt's token ids, as samples store it."""
    return files.digest(" ".join(map(str, prompt)))[:16]


def _opened(folder: Path, *, dropped: bool = False) -> Store:
    """The store as it is on disk, all of which is read and held against its checksums."""
    asked = _read_asked(folder)
    advice = "the same `paint eval` command writes it again"
    rows = list(files.read_rows(folder / "problems.jsonl", advice))
    if asked["problems"] != _problems_digest(rows):
        raise files.Damaged(
            f"{folder / 'problems.jsonl'} has other problems than {folder / 'asked.json'} was "
            f"written for; {advice}"
        )

    prompts = {row["id"]: row["prompt"] for row in rows}
    written: set[tuple[str, int]] = set()
    for sample in _samples(folder, asked):
        if prompts.get(sample.problem, sample.prompt) != sample.prompt:
            raise files.Damaged(
                f"{folder / COMPLETIONS} has samples of other prompts than "
                f"{folder / 'problems.jsonl'}; {PUT_BACK.format(folder=folder)}"
            )
        written.add((sample.problem, sample.sample))
    problems = [from_row(row) for row in rows]
    return Store(folder, asked, problems, written, dropped)


def _samples(folder: Path, asked: Mapping[str, Any]) -> Iterator[Sample]:
    """All stored samples, in the order in which they came."""
    path = folder / COMPLETIONS
    advice = f"{PUT_BACK.format(folder=folder)} (or is {folder / 'asked.json'} another store's?)"
    for row in files.read_log(path, advice, _owner(asked)):
        with explained(path, files.Damaged, advice):
            sample = Sample(**row)
        yield sample


def _require_same(
    folder: Path,
    asked: Mapping[str, Any],
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
) -> list[Any]:
    """Refuse a store of another setting, or with samples of other prompts.

    Returns the versions that worked on the store before.
    """
    if not _holds_asked(folder):
        return []

    before = _read_asked(folder)
    lines = [
        f"{name}: {before.get(name)!r} -> {asked.get(name)!r}"
        for name in {**before, **asked}
        if name not in MAY_CHANGE and before.get(name) != asked.get(name)
    ]
    if not lines:
        wanted = {p.id: prompt_digest(prompt) for p, prompt in zip(problems, prompts, strict=True)}
        changed = {
            sample.problem
            for sample in _samples(folder, before)
            if wanted.get(sample.problem, sample.prompt) != sample.prompt
        }
        lines = [
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
    versions: list[Any] = before["versions"]
    return versions


def _read_asked(folder: Path) -> dict[str, Any]:
    if not _holds_asked(folder):
        raise StoreError(f"{folder} holds no evaluation (no asked.json)")
    return files.read_json(folder / "asked.json", PUT_BACK.format(folder=folder))


def _holds_asked(folder: Path) -> bool:
    """Whether there is a setting. Raises StoreError where there are samples, and none."""
    path = folder / COMPLETIONS
    if (folder / "asked.json").exists():
        return True
    if path.exists() and path.stat().st_size:
        raise StoreError(
            f"{path} holds samples, and nothing says in which setting (no asked.json); put that "
            f"back, or move {folder} away"
        )
    return False


def _owner(asked: Mapping[str, Any]) -> str:
    """The identity of a setting, to which samples belong."""
    setting = {name: value for name, value in asked.items() if name not in MAY_CHANGE}
    return files.digest(json.dumps(setting, sort_keys=True))[:16]


def _problems_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    return files.digest(*(json.dumps(row, sort_keys=True) for row in rows))[:16]


@contextmanager
def _or_store_error(path: Path) -> Iterator[None]:
    with explained(path, StoreError, "nothing that was stored before is lost"):
        yield
