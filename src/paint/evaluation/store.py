"""The folder of an evaluation: samples, stored one by one, and everything that regrading needs.

    evals/Qwen3-1.7B/base/aime_2024/
      settings.json       the settings: model, adapter, sampling, seed, k
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
from paint.core.workspace import SETTINGS, Workspace, refuse_differences
from paint.data.problems import Problem, from_row, to_row

CHANGEABLE_SETTINGS = {"samples", "versions", "conventions"}
"""Settings that may differ between two calls that fill one store."""

COMPLETIONS = "completions.jsonl"
PROBLEMS = "problems.jsonl"
GRADES = "grades.jsonl"
PUT_BACK = "put it back as it was, or move {folder} away and evaluate again"
PROBLEMS_HINT = "the same `paint eval` command writes it again"
GRADES_HINT = "`paint grade {folder}` writes it again"


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
    settings: dict[str, Any]  # settings.json; its "samples" is k
    problems: list[Problem]
    written: set[tuple[str, int]]  # every stored sample, including those outside of ``rows``
    dropped: bool = False  # whether a partial last line was removed from completions.jsonl

    @property
    def rows(self) -> list[tuple[Problem, int]]:
        """Every (problem, sample) of the evaluation, ordered by problem."""
        k = self.settings["samples"]
        rows: list[tuple[Problem, int]] = []
        for problem in self.problems:
            for sample in range(k):
                rows.append((problem, sample))
        return rows

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        """The rows that are not stored yet."""
        missing: list[tuple[Problem, int]] = []
        for row in self.rows:
            if (row[0].id, row[1]) not in self.written:
                missing.append(row)
        return missing

    def add(self, sample: Sample) -> None:
        """Append a sample, which then survives a kill. Raises StoreError if that fails."""
        evaluation_workspace(self.folder).append(asdict(sample))
        self.written.add((sample.problem, sample.sample))

    def record_engine(self, engine: str) -> None:
        """Record another engine, before the first sample. Raises StoreError if that fails."""
        self.settings["engine"] = engine
        evaluation_workspace(self.folder).begin(self.settings)

    def write_sums(self) -> None:
        """Write SHA256SUMS, unless a sample is missing. Raises StoreError if that fails."""
        if not self.missing:
            names = [SETTINGS, PROBLEMS, COMPLETIONS]
            if (self.folder / GRADES).exists():
                names.append(GRADES)
            evaluation_workspace(self.folder).finish(*names)

    def samples(self) -> Iterator[Sample]:
        """Iterate over the stored samples of ``rows``, in order of completion."""
        rows = set()
        for problem, sample in self.rows:
            rows.add((problem.id, sample))
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
    rows = []
    for problem, prompt in zip(problems, digests, strict=True):
        rows.append(to_row(problem) | {"prompt": prompt})
    workspace = evaluation_workspace(folder)
    with storage.lock_folder(folder):
        if workspace.settings_path.exists():
            read_settings(folder)
        _verify_grades(folder)
        before = workspace.require_same(settings, CHANGEABLE_SETTINGS)
        by_id = {problem.id: prompt for problem, prompt in zip(problems, digests, strict=True)}
        _require_same_prompts(folder, by_id)
        versions = list(before.get("versions", []))
        if settings["versions"] not in versions:
            versions.append(settings["versions"])
        dropped = workspace.begin({**settings, "versions": versions})
        with _or_store_error(folder):
            storage.write_jsonl(folder / PROBLEMS, rows)
        store = _opened(folder, dropped=dropped)
        store.write_sums()
        yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """Open an existing store for reading; no file is written. Raises as ``open_store``."""
    read_settings(folder)
    workspace = evaluation_workspace(folder)
    with storage.lock_folder(folder):
        workspace.verify(SETTINGS, COMPLETIONS)
        workspace.verify(PROBLEMS, hint=PROBLEMS_HINT)
        yield _opened(folder)


def stored_samples(folder: Path) -> set[tuple[str, int]]:
    """The problems' ids and numbers of the samples that a store holds; none where there is none."""
    samples: set[tuple[str, int]] = set()
    for sample in _samples(folder):
        samples.add((sample.problem, sample.sample))
    return samples


def recorded_engines(folders: Iterable[Path]) -> set[str]:
    """The engines that sample for those of these folders that are stores."""
    engines: set[str] = set()
    for folder in folders:
        if (folder / SETTINGS).exists():
            engine = read_settings(folder).get("engine")
            if engine is not None:
                engines.add(engine)
    return engines


def find_stores(folder: Path) -> list[Path]:
    """Find the stores below a folder, itself included, at any depth; sorted.

    Raises StoreError for one that has lost its settings: without it, a policy would be missing.
    """
    found: set[Path] = set()
    for name in (COMPLETIONS, GRADES):
        found.update(path.parent for path in folder.resolve().rglob(name))
    for store in sorted(found):
        if not (store / SETTINGS).exists():
            hint = PUT_BACK.format(folder=store)
            raise StoreError(f"{store / SETTINGS} is gone; {hint}")
    return sorted(found)


def write_grades(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write grades.jsonl, one row per sample. Raises StoreError if that fails."""
    with _or_store_error(store.folder):
        (store.folder / storage.SUMS).unlink(missing_ok=True)
        storage.write_jsonl(store.folder / GRADES, rows)
    store.write_sums()


def read_grades(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of grades.jsonl. Raises CorruptFileError if it was changed since."""
    _verify_grades(folder)
    return list(storage.read_jsonl(folder / GRADES, GRADES_HINT.format(folder=folder)))


def prompt_digest(prompt: Sequence[int]) -> str:
    """Digest of a prompt's token ids, as stored with samples."""
    return storage.digest(" ".join(map(str, prompt)))[:16]


def evaluation_workspace(folder: Path) -> Workspace:
    """The settings and samples of a store, as a folder that grows."""
    return Workspace(
        folder, COMPLETIONS, "an evaluation", StoreError, PUT_BACK.format(folder=folder)
    )


def _opened(folder: Path, *, dropped: bool = False) -> Store:
    settings = read_settings(folder)
    path = folder / PROBLEMS
    rows = list(storage.read_jsonl(path, PROBLEMS_HINT))
    with wrap_errors(path, storage.CorruptFileError, PROBLEMS_HINT):
        problems = []
        for row in rows:
            problems.append(from_row(row))
    return Store(folder, settings, problems, stored_samples(folder), dropped)


def _samples(folder: Path) -> Iterator[Sample]:
    """Iterate over all stored samples, in order of completion."""
    workspace = evaluation_workspace(folder)
    for number, row in enumerate(workspace.rows(), start=1):
        place = f"{workspace.rows_path} line {number}"
        with wrap_errors(place, storage.CorruptFileError, workspace.hint):
            sample = Sample(**row)
        yield sample


def _verify_grades(folder: Path) -> None:
    """Verify grades.jsonl against SHA256SUMS, if both exist. Raises CorruptFileError."""
    if (folder / GRADES).exists():
        evaluation_workspace(folder).verify(GRADES, hint=GRADES_HINT.format(folder=folder))


def _require_same_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    """Reject a store with samples of other prompts, by their digests."""
    changed = set()
    for sample in _samples(folder):
        if prompts.get(sample.problem, sample.prompt) != sample.prompt:
            changed.add(sample.problem)
    lines = []
    for name in sorted(changed):
        lines.append(
            f"problem {name}: its prompt has changed (the problem's text or the model's chat "
            f"template is different)"
        )
    refuse_differences(f"{folder} holds an evaluation", lines, StoreError)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a store. Raises StoreError where there is none."""
    workspace = evaluation_workspace(folder)
    path = workspace.settings_path
    if not path.exists():
        raise StoreError(f"{folder} holds no evaluation (no {SETTINGS})")
    settings = storage.read_json(path, workspace.hint)
    samples, versions = settings.get("samples"), settings.get("versions")
    if not isinstance(samples, int) or not isinstance(versions, list):
        raise storage.CorruptFileError(f'{path} lacks "samples" or "versions"; {workspace.hint}')
    return settings


def _or_store_error(path: Path) -> AbstractContextManager[None]:
    return wrap_errors(path, StoreError, "samples stored before are kept")
