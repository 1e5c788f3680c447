"""A folder of samples, stored one by one, and everything that regrading needs.

    evals/Qwen3-1.7B/base/aime_2024/
      settings.json       the settings: model, adapter, sampling, seed, k, and the grader
      problems.jsonl      the problems, with their gold answers
      completions.jsonl   one line per sample: its token ids and text, in order of completion
      grades.jsonl        one line per sample: verdict, reason, answer, reward and vote
      SHA256SUMS          checksums of these files, once no sample is missing

A store belongs to one set of settings; only the numbers of problems and of samples per problem may
change. While samples are missing, there are no checksums: a partial last line, left by a kill, is
dropped and its sample is generated again.

Advice, bakes and distances to a teacher store their rollouts in the same way, with a ``purpose`` in
their settings: they are no evaluations, and no policy of a table.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.core import storage
from paint.core.errors import PaintError, cut, wrap_errors
from paint.core.workspace import SETTINGS, Workspace, refuse_differences
from paint.data.problems import Problem, from_row, to_row
from paint.inference.rollouts import Rollout, read_rollout, rollout_row

PURPOSE = "purpose"  # in settings.json: what the samples are for, if not for an evaluation

CHANGEABLE_SETTINGS = {"samples", "versions", "conventions", "grading"}
"""Settings that may differ between two calls that fill one store."""

COMPLETIONS = "completions.jsonl"
PROBLEMS = "problems.jsonl"
GRADES = "grades.jsonl"

SampleKey = tuple[str, int]
"""The id of a problem, and the number of a sample of it."""


class StoreError(PaintError, RuntimeError):
    """A store cannot be read, written or continued; the message has the file and a hint."""


@dataclass(frozen=True)
class Store:
    """The samples of one policy on one benchmark, in a folder locked by this process."""

    folder: Path
    settings: dict[str, Any]  # settings.json; its "samples" is k
    problems: list[Problem]
    written: set[SampleKey]  # every stored sample, including those outside of ``rows``

    @property
    def rows(self) -> list[tuple[Problem, int]]:
        """Every (problem, sample) of the evaluation, ordered by problem."""
        numbers = range(self.settings["samples"])
        return [(problem, sample) for problem in self.problems for sample in numbers]

    @property
    def missing(self) -> list[tuple[Problem, int]]:
        return [(p, sample) for p, sample in self.rows if (p.id, sample) not in self.written]

    def add(self, sample: Rollout) -> None:
        """Append a sample, which then survives a kill. Raises StoreError if that fails."""
        row = {"sample": sample.row, **rollout_row(sample)}
        evaluation_workspace(self.folder).append(row)
        self.written.add(sample.key)

    def write_sums(self) -> None:
        """Write SHA256SUMS, unless a sample is missing. Raises StoreError if that fails."""
        # Without sums the folder counts as unfinished, and a cut last line is dropped.
        if not self.missing:
            names = [SETTINGS, PROBLEMS, COMPLETIONS]
            if (self.folder / GRADES).exists():
                names.append(GRADES)
            evaluation_workspace(self.folder).finish(*names)

    def samples(self) -> Iterator[Rollout]:
        """Iterate over the stored samples of ``rows``, in order of completion."""
        asked = {(problem.id, number) for problem, number in self.rows}
        hint = evaluation_workspace(self.folder).hint
        problems = {problem.id: problem for problem in self.problems}
        for place, row in _rows(self.folder):
            # Samples of other problems and numbers may be stored, too.
            if key_of(row) in asked:
                with wrap_errors(place, storage.CorruptFileError, hint):
                    sample = read_rollout(row, problems[row["problem_id"]], row["sample"])
                yield sample

    def write_grades(self, grading: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        """Write grades.jsonl, one row per sample, and what graded them. Raises StoreError."""
        self.settings["grading"] = grading
        with wrap_errors(self.folder, StoreError, "samples stored before are kept"):
            # Grades under the name of a grader that did not give them would be kept later on.
            (self.folder / GRADES).unlink(missing_ok=True)
            evaluation_workspace(self.folder).begin(self.settings)
            storage.write_jsonl(self.folder / GRADES, rows)
        self.write_sums()

    def graded_digest(self, sample: Rollout) -> str:
        """Return a digest of what a grade is of: the problem's row and the completion."""
        # All fields of the row: a grader of the user's own may read any of them.
        row = to_row(sample.problem)
        return storage.digest(json.dumps(row, sort_keys=True), sample.text)[:16]

    def matching_grades(self) -> dict[SampleKey, tuple[Rollout, dict[str, Any]]]:
        """Return samples with their rows of grades.jsonl, if these are of the same row and text."""
        hint = f"`paint grade {self.folder}` writes it again"
        rows = storage.read_growing_jsonl(self.folder / GRADES, hint)
        grades = {key_of(row): row for row in rows}
        matching = {}
        for sample in self.samples():
            row = grades.get(sample.key, {})
            if row.get("of") == self.graded_digest(sample):
                matching[sample.key] = sample, row
        return matching

    def graded(self) -> list[tuple[Rollout, dict[str, Any]]]:
        """Return the samples of ``rows``, in order, each with its row of grades.jsonl.

        Raises StoreError where a sample has none, or one of another text or row.
        """
        by_row = self.matching_grades()
        found: list[tuple[Rollout, dict[str, Any]]] = []
        for problem, number in self.rows:
            if (problem.id, number) not in by_row:
                raise StoreError(
                    f"{self.folder}: sample {number} of problem {problem.name} is not graded, or "
                    f"was not generated; run `paint grade {self.folder}`, or the same command as "
                    f"before"
                )
            found.append(by_row[problem.id, number])
        return found


@contextmanager
def open_store(
    folder: Path,
    settings: Mapping[str, Any],
    problems: Sequence[Problem],
    prompts: Mapping[SampleKey, Sequence[int]],
    *,
    replaces: bool = False,
) -> Iterator[Store]:
    """Open the store in a folder, or create it.

    ``prompts`` are token ids of what each sample answers; ``replaces`` drops samples of other
    prompts, which are refused otherwise. Raises StoreError for other settings, CorruptFileError for
    a file that was changed, and FolderInUse where another process uses it.
    """
    with wrap_errors(folder, StoreError, "name another place (--output-dir)"):
        folder.mkdir(parents=True, exist_ok=True)

    workspace = evaluation_workspace(folder)
    with storage.lock_folder(folder):
        before = workspace.require_same(settings, CHANGEABLE_SETTINGS)
        # Samples of problems that are not asked for now may stay.
        changed = {
            key_of(row)
            for _, row in _rows(folder)
            if prompts.get(key_of(row), row["prompt_ids"]) != row["prompt_ids"]
        }
        if not replaces:
            lines = [
                f"problem {cut(name)}: its prompt has changed (the problem's text or the model's "
                f"chat template is different)"
                for name in sorted({problem for problem, _ in changed})
            ]
            refuse_differences(f"{folder} holds samples", lines, StoreError)
        # Samples of one store may come from several versions: all are recorded.
        versions = list(before.get("versions", []))
        if settings["versions"] not in versions:
            versions.append(settings["versions"])
        workspace.begin({**before, **settings, "versions": versions})
        with wrap_errors(folder, StoreError, "samples stored before are kept"):
            # Gold answers may have been corrected; each grade names the row that it is of.
            storage.write_jsonl(folder / PROBLEMS, map(to_row, problems))
            if changed:
                kept = (row for _, row in _rows(folder) if key_of(row) not in changed)
                storage.write_jsonl(folder / COMPLETIONS, kept)
        store = _opened(folder)
        store.write_sums()  # a kill may have come between the last sample and the sums
        yield store


@contextmanager
def reopen_store(folder: Path) -> Iterator[Store]:
    """Open an existing store for reading; no file is written. Raises as ``open_store``."""
    read_settings(folder)
    with storage.lock_folder(folder):
        evaluation_workspace(folder).verify()
        yield _opened(folder)


def stored_samples(folder: Path) -> set[SampleKey]:
    return {key_of(row) for _, row in _rows(folder)}


def recorded_engines(folders: Iterable[Path]) -> set[str]:
    """Return the engines that sample for those of these folders that are stores."""
    return {evaluation_workspace(folder).recorded_engine() for folder in folders} - {""}


def find_stores(folder: Path) -> list[Path]:
    """Return the evaluations below a folder, itself included, at any depth; sorted.

    Samples of another purpose count where the folder itself holds them. Raises StoreError for a
    store whose completions are lost: without them, a policy would be missing in tables.
    """
    stores, top = [], folder.resolve()
    # Policies are named after folders, and "." has no name.
    for place, _, names in os.walk(top):
        path, files = Path(place), set(names)
        if COMPLETIONS in files:
            if path == top or SETTINGS not in files or PURPOSE not in read_settings(path):
                stores.append(path)
        elif _was_store(path, files):
            raise StoreError(f"{path / COMPLETIONS} is missing; {evaluation_workspace(path).hint}")
    return sorted(stores)


def _was_store(folder: Path, names: set[str]) -> bool:
    if SETTINGS in names and names & {PROBLEMS, GRADES}:
        return True
    sums = folder / storage.SUMS
    return sums.name in names and f"  {COMPLETIONS}\n" in sums.read_text("utf-8", "replace")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a store. Raises StoreError where there is none."""
    workspace = evaluation_workspace(folder)
    if not workspace.settings_path.exists():
        raise StoreError(f"{folder} holds no evaluation (no {SETTINGS})")
    return storage.read_json(workspace.settings_path, workspace.hint)


def problem_digest(problem: Problem) -> str:
    """Return a digest of what makes two problems the same: id, text and right answers."""
    return storage.digest(problem.id, problem.problem, *problem.answers)


def evaluation_workspace(folder: Path) -> Workspace:
    """Return the settings and samples of a store, as a folder that grows."""
    hint = f"put it back as it was, or move {folder} away and repeat the command"
    return Workspace(folder, COMPLETIONS, "samples", StoreError, hint)


def _opened(folder: Path) -> Store:
    problems = [
        from_row(row)
        for row in storage.read_jsonl(folder / PROBLEMS, evaluation_workspace(folder).hint)
    ]
    return Store(folder, read_settings(folder), problems, stored_samples(folder))


def key_of(row: Mapping[str, Any]) -> SampleKey:
    """Return what identifies the sample of a row of completions.jsonl or grades.jsonl."""
    return row["problem_id"], row["sample"]


def _rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    workspace = evaluation_workspace(folder)
    for number, row in enumerate(workspace.rows(), start=1):
        place = f"{workspace.rows_path} line {number}"
        with wrap_errors(place, storage.CorruptFileError, workspace.hint):
            _ = key_of(row), row["prompt_ids"]  # what is read of rows of other problems, too
        yield place, row
