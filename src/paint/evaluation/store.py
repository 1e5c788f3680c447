"""What an evaluation leaves on disk: every sample at once, and all that grading them again needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          who was asked, and how: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line a sample, in the order in which they came
      grades.jsonl        one line a sample: both verdicts with their reasons, and its vote
      SHA256SUMS          of these files, once no sample is missing

A store belongs to one setting. Opened in another, it refuses and says what differs; only the
numbers of problems and of samples a problem may change. A file that is not the one of SHA256SUMS is
refused, whoever reads it. While samples are missing, there is no SHA256SUMS: a last line that a
kill cut short is dropped and asked for again. One process at a time works on a store, and it never
holds all texts in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.errors import PaintError, wrap_errors
from paint.data.problems import Problem, from_row, to_row

CHANGEABLE_SETTINGS = {"samples", "versions"}
"""What may differ between two calls that fill one store."""

COMPLETIONS = "completions.jsonl"
GRADES = "grades.jsonl"
PUT_BACK = "put it back as it was, or move {folder} away and evaluate again"
HINTS = {
    "asked.json": PUT_BACK,
    "problems.jsonl": "the same `paint eval` command writes it again",
    COMPLETIONS: PUT_BACK,
    GRADES: "`paint grade {folder}` writes it again",
}
"""What to do about a file that was changed."""


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
        path = self.folder / COMPLETIONS
        with _or_store_error(path):
            storage.append_jsonl(path, [asdict(sample)])
        self.written.add((sample.problem, sample.sample))

    def write_sums(self) -> None:
        """Write SHA256SUMS, unless a sample is missing. Raises StoreError where that fails."""
        if not self.missing:
            with _or_store_error(self.folder):
                names = [name for name in HINTS if (self.folder / name).exists()]
                storage.write_sums(self.folder, names)

    def samples(self) -> Iterator[Sample]:
        """The stored samples of all rows, in the order in which they came."""
        wanted = {(problem.id, sample) for problem, sample in self.rows}
        for sample in _samples(self.folder):
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
        StoreError: the folder's is of another setting (the message has every difference), or cannot
            be written.
        CorruptFileError: a file cannot be read, or was changed since the samples were complete.
        FolderInUse: another process works on it.
    """
    with _or_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)

    with storage.lock_folder(folder):
        if _holds_asked(folder):
            _require_unchanged(folder, "asked.json", COMPLETIONS)
        if (folder / GRADES).exists():
            _require_unchanged(folder, GRADES)
        versions = _require_same(folder, asked, problems, prompts)
        versions += [asked["versions"]] if asked["versions"] not in versions else []
        rows = [
            to_row(problem) | {"prompt": prompt_digest(prompt)}
            for problem, prompt in zip(problems, prompts, strict=True)
        ]
        with _or_store_error(folder):
            (folder / storage.SUMS).unlink(missing_ok=True)  # until all of them are written
            storage.write_jsonl(folder / "problems.jsonl", rows)
            storage.write_json(folder / "asked.json", {**asked, "versions": versions})
            (folder / COMPLETIONS).touch()
            dropped = storage.trim_partial_line(folder / COMPLETIONS)
        store = _opened(folder, dropped=dropped)
        store.write_sums()
        yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """A store as it is, in its own setting, to be read: no file of it is written.

    Raises:
        StoreError: no store there.
        CorruptFileError: a file cannot be read, or was changed since the samples were complete.
        FolderInUse: another process works on it.
    """
    _read_asked(folder)
    with storage.lock_folder(folder):
        _require_unchanged(folder, "asked.json", "problems.jsonl", COMPLETIONS)
        yield _opened(folder)


def find_stores(folder: Path) -> list[Path]:
    """The stores in a folder, at any depth, sorted; the folder itself if it is one.

    One that has lost its asked.json is one, too: it must not be left out without a word.
    """
    names = ("asked.json", COMPLETIONS)
    return sorted({path.parent for name in names for path in folder.resolve().rglob(name)})


def write_grades(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write grades.jsonl, a row a sample. Raises StoreError where that fails."""
    with _or_store_error(store.folder):
        (store.folder / storage.SUMS).unlink(missing_ok=True)
        storage.write_jsonl(store.folder / GRADES, rows)
    store.write_sums()


def read_grades(folder: Path) -> list[dict[str, Any]]:
    """The rows of grades.jsonl.

    Raises:
        CorruptFileError: it cannot be read, or was changed since it was written.
    """
    _require_unchanged(folder, GRADES)
    return list(storage.read_jsonl(folder / GRADES, HINTS[GRADES].format(folder=folder)))


def write_summary(folder: Path, figures: Mapping[str, Any], text: str) -> None:
    """Write summary.json and summary.md. Raises StoreError where that fails."""
    with _or_store_error(folder):
        storage.write_json(folder / "summary.json", figures)
        storage.write_atomic(folder / "summary.md", text)


def prompt_digest(prompt: Sequence[int]) -> str:
    """The digest of a prompt's token ids, as samples store it."""
    return storage.digest(" ".join(map(str, prompt)))[:16]


def _opened(folder: Path, *, dropped: bool = False) -> Store:
    """The store as it is on disk, all of which is read."""
    asked = _read_asked(folder)
    path, hint = folder / "problems.jsonl", HINTS["problems.jsonl"]
    rows = list(storage.read_jsonl(path, hint))
    with wrap_errors(path, storage.CorruptFileError, hint):
        problems = [from_row(row) for row in rows]
        prompts = {row["id"]: row["prompt"] for row in rows}
    written: set[tuple[str, int]] = set()
    for sample in _samples(folder):
        if prompts.get(sample.problem, sample.prompt) != sample.prompt:
            raise storage.CorruptFileError(
                f"{folder / COMPLETIONS} has samples of other prompts than "
                f"{folder / 'problems.jsonl'}; {PUT_BACK.format(folder=folder)}"
            )
        written.add((sample.problem, sample.sample))
    return Store(folder, asked, problems, written, dropped)


def _samples(folder: Path) -> Iterator[Sample]:
    """All stored samples, in the order in which they came."""
    path, hint = folder / COMPLETIONS, PUT_BACK.format(folder=folder)
    for number, row in enumerate(storage.read_growing_jsonl(path, hint), start=1):
        with wrap_errors(f"{path} line {number}", storage.CorruptFileError, hint):
            sample = Sample(**row)
        yield sample


def _require_unchanged(folder: Path, *names: str) -> None:
    """Check files against SHA256SUMS, if it is there. Raises CorruptFileError."""
    if (folder / storage.SUMS).exists():
        for name in names:
            storage.verify_checksums(folder, HINTS[name].format(folder=folder), name)


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
        if name not in CHANGEABLE_SETTINGS and before.get(name) != asked.get(name)
    ]
    if not lines:
        wanted = {p.id: prompt_digest(prompt) for p, prompt in zip(problems, prompts, strict=True)}
        changed = {
            sample.problem
            for sample in _samples(folder)
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
    path, hint = folder / "asked.json", PUT_BACK.format(folder=folder)
    asked = storage.read_json(path, hint)
    if not isinstance(asked.get("samples"), int) or not isinstance(asked.get("versions"), list):
        raise storage.CorruptFileError(
            f"{path} does not say how many samples, and by which versions; {hint}"
        )
    return asked


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


@contextmanager
def _or_store_error(path: Path) -> Iterator[None]:
    with wrap_errors(path, StoreError, "nothing that was stored before is lost"):
        yield
