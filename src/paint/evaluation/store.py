"""The folder of an evaluation: samples, stored one by one, and everything that regrading needs.

    evals/Qwen3-1.7B/base/aime_2024/
      asked.json          the settings: model, adapter, sampling, seed, k
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line per sample, in order of completion
      grades.jsonl        one line per sample: both verdicts with their reasons, and its vote
      SHA256SUMS          checksums of these files, once no sample is missing

A store belongs to one set of settings; only the numbers of problems and of samples per problem may
change. Every read compares a file with SHA256SUMS. While samples are missing, there is none: a
partial last line, left by a kill, is dropped and its sample is generated again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.errors import PaintError, wrap_errors
from paint.data.problems import Problem, from_row, to_row

CHANGEABLE_SETTINGS = {"samples", "versions", "conventions"}
"""Settings that may differ between two calls that fill one store."""

COMPLETIONS = "completions.jsonl"
GRADES = "grades.jsonl"
PUT_BACK = "put it back as it was, or move {folder} away and evaluate again"
HINTS = {
    "asked.json": PUT_BACK,
    "problems.jsonl": "the same `paint eval` command writes it again",
    COMPLETIONS: PUT_BACK,
    GRADES: "`paint grade {folder}` writes it again",
}
"""Hints for a changed file, by name."""


class StoreError(PaintError, RuntimeError):
    """A store cannot be read, written or continued; the message has the file and a hint."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One stored completion of an evaluation."""

    problem: str
    sample: int  # number among the problem's k samples, from 0
    prompt: str  # prompt_digest of the prompt
    text: str  # think tags included
    tokens: int
    truncated: bool  # it reached the token limit
    source: str  # a server's address, or "local"


@dataclass(frozen=True)
class Store:
    """The samples of one policy on one benchmark, in a folder locked by this process."""

    folder: Path
    settings: dict[str, Any]  # asked.json; its "samples" is k
    problems: list[Problem]
    written: set[tuple[str, int]]  # every stored sample, including those outside of ``rows``
    dropped: bool = False  # whether a partial last line was removed from completions.jsonl

    @property
    def rows(self) -> list[tuple[Problem, int]]:
        """Every (problem, sample) of the evaluation, ordered by problem."""
        k = self.settings["samples"]
        return [(problem, sample) for problem in self.problems for sample in range(k)]

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        """The rows that are not stored yet."""
        return [row for row in self.rows if (row[0].id, row[1]) not in self.written]

    def add(self, sample: Sample) -> None:
        """Append a sample, which then survives a kill. Raises StoreError if that fails."""
        with _or_store_error(self.folder / COMPLETIONS):
            storage.append_jsonl(self.folder / COMPLETIONS, [asdict(sample)])
        self.written.add((sample.problem, sample.sample))

    def record_engine(self, engine: str) -> None:
        """Record another engine, before the first sample. Raises StoreError if that fails."""
        self.settings["engine"] = engine
        with _or_store_error(self.folder):
            storage.write_json(self.folder / "asked.json", self.settings)

    def write_sums(self) -> None:
        """Write SHA256SUMS, unless a sample is missing. Raises StoreError if that fails."""
        if not self.missing:
            with _or_store_error(self.folder):
                names = [name for name in HINTS if (self.folder / name).exists()]
                storage.write_sums(self.folder, names)

    def samples(self) -> Iterator[Sample]:
        """Iterate over the stored samples of ``rows``, in order of completion."""
        rows = {(problem.id, sample) for problem, sample in self.rows}
        return (s for s in _samples(self.folder) if (s.problem, s.sample) in rows)


@contextmanager
def open_store(
    folder: Path,
    settings: Mapping[str, Any],
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
) -> Iterator[Store]:
    """Open the store in a folder, or create it.

    Raises StoreError for other settings, CorruptFileError for a file that was changed, and
    FolderInUse where another process uses it.
    """
    with _or_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)

    digests = [prompt_digest(prompt) for prompt in prompts]
    with storage.lock_folder(folder):
        versions = []
        if (folder / "asked.json").exists():
            _require_unchanged(folder, "asked.json", COMPLETIONS)
            if (folder / GRADES).exists():
                _require_unchanged(folder, GRADES)
            by_id = {p.id: prompt for p, prompt in zip(problems, digests, strict=True)}
            versions = _require_same(folder, settings, by_id)
        versions += [settings["versions"]] if settings["versions"] not in versions else []
        rows = [
            to_row(problem) | {"prompt": prompt}
            for problem, prompt in zip(problems, digests, strict=True)
        ]
        with _or_store_error(folder):
            (folder / storage.SUMS).unlink(missing_ok=True)  # absent until all files are written
            storage.write_jsonl(folder / "problems.jsonl", rows)
            storage.write_json(folder / "asked.json", {**settings, "versions": versions})
            (folder / COMPLETIONS).touch()
            dropped = storage.trim_partial_line(folder / COMPLETIONS)
        store = _opened(folder, dropped=dropped)
        store.write_sums()
        yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """Open an existing store for reading; no file is written. Raises as ``open_store``."""
    _read_settings(folder)
    with storage.lock_folder(folder):
        _require_unchanged(folder, "asked.json", "problems.jsonl", COMPLETIONS)
        yield _opened(folder)


def stored_samples(folder: Path) -> set[tuple[str, int]]:
    """The problems' ids and numbers of the samples that a store holds; none where there is none."""
    return {(sample.problem, sample.sample) for sample in _samples(folder)}


def recorded_engines(folders: Iterable[Path]) -> set[str]:
    """The engines that sample for those of these folders that are stores."""
    engines: set[str] = set()
    for folder in folders:
        if (folder / "asked.json").exists():
            engine = _read_settings(folder).get("engine")
            if engine is not None:
                engines.add(engine)
    return engines


def find_stores(folder: Path) -> list[Path]:
    """Find the stores below a folder, itself included, at any depth; sorted.

    Raises StoreError for one that has lost its settings: without it, a policy would be missing.
    """
    found: set[Path] = set()
    for name in ("asked.json", COMPLETIONS, GRADES):
        found.update(path.parent for path in folder.resolve().rglob(name))
    for store in sorted(found):
        if not (store / "asked.json").exists():
            hint = PUT_BACK.format(folder=store)
            raise StoreError(f"{store / 'asked.json'} is gone; {hint}")
    return sorted(found)


def write_grades(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write grades.jsonl, one row per sample. Raises StoreError if that fails."""
    with _or_store_error(store.folder):
        (store.folder / storage.SUMS).unlink(missing_ok=True)
        storage.write_jsonl(store.folder / GRADES, rows)
    store.write_sums()


def read_grades(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of grades.jsonl. Raises CorruptFileError if it was changed since."""
    _require_unchanged(folder, GRADES)
    return list(storage.read_jsonl(folder / GRADES, HINTS[GRADES].format(folder=folder)))


def write_summary(folder: Path, metrics: Mapping[str, Any], text: str) -> None:
    """Write summary.json and summary.md. Raises StoreError if that fails."""
    with _or_store_error(folder):
        storage.write_json(folder / "summary.json", metrics)
        storage.write_atomic(folder / "summary.md", text)


def prompt_digest(prompt: Sequence[int]) -> str:
    """Digest of a prompt's token ids, as stored with samples."""
    return storage.digest(" ".join(map(str, prompt)))[:16]


def _opened(folder: Path, *, dropped: bool = False) -> Store:
    settings = _read_settings(folder)
    path, hint = folder / "problems.jsonl", HINTS["problems.jsonl"]
    rows = list(storage.read_jsonl(path, hint))
    with wrap_errors(path, storage.CorruptFileError, hint):
        problems = [from_row(row) for row in rows]
    return Store(folder, settings, problems, stored_samples(folder), dropped)


def _samples(folder: Path) -> Iterator[Sample]:
    """Iterate over all stored samples, in order of completion."""
    path, hint = folder / COMPLETIONS, PUT_BACK.format(folder=folder)
    for number, row in enumerate(storage.read_growing_jsonl(path, hint), start=1):
        with wrap_errors(f"{path} line {number}", storage.CorruptFileError, hint):
            sample = Sample(**row)
        yield sample


def _require_unchanged(folder: Path, *names: str) -> None:
    """Verify files against SHA256SUMS, if it exists. Raises CorruptFileError."""
    if (folder / storage.SUMS).exists():
        for name in names:
            storage.verify_checksums(folder, HINTS[name].format(folder=folder), name)


def _require_same(
    folder: Path, settings: Mapping[str, Any], prompts: Mapping[str, str]
) -> list[Any]:
    """Reject a store with other settings or samples of other prompts; return its versions."""
    before = _read_settings(folder)
    lines = [
        f"{name}: {before.get(name)!r} -> {settings.get(name)!r}"
        for name in {**before, **settings}
        if name not in CHANGEABLE_SETTINGS and before.get(name) != settings.get(name)
    ]
    if not lines:
        changed = {
            sample.problem
            for sample in _samples(folder)
            if prompts.get(sample.problem, sample.prompt) != sample.prompt
        }
        lines = [
            f"problem {name}: its prompt has changed (the problem's text or the model's chat "
            f"template is different)"
            for name in sorted(changed)
        ]
    if lines:
        listed = "\n  ".join(lines[:10])
        raise StoreError(
            f"{folder} holds an evaluation with other settings:\n  {listed}\n"
            f"Use the same settings to continue it, or choose another place (--folder)"
        )
    versions: list[Any] = before["versions"]
    return versions


def _read_settings(folder: Path) -> dict[str, Any]:
    path, hint = folder / "asked.json", PUT_BACK.format(folder=folder)
    if not path.exists():
        raise StoreError(f"{folder} holds no evaluation (no asked.json)")
    settings = storage.read_json(path, hint)
    samples, versions = settings.get("samples"), settings.get("versions")
    if not isinstance(samples, int) or not isinstance(versions, list):
        raise storage.CorruptFileError(f'{path} lacks "samples" or "versions"; {hint}')
    return settings


def _or_store_error(path: Path) -> AbstractContextManager[None]:
    return wrap_errors(path, StoreError, "samples stored before are kept")
